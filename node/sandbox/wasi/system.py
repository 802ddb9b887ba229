"""The guest's operating system: every function of WASI that it may import, each determined by what came before.

Files are those of `files`; nothing can be written but standard output and error, and in a session the disk.
Every function costs fuel, because the host's work for the guest must be bounded by the guest's limit, too.
"""

from collections.abc import Callable

from blake3 import blake3
from wasmtime import Linker, Memory, Module, Store, ValType

from node.sandbox.wasi.abi import Errno, GuestMemory, WasiError
from node.sandbox.wasi.channel import Channel
from node.sandbox.wasi.descriptors import Descriptors
from node.sandbox.wasi.files import Disk, GuestFile
from node.sandbox.wasi.meter import CALL_FUEL, FuelMeter
from node.sandbox.wasi.paths import Paths
from node.sandbox.wasi.streams import Streams
from node.sandbox.wasi.surroundings import Surroundings

FIXED = {
    **dict.fromkeys("fd_allocate fd_filestat_set_times path_filestat_set_times".split(), Errno.ROFS),
    **dict.fromkeys("path_link path_symlink".split(), Errno.ROFS),
    **dict.fromkeys("sock_accept sock_recv sock_send sock_shutdown".split(), Errno.NOTSUP),
    **dict.fromkeys("fd_advise fd_datasync fd_sync fd_fdstat_set_flags sched_yield".split(), Errno.SUCCESS),
}


class System:
    """The functions bear their WASI names; their arguments are the guest's, so nothing about them is taken for granted.

    Integers of 32 bits come unsigned, those of 64 bits signed.
    """

    def __init__(self, store: Store, root: GuestFile, channel: Channel, arguments: list[str], disk: Disk) -> None:
        self._memory, self._meter, self._opened = GuestMemory(store), FuelMeter(store), Descriptors(root)
        self._disk = disk
        self._groups = (
            Surroundings(self._memory, self._meter, arguments),
            Streams(self._memory, self._meter, self._opened, channel, disk),
            Paths(self._memory, self._opened, disk),
        )

    def link(self, linker: Linker, module: Module) -> None:
        """Give the module what it imports. Raises LookupError for what this system has not."""
        for wanted in module.imports:
            name = wanted.name or ""
            narrow = [kind == ValType.i32() for kind in wanted.type.params]  # type: ignore[union-attr]
            linker.define_func(wanted.module, name, wanted.type, self.function(name, narrow))  # type: ignore[arg-type]

    def attach(self, memory: Memory) -> None:
        self._memory.attach(memory)

    @property
    def memory_size(self) -> int:
        """Bytes that the guest has by now."""
        return self._memory.size

    def fill(self, fuel: int) -> None:
        """From now on the guest may use `fuel`."""
        self._meter.fill(fuel)

    @property
    def used(self) -> int:
        """Of the fuel that was last given."""
        return self._meter.used

    def state(self) -> bytes:
        """32 bytes: a hash of the guest's memory, of its disk, and of what these functions remember of it."""
        hasher = blake3(self._memory.view())
        # Whatever a later call could notice is in the hash, or two sessions that differ would count as equal.
        hasher.update(repr((*self._meter.state(), self._opened.state())).encode())
        for depth, name, content in self._disk.content():
            about = repr((depth, name, None if content is None else len(content)))
            hasher.update(about.encode("utf-8", "surrogatepass") + (content or b""))
        return hasher.digest()

    def function(self, name: str, narrow: list[bool]) -> Callable[..., int | None]:
        """The one of that name, as the guest calls it. narrow: which of its arguments have 32 bits."""
        fixed = FIXED.get(name)
        handler = self.handler(name) if fixed is None else None
        charge, done = self._meter.charge, int(Errno.SUCCESS)

        def call(*arguments: int) -> int | None:
            charge(CALL_FUEL)
            if handler is None:
                return fixed
            try:
                handler(
                    *(value & 0xFFFFFFFF if short else value for value, short in zip(arguments, narrow, strict=True))
                )
            except WasiError as error:
                return int(error.errno)
            return done

        return call

    def handler(self, name: str) -> Callable[..., None]:
        """What does it, for nothing. Raises LookupError."""
        for group in self._groups:
            if not name.startswith("_") and hasattr(group, name):
                return getattr(group, name)
        raise LookupError(f"the interpreter wants {name!r}, which this sandbox has not")
