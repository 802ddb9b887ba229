"""The process around a WASI guest: `python -m node.sandbox.wasi.host`, frames on standard input and output.

Has one thread, because it forks with the guest's calls on its stack: everything that the fork needs (stack, memory,
wasmtime's signal handlers) is its own copy, and there is nobody else whose lock it could inherit.
"""

import gc
import mmap
import resource
from collections.abc import Callable, Mapping
from pathlib import Path

from wasmtime import Engine, Func, Linker, Memory, Module, Store, Trap, TrapCode

from node.sandbox import guest as guest_modules
from node.sandbox import wire
from node.sandbox.base import CallStatus
from node.sandbox.calls import STDIN, ForkingServer
from node.sandbox.confined import walls
from node.sandbox.wasi.channel import Channel, Exited, GuestEnd, GuestFinished, TooLong
from node.sandbox.wasi.engine import load_module
from node.sandbox.wasi.files import Disk, make_tree
from node.sandbox.wasi.paths import CHANNEL_NAME
from node.sandbox.wasi.settings import STACK_BYTES
from node.sandbox.wasi.streams import DIRECTORY
from node.sandbox.wasi.system import System
from node.sandbox.wire import replied


def main() -> None:
    try:
        load = wire.decode(wire.read(STDIN), wire.LoadOrder)
    except wire.Closed:
        return
    # A reply and all prints may each be as long as the limit. The rest is for the frame and an error.
    server = ForkingServer(load.seconds, 2 * load.output_bytes + (1 << 16), walls.second_line)
    server.answer(_run(load, server))


def _run(load: wire.LoadOrder, server: ForkingServer) -> wire.GuestEnding:
    try:
        _limit(load.memory_mib)
        if not _stack_is_enough(STACK_BYTES + (8 << 20)):
            return wire.GuestEnding(
                "", error=f"the hard limit of the stack is below {STACK_BYTES >> 20} MiB (ulimit -Hs)"
            )
        guest = GuestModule(*load_module(Path(load.runtime)), load, server.next, server.go_on)
        walls.prepare()
        # Before the first fork: what stands now is shared by all calls.
        gc.freeze()
        return guest.run()
    except MemoryError:
        return wire.GuestEnding("", error="this machine has no memory left")
    except Exception as error:  # the host's own trouble is never the guest's outcome
        return wire.GuestEnding("", error=f"{type(error).__name__}: {error}"[:400])


def _limit(memory_mib: int) -> None:
    """The second line behind the guest's own limits."""
    data = (memory_mib + 256) << 20  # what this process itself may use beside the guest's memory
    for what, most in ((resource.RLIMIT_DATA, data), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(what, (most, most))


def _stack_is_enough(needed: int) -> bool:
    """Sets this process's stack limit to `needed` bytes where it is less; False where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    # The main thread's stack grows when it is touched, so a limit that is raised now still counts.
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    if hard != resource.RLIM_INFINITY and hard < needed:
        return False
    resource.setrlimit(resource.RLIMIT_STACK, (needed, hard))
    return True


# Its text is an argument of the guest: any change to it, of a comment too, moves addresses and fuel.
LOOP = Path(guest_modules.__file__ or "").with_name("loop.py")
FLAGS = ["-s", "-S", "-B"]
DISK = "work"
"""The one folder, below the guest's directory, that a session may write to."""


class GuestModule:
    """A module whose code has not begun. Raises ValueError for files that are no tree."""

    def __init__(
        self,
        engine: Engine,
        module: Module,
        load: wire.LoadOrder,
        next_request: Callable[[], wire.SandboxRequest],
        go_on: Callable[[wire.GuestEnding], wire.SandboxRequest],
    ) -> None:
        """go_on: says how a call of a session ended, and waits for its next."""
        self._load = load
        self._next, self._go_on = next_request, go_on
        self._in_session = False
        self._store = Store(engine)
        table_elements = 100_000
        self._store.set_limits(load.memory_mib << 20, table_elements, 1, 4, 1)
        self._channel = Channel(self._begin, self._again, load.output_bytes)
        program = ["-c", LOOP.read_text("utf-8"), load.entry, DIRECTORY, f"{DIRECTORY}/{CHANNEL_NAME}"]
        root = make_tree(load.files)
        disk = Disk(root, DISK, load.disk_bytes)
        self._system = System(self._store, root, self._channel, ["python", *FLAGS, *program], disk)
        # Before the module is there: without fuel its first instruction is a trap.
        self._system.fill(load.load_fuel)
        linker = Linker(engine)
        self._system.link(linker, module)
        exports: Mapping[str, object] = linker.instantiate(self._store, module).exports(self._store)
        start, memory = exports["_start"], exports["memory"]
        if not isinstance(start, Func) or not isinstance(memory, Memory):
            raise ValueError("the interpreter has no _start or no memory")
        self._start = start
        self._system.attach(memory)

    def run(self) -> wire.GuestEnding:
        """From the first instruction to the last: of a call, where one began meanwhile, else of the loading."""
        try:
            self._start(self._store)
            ending = self._ended(Exited(0))
        except GuestEnd as end:
            # Raised by the host's functions: wasmtime carries a Python exception through the guest's frames.
            ending = self._ended(end)
        except Trap as trap:
            ending = self._trapped(trap)
        return self._known(ending)

    def _known(self, ending: wire.GuestEnding) -> wire.GuestEnding:
        """Undecided where the host had no memory."""
        return ending if self._could_have_memory() else wire.GuestEnding("", error="this machine has no memory left")

    def _begin(self) -> wire.SandboxRequest:
        request = self._next()
        self._in_session = request.session > 0
        self._system.fill(request.fuel)
        return request

    def _again(self) -> wire.SandboxRequest:
        if not self._in_session:
            raise GuestFinished
        request = self._go_on(self._known(self._ended(GuestFinished())))
        self._system.fill(request.fuel)
        return request

    def _ended(self, end: GuestEnd) -> wire.GuestEnding:
        if isinstance(end, TooLong):
            return self._ending(CallStatus.TOO_LONG, error=f"more than {self._load.output_bytes} bytes")
        if self._channel.reply:
            said = replied(self._channel.reply)
            return self._ending(said.status, said.reply, said.error, said.code)
        return self._ending(CallStatus.EXITED, code=end.code if isinstance(end, Exited) else 0)

    def _trapped(self, trap: Trap) -> wire.GuestEnding:
        if trap.trap_code == TrapCode.OUT_OF_FUEL:
            return self._ending(CallStatus.OUT_OF_FUEL)
        if trap.trap_code == TrapCode.STACK_OVERFLOW:  # of native frames, whose size depends on the processor
            return wire.GuestEnding("", error="the native stack was too small")
        return self._ending(CallStatus.CRASHED, error=str(trap.trap_code.name if trap.trap_code else trap.message))

    def _ending(self, status: str, reply: bytes = b"", error: str = "", code: int = 0) -> wire.GuestEnding:
        channel = self._channel
        printed, complained = bytes(channel.printed), bytes(channel.complained)
        # Hashing all of the memory is dear, and only a session asks for it.
        state = self._system.state() if self._in_session else b""
        return wire.GuestEnding(status, reply, error, code, self._system.used, printed, complained, state)

    def _could_have_memory(self) -> bool:
        """Whether the host can still give all that the guest may have: else a MemoryError may have been the host's."""
        left = (self._load.memory_mib << 20) - self._system.memory_size
        try:
            mmap.mmap(-1, max(left, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except (OSError, MemoryError):
            return False
        return True


if __name__ == "__main__":
    main()
