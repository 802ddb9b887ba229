"""The guest's memory as the host's functions see it: every address and length comes from the guest and is checked."""

import ctypes
from collections.abc import Iterator

from wasmtime import Memory, Store

from node.sandbox.wasi.abi import IOVEC, Errno, WasiError

MAX_VECTORS = 1024


class GuestMemory:
    """Bytes at addresses. Raises WasiError(FAULT) for what does not lie in the guest's memory."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store, self._memory = store, memory

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
        for address, part in _parts(vectors, data):
            self.write(address, part)

    def _at(self, address: int, size: int) -> int:
        if address + size > self.size:
            raise WasiError(Errno.FAULT)
        return ctypes.addressof(self._memory.data_ptr(self._store).contents) + address


def _parts(vectors: list[tuple[int, int]], data: bytes) -> Iterator[tuple[int, bytes]]:
    start = 0
    for address, size in vectors:
        part = data[start : start + size]
        if part:
            yield address, part
        start += size
