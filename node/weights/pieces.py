"""A file that is written and hashed in one pass: its bytes are not read again to become a blob.

Stretches may be written at once from several threads. Knows files and pieces; nothing of tensors.
"""

import os
from collections.abc import Iterable

from blake3 import blake3

from protocol.blobs import BlobInfo, choose_piece_size, describe_pieces, piece_count


class PiecedFile:
    """descriptor: open for reading and writing; size: bytes that the file will have."""

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._piece = choose_piece_size(size)
        self._hashes: list[bytes | None] = [None] * piece_count(size, self._piece)

    def write(self, offset: int, parts: Iterable[memoryview | bytes]) -> None:
        """Write parts one after another from `offset` on; hashes the pieces that lie wholly within them."""
        hasher = None
        for part in parts:
            view = memoryview(part)
            _write_all(self._descriptor, view, offset)
            while len(view):
                here = min(len(view), self._piece - offset % self._piece)
                if offset % self._piece == 0:
                    hasher = blake3()
                offset += here
                if hasher is not None:
                    hasher.update(view[:here])
                    if offset % self._piece == 0 or offset == self._size:
                        self._hashes[(offset - 1) // self._piece] = hasher.digest()
                view = view[here:]

    def describe(self) -> BlobInfo:
        """The blob that the file is, once all of it is written; reads what several stretches have a part in."""
        pieces = (self._read(place) if known is None else known for place, known in enumerate(self._hashes))
        return describe_pieces(self._size, self._piece, pieces)

    def _read(self, place: int) -> bytes:
        offset = place * self._piece
        return blake3(os.pread(self._descriptor, min(self._piece, self._size - offset), offset)).digest()


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while len(view):
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
