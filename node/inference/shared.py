"""A daemon's way to the engine that it shares with others of its machine: `python -m node.inference.shared [options]`.

A drop-in for `python -m node.inference.process`: frames on stdin go to the host's socket (node.inference.host), and its
replies to stdout. The first one starts the host, which outlives it. One that finds a host that does not answer ends it
and starts another.
"""

import argparse
import fcntl
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from node.config import runtime_socket
from node.inference.watchdog import LOADING
from node.inference.wire import HEADER, Ping, Pong, WireError, body_length, decode_reply, encode
from node.state.files import own_directory

START_SECONDS = 300.0
"""For the host's imports, on a machine where others start, too."""
ANSWER_SECONDS = 30.0
"""For a first word: a thread that does nothing else gives it."""
SAY_SECONDS = 1.0
"""Between two words to a daemon that waits for a host."""
READ_SIZE = 1 << 16


class NoHostError(Exception):
    """Nobody listens, or nobody answers."""


def main() -> None:
    """Serve until either side ends."""
    parser = argparse.ArgumentParser(prog="python -m node.inference.shared", description=__doc__)
    parser.add_argument("--runs", type=int, help="for which the host has room, if this is the first to need it")
    parser.add_argument("--linger", type=float, help="seconds without a daemon after which it ends")
    chosen, engine = parser.parse_known_args()
    own = [f"--{name}={value}" for name, value in vars(chosen).items() if value is not None]
    path = host_socket(engine)
    found = threading.Event()
    waiting = threading.Thread(target=_wait_aloud, args=(found,), daemon=True)
    waiting.start()
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one starts it, and a host that has nobody does not end meanwhile
        connection = _connected(path)
        if connection is None:
            path.unlink(missing_ok=True)  # of one that was killed
            connection = _started(path, [*own, *engine])
    found.set()
    waiting.join()  # whose frame must not stand within one of the host's
    threading.Thread(target=_speak, args=(connection,), daemon=True).start()
    while data := connection.recv(READ_SIZE):
        while data:
            data = data[os.write(1, data) :]


def _wait_aloud(found: threading.Event) -> None:
    """Until there is a host: a daemon ends a child of which it hears nothing for as long as a host may take."""
    while not found.wait(SAY_SECONDS):
        os.write(1, encode(Pong(beats=0, busy=LOADING)))


def host_socket(options: Sequence[str]) -> Path:
    """Where the host of engines with these options listens: of this user, this program and this interpreter."""
    told = "\0".join([sys.executable, str(Path(__file__).resolve().parent), *options])
    path = runtime_socket(f"engine-{hashlib.sha256(told.encode()).hexdigest()[:20]}")
    try:
        own_directory(path.parent)
    except OSError as error:
        sys.exit(f"{error}: set XDG_RUNTIME_DIR to a directory of yours")
    return path


def _connected(path: Path) -> socket.socket | None:
    """To a host that answers; None if there is none, or none any more."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    try:
        _greet(connection)
    except (OSError, WireError, NoHostError):
        # A host that is stopped, or hangs: each daemon would give up on us, one after the other, and nobody on it.
        _kill_host(connection)
        connection.close()
        return None
    return connection


def _greet(connection: socket.socket) -> None:
    """Ask whether it lives. Raises NoHostError, OSError, WireError."""
    connection.settimeout(ANSWER_SECONDS)
    connection.sendall(encode(Ping()))
    header = _exactly(connection, HEADER.size)
    if not isinstance(decode_reply(_exactly(connection, body_length(header))), Pong):
        raise NoHostError("it says something else")
    connection.settimeout(None)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise NoHostError("it hung up")
        data += part
    return data


def _kill_host(connection: socket.socket) -> None:
    """Whoever listens at the other end, as the system says."""
    if not hasattr(socket, "SO_PEERCRED"):  # not on Linux: the host ends by its own watch, or by its owner
        return
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended: what we wanted


def _started(path: Path, options: Sequence[str]) -> socket.socket:
    """A connection to a new host. Ends this program where there will be none."""
    said = path.with_suffix(".log")
    command = [sys.executable, "-m", "node.inference.host", str(path), *options]
    with said.open("wb") as log:
        os.chmod(said, 0o600)
        # A session of its own: a daemon kills its child's process group, and the engine is others', too.
        host = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    limit = time.monotonic() + START_SECONDS
    while host.poll() is None and time.monotonic() < limit:
        if connection := _connected(path):
            return connection
        time.sleep(0.05)
    host.kill()
    sys.stderr.write(said.read_text(errors="replace")[-2000:])
    sys.exit(f"the shared engine does not start; see {said}")


def _speak(connection: socket.socket) -> None:
    while data := os.read(0, READ_SIZE):
        try:
            connection.sendall(data)
        except OSError:
            return  # the host is gone: the other thread still hands on what it said last, and hears its end then
    os._exit(0)  # the daemon is gone; the other thread may wait for the host


if __name__ == "__main__":
    main()
