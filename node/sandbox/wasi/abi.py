"""Numbers and structures of WASI preview 1 (wasi_snapshot_preview1; wasi.dev, witx/typenames.witx)."""

import ctypes
import struct
from enum import IntEnum

from wasmtime import Memory, Store


class Errno(IntEnum):
    SUCCESS = 0
    BADF = 8
    EXIST = 20
    FAULT = 21
    INVAL = 28
    ISDIR = 31
    MFILE = 33
    NAMETOOLONG = 37
    NOENT = 44
    NOSPC = 51
    NOTDIR = 54
    NOTEMPTY = 55
    NOTSUP = 58
    ROFS = 69
    SPIPE = 70


class FileType(IntEnum):
    CHARACTER_DEVICE = 2
    DIRECTORY = 3
    REGULAR_FILE = 4


class WasiError(Exception):
    """What a function of the guest's system returns instead of 0."""

    def __init__(self, errno: Errno) -> None:
        super().__init__(errno.name)
        self.errno = errno


OPEN_CREATE, OPEN_DIRECTORY, OPEN_EXCLUSIVE, OPEN_TRUNCATE = 0b0001, 0b0010, 0b0100, 0b1000
APPEND = 0b0001
RIGHT_WRITE = 1 << 6

IOVEC = struct.Struct("<II")
PRESTAT = struct.Struct("<B3xI")
SIZE = struct.Struct("<I")
TIME = struct.Struct("<Q")
_FDSTAT = struct.Struct("<BxH4xQQ")
_FILESTAT = struct.Struct("<QQB7xQQQQQ")
_DIRENT = struct.Struct("<QQIB3x")
_SUBSCRIPTION = struct.Struct("<QB7xI4xQQH6x")
_EVENT = struct.Struct("<QHB21x")
SUBSCRIPTION_BYTES = _SUBSCRIPTION.size
CLOCK_EVENT = 0


def fdstat(kind: FileType) -> bytes:
    # Preview 1 names 30 rights. The guest's libc asks for them; what it may do is decided at each call.
    all_rights = (1 << 30) - 1
    return _FDSTAT.pack(kind, 0, all_rights, all_rights)


def filestat(inode: int, kind: FileType, size: int) -> bytes:
    """Of device 1, one link, never changed since 1970."""
    return _FILESTAT.pack(1, inode, kind, 1, size, 0, 0, 0)


def dirent(following: int, inode: int, kind: FileType, name: bytes) -> bytes:
    """following: the cookie with which a reader goes on behind this entry."""
    return _DIRENT.pack(following, inode, len(name), kind) + name


def clock_wait(subscription: bytes) -> tuple[int, int, bool] | None:
    """(user data, nanoseconds, whether these are a point in time) of a wait for a clock; None of any other wait."""
    userdata, kind, _, timeout, _, flags = _SUBSCRIPTION.unpack(subscription)
    absolute_time = 1
    return (userdata, timeout, bool(flags & absolute_time)) if kind == CLOCK_EVENT else None


def event(userdata: int) -> bytes:
    """A clock's wait is over."""
    return _EVENT.pack(userdata, Errno.SUCCESS, CLOCK_EVENT)


MAX_VECTORS = 1024


class GuestMemory:
    """Bytes at addresses. Raises WasiError(FAULT) for what does not lie in the guest's memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def attach(self, memory: Memory) -> None:
        """Before this there is none: a module has its memory when it has been given what it imports."""
        self._memory = memory

    @property
    def size(self) -> int:
        return self._memory.data_len(self._store)

    def read(self, address: int, size: int) -> bytes:
        return ctypes.string_at(self._at(address, size), size)

    def view(self) -> memoryview:
        """All of it, as it is now. Only until the guest runs on."""
        start = self._memory.data_ptr(self._store).contents
        return memoryview((ctypes.c_uint8 * self.size).from_address(ctypes.addressof(start))).cast("B")

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(self._at(address, len(data)), data, len(data))

    def vectors(self, address: int, count: int) -> list[tuple[int, int]]:
        """(address, length) of each part of a scattered read or write."""
        if count > MAX_VECTORS:
            raise WasiError(Errno.INVAL)
        return list(IOVEC.iter_unpack(self.read(address, count * IOVEC.size)))

    def gather(self, vectors: list[tuple[int, int]]) -> bytes:
        return b"".join(self.read(address, size) for address, size in vectors)

    def scatter(self, vectors: list[tuple[int, int]], data: bytes) -> None:
        """data: at most as long as all vectors together."""
        start = 0
        for address, size in vectors:
            if part := data[start : start + size]:
                self.write(address, part)
            start += size

    def _at(self, address: int, size: int) -> int:
        # Both are unsigned, and Python's sum does not wrap around, so this is the whole check.
        if address + size > self.size:
            raise WasiError(Errno.FAULT)
        # Asked each time: memory that grows may move.
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + address
