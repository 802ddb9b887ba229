"""The process around a WASI guest: `python -m node.sandbox.wasi.host`, frames on standard input and output.

Has one thread, because it forks with the guest's calls on its stack: everything that the fork needs (stack, memory,
wasmtime's signal handlers) is its own copy, and there is nobody else whose lock it could inherit.
"""

import gc
import resource
from pathlib import Path

from node.sandbox import wire
from node.sandbox.calls import STDIN, ForkingServer
from node.sandbox.confined import walls
from node.sandbox.wasi.engine import load_module
from node.sandbox.wasi.guest import Guest
from node.sandbox.wasi.settings import STACK_BYTES

HOST_MIB = 256
"""What this process itself may use beside the guest's memory."""


def main() -> None:
    try:
        load = wire.decode(wire.read(STDIN), wire.Load)
    except wire.Closed:
        return
    server = ForkingServer(load.seconds, 2 * load.output_bytes + (1 << 16), walls.second_line)
    server.answer(_run(load, server))


def _run(load: wire.Load, server: ForkingServer) -> wire.Ending:
    try:
        _limit(load.memory_mib)
        if not _stack_is_enough(STACK_BYTES + (8 << 20)):
            return wire.Ending("", error=f"the hard limit of the stack is below {STACK_BYTES >> 20} MiB (ulimit -Hs)")
        guest = Guest(*load_module(Path(load.runtime)), load, server.next, server.go_on)
        walls.prepare()
        gc.freeze()
        return guest.run()
    except MemoryError:
        return wire.Ending("", error="this machine has no memory left")
    except Exception as error:  # the host's own trouble is never the guest's outcome
        return wire.Ending("", error=f"{type(error).__name__}: {error}"[:400])


def _limit(memory_mib: int) -> None:
    """The second line behind the guest's own limits."""
    data = (memory_mib + HOST_MIB) << 20
    for what, most in ((resource.RLIMIT_DATA, data), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(what, (most, most))


def _stack_is_enough(needed: int) -> bool:
    """Sets this process's stack limit to `needed` bytes where it is less; False where it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return True
    if hard != resource.RLIM_INFINITY and hard < needed:
        return False
    resource.setrlimit(resource.RLIMIT_STACK, (needed, hard))
    return True


if __name__ == "__main__":
    main()
