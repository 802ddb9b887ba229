"""The numbers by which a guest knows its streams and what it has opened."""

from node.sandbox.wasi.abi import Errno, FileType, WasiError
from node.sandbox.wasi.files import GuestFile, OpenFile

STDIN, STDOUT, STDERR, ROOT, CHANNEL = range(5)
MAX_OPEN = 256


class Descriptors:
    """root: the directory that is open from the beginning."""

    def __init__(self, root: GuestFile) -> None:
        self._root = root
        self._open: dict[int, OpenFile] = {}

    def only_root(self, descriptor: int) -> None:
        if descriptor != ROOT:
            raise WasiError(Errno.BADF)

    def node(self, descriptor: int) -> GuestFile | None:
        """None of a standard stream and the channel."""
        if descriptor == ROOT:
            return self._root
        return None if 0 <= descriptor <= CHANNEL else self.file(descriptor).node

    def kind(self, descriptor: int) -> FileType:
        node = self.node(descriptor)
        return node.kind if node else FileType.CHARACTER_DEVICE

    def file(self, descriptor: int) -> OpenFile:
        if descriptor not in self._open:
            raise WasiError(Errno.ISDIR if descriptor == ROOT else Errno.BADF)
        return self._open[descriptor]

    def begin(self, node: GuestFile, *, append: bool) -> int:
        """Its number. There must be `room`."""
        # The lowest free one, as POSIX promises: a guest may see the number, and it must be the same everywhere.
        descriptor = next(number for number in range(CHANNEL + 1, CHANNEL + 2 + MAX_OPEN) if number not in self._open)
        self._open[descriptor] = OpenFile(node, append=append)
        node.opened += 1
        return descriptor

    def room(self) -> None:
        """Raises WasiError where too many are open."""
        if len(self._open) >= MAX_OPEN:
            raise WasiError(Errno.MFILE)

    def end(self, descriptor: int) -> GuestFile:
        """What it was of."""
        node = self.file(descriptor).node
        del self._open[descriptor]
        return node

    def state(self) -> list[tuple[int, int, int]]:
        """All that a later call could notice of them."""
        return sorted((number, one.node.inode, one.offset) for number, one in self._open.items())
