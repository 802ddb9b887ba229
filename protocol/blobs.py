"""Blobs: anything too big for gossip, named by a BLAKE3 root over its pieces.

root = BLAKE3-derive-key("intellect-node blob v1", size u64le | piece_size u32le | piece hashes).
Whoever holds the root can check the piece list, and with the list each piece by itself.
Nothing here reads files or sockets.
"""

from collections.abc import Iterable

import msgspec
from blake3 import blake3

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError

DEFAULT_PIECE_SIZE = 256 * 1024
# Below it the list of hashes would be a noticeable part of the blob itself.
MIN_PIECE_SIZE = 16 * 1024
MAX_PIECE_SIZE = 64 * 1024 * 1024
MAX_PIECES = 65_536
# An image of 500 billion parameters. Everything is done piece by piece, so a larger blob costs nobody more memory: what
# a stranger's may have is told by whoever asks for it, and bounded by the quota (ADR 120).
MAX_BLOB_SIZE = 1024**4
# 32 bytes of hash and msgpack's two or three before each.
MAX_INFO_BYTES = 40 * MAX_PIECES + 256
_CONTEXT = "intellect-node blob v1"


class BlobInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """root: 32 bytes; size and piece_size: bytes; pieces: one 32-byte BLAKE3 hash per piece."""

    root: bytes
    size: int
    piece_size: int
    pieces: tuple[bytes, ...]

    def check(self) -> None:
        """Raise ProtocolError unless the list is well formed and hashes to the root."""
        if not (0 <= self.size <= MAX_BLOB_SIZE and MIN_PIECE_SIZE <= self.piece_size <= MAX_PIECE_SIZE):
            raise ProtocolError("bad piece list", f"size {self.size} or piece size {self.piece_size} out of bounds")
        if len(self.pieces) != piece_count(self.size, self.piece_size) or len(self.pieces) > MAX_PIECES:
            raise ProtocolError("bad piece list", f"{len(self.pieces)} pieces do not make {self.size} bytes")
        if any(len(piece) != 32 for piece in self.pieces):
            raise ProtocolError("bad piece list", "a piece hash is not 32 bytes")
        if root_of(self.size, self.piece_size, self.pieces) != self.root:
            raise ProtocolError("bad piece list", "it does not hash to the blob's root")

    def span(self, index: int) -> tuple[int, int]:
        """(offset, length) in bytes of piece `index`."""
        offset = index * self.piece_size
        return offset, min(self.piece_size, self.size - offset)


def piece_count(size: int, piece_size: int) -> int:
    return -(-size // piece_size)


def choose_piece_size(size: int) -> int:
    """256 KiB, doubled until the list fits MAX_PIECES."""
    piece_size = DEFAULT_PIECE_SIZE
    while piece_count(size, piece_size) > MAX_PIECES:
        piece_size *= 2
    return piece_size


def root_of(size: int, piece_size: int, pieces: Iterable[bytes]) -> bytes:
    # Sizes are hashed in: the same pieces cut otherwise, or with a shorter end, are another root.
    header = size.to_bytes(8, "little") + piece_size.to_bytes(4, "little")
    return blake3(header + b"".join(pieces), derive_key_context=_CONTEXT).digest()


def describe_pieces(size: int, piece_size: int, pieces: Iterable[bytes]) -> BlobInfo:
    """The info of a blob whose piece hashes were computed elsewhere (from a file, in a thread)."""
    hashes = tuple(pieces)
    return BlobInfo(root_of(size, piece_size, hashes), size, piece_size, hashes)


def describe(data: bytes | memoryview, piece_size: int | None = None) -> BlobInfo:
    """The info of a blob held in memory."""
    step = piece_size or choose_piece_size(len(data))
    view = memoryview(data)
    return describe_pieces(len(data), step, (blake3(view[i : i + step]).digest() for i in range(0, len(data), step)))


def verify_piece(info: BlobInfo, index: int, data: bytes) -> bool:
    """Whether `data` is piece `index`."""
    # The length before the hash: hashing is what a stranger with too many bytes would like us to do.
    if not 0 <= index < len(info.pieces) or len(data) != info.span(index)[1]:
        return False
    # Piece by piece, so that the one who sent a wrong one is known at once, and only it is fetched again.
    return blake3(data).digest() == info.pieces[index]


def encode_info(info: BlobInfo) -> bytes:
    return msgspec.msgpack.encode(info)


def decode_info(data: bytes, root: bytes) -> BlobInfo:
    """Parse and check a piece list for `root`; raises ProtocolError."""
    info = decode_msgpack(data, BlobInfo, limit=MAX_INFO_BYTES, error=ProtocolError, what="bad piece list")
    if info.root != root:
        raise ProtocolError("bad piece list", "it is for another blob")
    info.check()
    return info
