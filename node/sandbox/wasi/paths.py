"""WASI's functions that are given a path below a directory."""

from node.sandbox.wasi import abi
from node.sandbox.wasi.abi import Errno, GuestMemory, WasiError
from node.sandbox.wasi.descriptors import CHANNEL, Descriptors
from node.sandbox.wasi.files import Disk, GuestFile, find, find_place

CHANNEL_NAME = ".channel"
"""What the guest opens in its directory to talk to the host; it gets the descriptor CHANNEL."""


class Paths:
    """As of `System`: the public methods are WASI's functions."""

    def __init__(self, memory: GuestMemory, opened: Descriptors, disk: Disk) -> None:
        self._memory, self._opened, self._disk = memory, opened, disk

    def path_open(
        self, at: int, _: int, path: int, size: int, flags: int, rights: int, __: int, how: int, result: int
    ) -> None:
        # The one name outside the disk, for the loop inside that asks for work.
        if self._memory.read(path, min(size, 4096)) == CHANNEL_NAME.encode():
            self._memory.write(result, abi.SIZE.pack(CHANNEL))
            return
        self._opened.room()
        node = self._found_or_made(at, path, size, flags)
        if node.children is None and rights & abi.RIGHT_WRITE and not node.writable:
            raise WasiError(Errno.ROFS)
        if flags & abi.OPEN_DIRECTORY and node.children is None:
            raise WasiError(Errno.NOTDIR)
        if flags & abi.OPEN_TRUNCATE:
            self._disk.resize(node, 0)
        self._memory.write(result, abi.SIZE.pack(self._opened.begin(node, append=bool(how & abi.APPEND))))

    def _found_or_made(self, at: int, path: int, size: int, flags: int) -> GuestFile:
        try:
            node = self._find(at, path, size)
        except WasiError as error:
            if error.errno is not Errno.NOENT or not flags & abi.OPEN_CREATE:
                raise
            return self._disk.create(*self._place(at, path, size), directory=False)
        if flags & abi.OPEN_CREATE and flags & abi.OPEN_EXCLUSIVE:
            raise WasiError(Errno.EXIST)
        return node

    def path_create_directory(self, at: int, path: int, size: int) -> None:
        self._disk.create(*self._place(at, path, size), directory=True)

    def path_remove_directory(self, at: int, path: int, size: int) -> None:
        self._disk.remove(*self._place(at, path, size), directory=True)

    def path_unlink_file(self, at: int, path: int, size: int) -> None:
        self._disk.remove(*self._place(at, path, size), directory=False)

    def path_rename(self, at: int, path: int, size: int, to: int, new: int, new_size: int) -> None:
        self._disk.rename(*self._place(at, path, size), *self._place(to, new, new_size))

    def path_filestat_get(self, at: int, _: int, path: int, size: int, result: int) -> None:
        node = self._find(at, path, size)
        self._memory.write(result, abi.filestat(node.inode, node.kind, len(node.data)))

    def path_readlink(self, at: int, path: int, size: int, _: int, __: int, ___: int) -> None:
        # There are no links, and INVAL is what POSIX answers for a file that is none.
        self._find(at, path, size)
        raise WasiError(Errno.INVAL)

    def _find(self, at: int, path: int, size: int) -> GuestFile:
        return find(*self._path(at, path, size))

    def _place(self, at: int, path: int, size: int) -> tuple[GuestFile, str]:
        return find_place(*self._path(at, path, size))

    def _path(self, at: int, path: int, size: int) -> tuple[GuestFile, bytes]:
        start = self._opened.node(at)
        if start is None:
            raise WasiError(Errno.NOTDIR)
        if size > 4096:
            raise WasiError(Errno.NOENT)
        return start, self._memory.read(path, size)
