"""The process around a confined guest: `python -m node.sandbox.confined.host`, frames on standard input and output.

No stranger's code ever runs in it, and it never imports what it serves: a server with the module in it must be allowed
to fork, so the module could fork, too, and seccomp cannot count. Every call is a fork that first goes behind the walls
and only then imports the entry module; what it prints goes to memory files of bounded size, what it replies into a
pipe, and how it ended is what the kernel says.
"""

import gc
import importlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

from node.sandbox import wire
from node.sandbox.base import CallStatus
from node.sandbox.calls import STDIN, STDOUT, gather, killed, serve
from node.sandbox.confined import libc, walls
from node.sandbox.guest import loop
from node.sandbox.wire import replied

PREPARED = (
    "bisect collections copy dataclasses datetime decimal fractions functools heapq itertools json math operator "
    "random re statistics string typing"
)
"""Imported once, before any fork."""
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP)


@dataclass(frozen=True, slots=True)
class _Wires:
    """What connects a call with the server: memory files for the three streams, a pipe for the reply."""

    stdin: int
    stdout: int
    stderr: int
    hear: int
    reply: int

    def close(self) -> None:
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


class ConfinedServer:
    """directory: where the files of the entry lie."""

    def __init__(self, load: wire.LoadOrder, directory: Path) -> None:
        self._load = load
        self._readable = [*walls.stdlib_directories(), directory]
        self._path = [str(directory), *(path for path in sys.path if _is_stdlib(path))]

    def ask(self, request: wire.SandboxRequest) -> wire.GuestEnding:
        """One call, in a fork. Raises OSError where this machine cannot fork."""
        if request.session:
            return wire.GuestEnding("", error="a session needs the WASI sandbox")
        hear, reply = os.pipe()
        wires = _Wires(_memory_file(request.stdin), _memory_file(), _memory_file(), hear, reply)
        try:
            server = os.getpid()
            try:
                child = os.fork()
            except OSError:
                os.close(hear)
                os.close(reply)
                raise
            if child == 0:
                self._call(request, wires, server)
            os.close(reply)
            return self._heard(child, wires, request.fuel)
        finally:
            wires.close()

    def _call(self, request: wire.SandboxRequest, wires: _Wires, server: int) -> NoReturn:
        """The fork: behind the walls, then import, call, reply."""
        code = 70
        try:
            libc.die_with(server)
            for number, descriptor in enumerate((wires.stdin, wires.stdout, wires.stderr)):
                os.dup2(descriptor, number)
            _leave_only_the_guest(self._path)
            walls.confine(self._readable, self._load.memory_mib, self._load.output_bytes, request.fuel, wires.reply)
            loop.tell(wires.reply, b"!")  # the walls stand: what comes from here on is the guest's
            loop.tell(wires.reply, _answer(self._load.entry, request.body))
            code = 0
        finally:
            # Whatever happens, a fork never returns into the server's code.
            os._exit(code)

    def _heard(self, child: int, wires: _Wires, fuel: int) -> wire.GuestEnding:
        try:
            # The mark of the walls is one byte. One more than the limit shows that a reply is too long.
            reply = gather(wires.hear, self._load.seconds, self._load.output_bytes + 2)
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return wire.GuestEnding("", error=f"it took more than {self._load.seconds:g} s")
        finally:
            os.close(wires.hear)
        # It still writes to a pipe that nobody reads: without this, wait4 would wait for ever.
        if len(reply) > self._load.output_bytes + 1:
            os.kill(child, signal.SIGKILL)
        _, status, usage = os.wait4(child, 0)
        if not reply.startswith(b"!"):
            return wire.GuestEnding("", error=f"the walls could not be put up: {killed(status)}")
        # The hard limit of CPU time ends it by SIGKILL, as a lack of memory does: the time tells which.
        slow = usage.ru_utime + usage.ru_stime >= walls.cpu_seconds(fuel)
        limit = self._load.output_bytes
        printed, complained = (os.pread(file, limit + 1, 0) for file in (wires.stdout, wires.stderr))
        return _ending(reply[1:], status, slow, printed, complained, limit)


def main() -> None:
    try:
        load = wire.decode(wire.read(STDIN), wire.LoadOrder)
    except wire.Closed:
        return
    # Only the server comes to its end: forks end by os._exit.
    with tempfile.TemporaryDirectory(prefix="intellect-node-sandbox-", ignore_cleanup_errors=True) as directory:
        _serve(load, Path(directory))


def _serve(load: wire.LoadOrder, directory: Path) -> None:
    for name in PREPARED.split():
        importlib.import_module(name)
    for path, data in load.files.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    walls.prepare()
    # What stands now is shared by all forks: a collection in a fork would copy every page.
    gc.freeze()
    server = ConfinedServer(load, directory)
    # Without a function the module is only imported: one that does not load is told here, once for all calls.
    loaded = server.ask(wire.SandboxRequest(b'["", []]', b"", load.load_fuel))
    if loaded.status != CallStatus.OK:
        wire.write(STDOUT, wire.encode(loaded))
        return
    serve(server.ask)


def _answer(entry: str, request: bytes) -> bytes:
    """The reply of a module that is imported now."""
    try:
        module = importlib.import_module(entry)
    except BaseException as error:
        return loop.failure(error)
    return loop.answer(module, request)


def _leave_only_the_guest(path: list[str]) -> None:
    """Modules of ours and of others are not for the guest to import; its own and Python's are."""
    gc.disable()
    own = {name for name in sys.modules if name.partition(".")[0] in ("node", "protocol", "msgspec")}
    for name in own:
        del sys.modules[name]
    sys.path[:] = path
    sys.argv[:] = [""]
    os.environ.clear()
    os.chdir("/")


def _is_stdlib(path: str) -> bool:
    place = Path(path).resolve()
    return place.name == "lib-dynload" or place in walls.stdlib_directories()


def _memory_file(content: bytes = b"") -> int:
    descriptor = os.memfd_create("stream")
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _ending(reply: bytes, status: int, slow: bool, printed: bytes, complained: bytes, limit: int) -> wire.GuestEnding:
    """What the kernel says of the process comes first, then what it replied."""
    if len(printed) + len(complained) > limit or len(reply) > limit:
        ending = wire.GuestEnding(CallStatus.TOO_LONG, error=f"more than {limit} bytes")
    elif os.WIFSIGNALED(status):
        ending = _signalled(os.WTERMSIG(status), slow)
    elif os.waitstatus_to_exitcode(status) or not reply:
        ending = wire.GuestEnding(CallStatus.EXITED, code=os.waitstatus_to_exitcode(status))
    else:
        ending = replied(reply)
    spare = max(limit - len(printed), 0)
    return msgspec.structs.replace(ending, printed=printed[:limit], complained=complained[:spare])


def _signalled(number: int, slow: bool) -> wire.GuestEnding:
    if number == signal.SIGXCPU or (slow and number == signal.SIGKILL):
        return wire.GuestEnding(CallStatus.OUT_OF_FUEL)
    if number in _CRASHES:
        return wire.GuestEnding(CallStatus.CRASHED, error=signal.Signals(number).name)
    # Ended from outside, by a lack of memory for example: another machine might tell.
    return wire.GuestEnding("", error=f"its process was ended by signal {number}")


if __name__ == "__main__":
    main()
