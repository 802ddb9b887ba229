"""One engine's process for several daemons of a machine: `python -m node.inference.host SOCKET [--runs N] [options]`.

Each daemon has a conversation (node.inference.process) and a session of its own. Sessions whose runs begin with the
same model share its weights. Where runs train adapters that are kept apart (class `lora`), one decoder has rows of all.
The process ends some seconds after the last daemon has gone. `node.inference.shared` starts it.
"""

import argparse
import fcntl
import os
import queue
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from node.inference.engines import AUTO, TORCH, EngineFactory, make_engine
from node.inference.errors import EngineError
from node.inference.link import cpu_seconds
from node.inference.owner import Owner
from node.inference.process import Conversation, end_if_fatal, settings_for
from node.inference.server import Server, log
from node.inference.session import Bench, KeptPolicies, Session
from node.inference.settings import EngineSettings, devices
from node.inference.watchdog import Watchdog
from node.inference.wish import Wish, wish_from
from protocol.engines import LORA, permits
from protocol.run import MODEL, RunSpec, encode_run

RUNS = 4
"""For which there is room by default."""
LINGER = 20.0
"""Seconds without a daemon after which it ends: one that is started again finds it."""
MOST_UNREAD = 256
"""Replies that a daemon may leave unread before it is let go."""
LAST_WORD = 1.0
"""Seconds in which daemons are still sent why an engine that failed for good ends."""


class Benches:
    """The engines of all sessions, by model and class. runs: how many different ones may share this process; for the
    owner's thread."""

    def __init__(self, wish: Wish, runs: int) -> None:
        self._wish = wish
        self._runs = runs
        self._benches: dict[object, Bench] = {}
        self._open: list[tuple[RunSpec, Bench, KeptPolicies]] = []

    def factory_for(self, run: RunSpec) -> EngineFactory:
        return partial(make_engine, settings=self._settings(run))

    def _settings(self, run: RunSpec) -> EngineSettings:
        """Where a run admits it, its adapters are kept apart: only so others' can be beside them."""
        apart = replace(self._wish, attention=LORA)
        if run.recipe.lora and self._wish.attention is None and self._wish.engine in (AUTO, TORCH.name):
            if any(permits(run.verification.admitted, way.name) for way in apart.ways(devices())):
                return settings_for(apart, run, self._runs)
        return settings_for(self._wish, run, self._runs)

    def open(self, run: RunSpec, assets: Path, factory: EngineFactory) -> Session:
        """A session of a run. Raises EngineError, ModelError."""
        # A session that has left its bench has ended, and no longer takes a run's room.
        self._open = [one for one in self._open if one[2] in one[1].kept]
        others = [one for one, _, _ in self._open if one != run]
        if len(dict.fromkeys(map(encode_run, others))) >= self._runs:
            why = f"it has room for {self._runs} runs, and they are there"
            raise EngineError(
                "the shared engine is full", why, "join without --share-engine, or end another run's node"
            )
        settings = self._settings(run)
        model = [(asset.path, asset.root) for asset in run.assets if asset.path.startswith(f"{MODEL}/")]
        # Two daemons have the same files in different places; a run at a desk need not name its files.
        key = tuple(model) or assets.resolve(), settings.device, settings.name
        bench = self._benches.get(key)
        if bench is None or not bench.kept:  # one that nobody had any more is closed
            bench = Bench(*factory(assets / MODEL))
        try:
            session = Session(run, assets, factory, bench)
        except BaseException:
            bench.close_if_unused()
            raise
        # Only now: a session that cannot be made must not keep the engine that was made for it.
        self._benches[key] = bench
        self._open.append((run, bench, session.policies))
        return session


class _Unblocked:
    """Where replies are put: the engine's thread, which tells how far it is, waits for no daemon that does not read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames: queue.Queue[bytes] = queue.Queue(MOST_UNREAD)
        threading.Thread(target=self._send, daemon=True).start()

    def write(self, frame: bytes) -> None:
        try:
            self._frames.put_nowait(frame)
        except queue.Full:
            # An OSError, as of a pipe that is closed: this conversation ends by it, and no other waits.
            raise OSError("the daemon does not read") from None

    def flush(self) -> None:
        """They are on their way."""

    def close(self) -> None:
        """End the thread that sends, of a connection that is hung up."""
        with suppress(queue.Full):  # then it is sending, which fails
            self._frames.put_nowait(b"")

    def _send(self) -> None:
        try:
            while frame := self._frames.get():
                self._connection.sendall(frame)
        except OSError as error:
            log("host.unsent", error=str(error))
            hang_up(self._connection)


def hang_up(connection: socket.socket, _: int = 0) -> None:
    """Both ways; whoever reads from it hears the end."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # the other side was first
        log("host.hung_up", error=str(error))


class Host:
    """Daemons come and go by a socket at `path`."""

    def __init__(self, path: Path, benches: Benches, linger: float = LINGER) -> None:
        self._path = path
        self._benches = benches
        self._linger = linger
        self._conversations: set[Conversation] = set()
        self._alone_since = time.monotonic()
        self._own = 0
        self._owner = Owner(fatal=partial(end_if_fatal, self._conversations, grace=LAST_WORD))

    def serve(self) -> None:
        """Until nobody comes any more, which ends the process."""
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(self._path))
            self._own = self._path.stat().st_ino
            # Before it listens: whoever may connect commands the engine.
            self._path.chmod(0o600)
            listening.listen()
            threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
            threading.Thread(target=self._watch, daemon=True).start()
            self._owner.serve()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        server = Server(self._benches.factory_for, self._benches.open)
        with connection, connection.makefile("rb") as source:
            sink = _Unblocked(connection)
            one = Conversation(source, sink, server, self._owner, partial(hang_up, connection))
            self._conversations.add(one)
            try:
                one.read()
                one.close()
            finally:  # whatever an engine says to it: the host would never be alone again
                sink.close()
                self._alone_since = time.monotonic()  # first: the watch ends a host without conversations by it
                self._conversations.discard(one)

    def _watch(self) -> None:
        """End a process that nobody needs, or whose engine hangs: each daemon sees that by itself, but would kill only
        what it has started."""
        dog = Watchdog(time.monotonic())
        while True:
            time.sleep(min(1.0, self._linger))
            now, owner = time.monotonic(), self._owner
            # This thread hears itself: of its own process only the engine's thread can hang.
            dog.heard(now)
            dog.pong(now, owner.beats, owner.busy)
            if hangs := dog.look(now, cpu_seconds(os.getpid()) if dog.doubts(now) else None):
                # Nothing can be closed in good order: that is the work of the thread that hangs.
                log("host.ends", why=hangs)
                os._exit(1)
            if not self._conversations and now - self._alone_since > self._linger:
                self._end()

    def _end(self) -> None:
        """Unless a daemon is about to come: it holds the lock while it looks for us."""
        try:
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Looked at again under the lock: a daemon may have come in the meantime.
                if self._conversations:
                    return
                # Another host listens there by now if somebody took ours away.
                if self._path.stat().st_ino == self._own:
                    self._path.unlink()
                os._exit(0)
        except FileNotFoundError:  # systems take the directory away when a user logs out: nobody finds us any more
            os._exit(0)
        except OSError:  # mostly the lock is held; looked at again soon
            return


def main() -> None:
    """Serve until nobody needs it."""
    parser = argparse.ArgumentParser(prog="python -m node.inference.host", description=__doc__)
    parser.add_argument("socket", type=Path)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--linger", type=float, default=LINGER)
    chosen, engine = parser.parse_known_args()
    Host(chosen.socket, Benches(wish_from(engine), chosen.runs), chosen.linger).serve()


if __name__ == "__main__":
    main()
