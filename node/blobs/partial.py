"""An unfinished blob: the pieces that have arrived, each verified before it is written and before it is handed on."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import trio
from blake3 import blake3
from numpy.typing import NDArray

from node.blobs.errors import BlobUnavailable
from node.blobs.files import NotWhole, damage, disk_errors, join, write_fully
from protocol.blobs import BlobInfo


class Partial:
    """have: indices of the pieces that are here; closed: told once nobody writes here any more; wrote: told how many
    bytes were written."""

    def __init__(
        self,
        info: BlobInfo,
        descriptor: int,
        have: set[int],
        limiter: trio.CapacityLimiter,
        closed: Callable[["Partial"], None],
        wrote: Callable[[int], None],
    ) -> None:
        self.info = info
        self.have = have
        self.descriptor = descriptor
        self._limiter = limiter
        self._told = closed
        self._wrote = wrote
        self._users = 0
        self._closed = False

    @property
    def complete(self) -> bool:
        return len(self.have) == len(self.info.pieces)

    @property
    def busy(self) -> bool:
        """Whether a thread reads or writes here still."""
        return self._users > 0

    def flags(self) -> NDArray[np.bool_]:
        """bool[pieces]: which are here."""
        flags = np.zeros(len(self.info.pieces), np.bool_)
        flags[list(self.have)] = True
        return flags

    async def write(self, first: int, data: bytes) -> int:
        """Verify and write consecutive pieces from `first` on; returns how many of them were good before a bad one.

        Raises StoreFull.
        """
        count = min(-(-len(data) // self.info.piece_size), len(self.info.pieces) - first)
        good = await self.write_pieces(range(first, first + count), memoryview(data))
        return next((number for number in range(count) if first + number not in good), count)

    async def write_pieces(self, pieces: Iterable[int], data: memoryview) -> list[int]:
        """Verify and write `pieces`, whose bytes follow one another in `data`; returns the good ones.

        A piece that is there already is not written again. Raises StoreFull.
        """
        with self._in_use():
            good: list[int] = []
            try:
                await trio.to_thread.run_sync(self._write, list(pieces), data, good, limiter=self._limiter)
            finally:
                self._wrote(sum(self.info.span(piece)[1] for piece in {*good} - self.have))
                self.have.update(good)  # what was written before the disk was full is not fetched again
        return good

    def _write(self, pieces: list[int], data: memoryview, good: list[int]) -> None:
        for piece in pieces:
            offset, length = self.info.span(piece)
            part, data = data[:length], data[length:]
            # The hash is taken of what is written next: there is no moment between the check and the write.
            if len(part) != length or blake3(part).digest() != self.info.pieces[piece]:
                continue
            if piece not in self.have:
                with disk_errors():
                    write_fully(self.descriptor, part, offset)
            good.append(piece)

    async def read_pieces(self, pieces: list[int], header: bytes = b"") -> bytes:
        """`header`, then pieces that are there. Raises BlobUnavailable where the disk has made another of one."""
        with self._in_use():
            try:
                return await trio.to_thread.run_sync(self._read, pieces, header, limiter=self._limiter)
            except NotWhole as error:
                raise BlobUnavailable(self.info.root, f"on this disk, {error}") from error

    def _read(self, pieces: list[int], header: bytes) -> bytes:
        with damage():
            return join(self.descriptor, self.info, pieces, header)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        if self._closed:
            raise BlobUnavailable(self.info.root, "the transfer has ended")
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            # A thread may still be writing: closing under it would let its bytes go into another file of that number.
            if self._closed and not self._users:
                os.close(self.descriptor)

    def close(self) -> None:
        """Let go of the file; it stays for the next attempt."""
        if not self._closed:
            self._closed = True
            if not self._users:
                os.close(self.descriptor)
            self._told(self)
