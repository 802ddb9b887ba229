"""One digest for a tensor and for the blob that its image is: no byte is hashed for both.

An image is a header and its tensors without gaps; as a blob it is cut into pieces, and each piece has its hash. The
pieces' borders cut a tensor into stretches:

    digest of a tensor = BLAKE3-derive-key("intellect-node tensor v1", BLAKE3 of each of its stretches, in order)

A stretch that is a whole piece has that piece's own hash. Only pieces in which several tensors, or the header, have a
part are hashed beside their stretches. An empty tensor has no stretch.

So a digest depends on where its tensor lies, which follows from the names and shapes of all tensors; the weights root
names these as well, and binds every byte. Pure: bytes in, hashes out; knows sizes, but no names and no shapes.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from blake3 import blake3

from protocol.blobs import BlobInfo, choose_piece_size, describe_pieces

_TENSOR = "intellect-node tensor v1"


class ByteRange(NamedTuple):
    """Bytes `start` to `end` of a tensor, which lie in one piece; whole: they are all of it."""

    start: int
    end: int
    piece: int
    whole: bool


class HashedTensor(NamedTuple):
    """digest: 32 bytes. pieces: hashes of the pieces that lie wholly in the tensor. head, tail: its bytes in the piece
    that began before it, and in the one that ends after it."""

    digest: bytes
    head: bytes
    pieces: tuple[bytes, ...]
    tail: bytes


class Layout:
    """Where the tensors of an image lie and how its pieces cut them. header: what stands before the first one; sizes:
    bytes of each tensor. offsets and size: bytes, from the image's start."""

    def __init__(self, header: bytes, sizes: Sequence[int]) -> None:
        *offsets, self.size = accumulate(sizes, initial=len(header))
        self.header = header
        self.sizes = tuple(sizes)
        self.offsets = tuple(offsets)
        # Cut as any blob of this size, or the image's own hashes could not serve.
        self.piece_size = choose_piece_size(self.size)

    def stretches(self, place: int) -> Iterator[ByteRange]:
        """Those of the tensor at `place`, in order."""
        offset = self.offsets[place]
        at, end = offset, offset + self.sizes[place]
        while at < end:
            piece = at // self.piece_size
            begins, ends = piece * self.piece_size, min((piece + 1) * self.piece_size, self.size)
            upto = min(end, ends)
            yield ByteRange(at - offset, upto - offset, piece, (at, upto) == (begins, ends))
            at = upto

    def hashed(self, place: int, data: bytes | memoryview) -> HashedTensor:
        """The tensor at `place`, whose bytes are `data`."""
        hasher = TensorHasher(self, place)
        hasher.update(data)
        return hasher.finish()

    def digest(self, place: int, data: bytes | memoryview, pieces: Sequence[bytes]) -> bytes:
        """The digest of the tensor at `place`, whose bytes are `data`. pieces: hashes of the image's pieces, of which
        those that the tensor shares are not looked at."""
        view = memoryview(data)
        return _digest(
            pieces[each.piece] if each.whole else blake3(view[each.start : each.end]).digest()
            for each in self.stretches(place)
        )


class TensorHasher:
    """A tensor's bytes, one part after another. Tensors of one image may be hashed at the same time."""

    def __init__(self, layout: Layout, place: int) -> None:
        self._left = layout.sizes[place]
        self._stretches = layout.stretches(place)
        self._now: ByteRange | None = None
        self._filled = 0
        self._hasher = blake3()
        self._hashes: list[bytes] = []
        self._pieces: list[bytes] = []
        self._shared = (bytearray(), bytearray())
        self._begins_within = layout.offsets[place] % layout.piece_size != 0

    def update(self, data: bytes | memoryview) -> None:
        """The next bytes. Raises ValueError beyond the tensor's end."""
        view = memoryview(data)
        if len(view) > self._left:
            raise ValueError(f"{len(view)} bytes where {self._left} are left of a tensor")
        self._left -= len(view)
        while len(view):
            now = self._now or next(self._stretches)
            room = now.end - now.start - self._filled
            self._take(now, view[:room], room)
            view = view[room:]

    def _take(self, now: ByteRange, part: memoryview, room: int) -> None:
        self._now, self._filled = now, self._filled + len(part)
        if not now.whole:
            # At most one stretch at each end is shared; a tensor inside one piece has but one.
            self._shared[not (self._begins_within and now.start == 0)].extend(part)
        if len(part) == now.end - now.start:  # at once, as most are: no hasher of its own
            self._end(now, blake3(part).digest())
            return
        self._hasher.update(part)
        if len(part) == room:
            self._end(now, self._hasher.digest())
            self._hasher = blake3()

    def _end(self, now: ByteRange, found: bytes) -> None:
        self._hashes.append(found)
        if now.whole:
            self._pieces.append(found)
        self._now, self._filled = None, 0

    def finish(self) -> HashedTensor:
        """Raises ValueError if bytes are missing."""
        if self._left:
            raise ValueError(f"a tensor lacks {self._left} bytes")
        head, tail = map(bytes, self._shared)
        return HashedTensor(_digest(self._hashes), head, tuple(self._pieces), tail)


class ImageHasher:
    """The blob that an image is, from its hashed tensors in their order. Keeps nothing of them but piece hashes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._at = 0
        self._hasher = blake3()
        self._pieces: list[bytes] = []
        self._share(layout.header)

    def add(self, tensor: HashedTensor) -> None:
        """The next one."""
        self._share(tensor.head)
        self._pieces.extend(tensor.pieces)
        self._at = min(self._at + len(tensor.pieces) * self._layout.piece_size, self._layout.size)
        self._share(tensor.tail)

    def _share(self, data: bytes) -> None:
        """Bytes of pieces that belong to several."""
        view, layout = memoryview(data), self._layout
        while len(view):
            end = min(self._at - self._at % layout.piece_size + layout.piece_size, layout.size)
            part = view[: end - self._at]
            self._hasher.update(part)
            self._at += len(part)
            view = view[len(part) :]
            if self._at == end:
                self._pieces.append(self._hasher.digest())
                self._hasher = blake3()

    def blob(self) -> BlobInfo:
        """Raises ValueError before the last tensor was added."""
        if self._at != self._layout.size:
            raise ValueError(f"an image lacks {self._layout.size - self._at} bytes")
        return describe_pieces(self._layout.size, self._layout.piece_size, self._pieces)


def _digest(hashes: Iterable[bytes]) -> bytes:
    return blake3(b"".join(hashes), derive_key_context=_TENSOR).digest()
