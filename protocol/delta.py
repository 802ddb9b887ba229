"""Lossless patches between two versions of one bf16 tensor.

Between two steps of RL about one weight in a hundred changes its bf16 bits, mostly by one unit in the last place. A
patch says which (the gaps between changed positions, one or two bytes each) and by how much (steps along the order of
bf16 numbers, two to a byte; farther ones as 16-bit steps). Where most weights change, every element has its step and no
position is written; where that does not pay either, the new bits are. Each stretch of CHUNK elements takes the form
that is smallest. All but new bits can be taken back: a step is as good one way as the other.

    patch  := "IND" version | count u64 | changed u8 | chunk... (none where nothing is changed)
    chunk  := form u8 | nothing                       same
                      | changes u32, gaps, steps      sparse8, sparse16
                      | steps                         dense
                      | low bytes, high bytes         raw
    steps  := nibbles (step + 7; 15: see wide) | wide low bytes | wide high bytes

The order of bf16 numbers maps bit patterns to integers so that neighbours differ by one, -0 lies next to +0 and NaNs at
the ends; arithmetic is modulo 2^16, so every pattern has a step to every other. A patch does not say what it was made
for nor what it leads to: manifests do, and whoever applies it compares the result. Pure: bytes in, bytes out.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolError
from protocol.packed import PackedError, PackedReader, pack

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
Positions = NDArray[np.intp]

CHUNK = 1 << 22
"""Elements that are coded together: bounds the memory of both sides."""
WINDOW = 1 << 17
"""Elements that are handed out together: 256 KiB, which stay in the processor's cache, and never more than a piece."""
# 128 GiB of bf16: no tensor is larger.
MAX_ELEMENTS = 1 << 36
_MAGIC = b"IND\x03"
_HEADER = struct.Struct("<4sQB")
_COUNT = struct.Struct("<I")
_BYTE = struct.Struct("<B")
_SAME, _SPARSE8, _SPARSE16, _DENSE, _RAW = range(5)
_ZERO, _ONE, _SIGN, _TOP = np.uint16(0), np.uint16(1), np.uint16(15), np.uint16(0x8000)
# Steps of -7 to 7 fill fifteen of a nibble's values; the sixteenth says that the step is elsewhere.
_NEAR = 7
_FAR = 15


class PatchError(ProtocolError):
    """A patch that is malformed, or does not lead from this base to the tensor that it names."""

    def __init__(self, why: str) -> None:
        super().__init__("unusable patch", why, "fetch it again, or the whole policy instead")


def encode_patch(base: U16, target: U16) -> bytes:
    """The patch that turns `base` into `target`, uint16[n] bit patterns each. Raises PatchError: the lengths differ."""
    base, target = _flat(base), _flat(target)
    if base.size != target.size or base.size > MAX_ELEMENTS:
        raise PatchError(f"base and target have {base.size} and {target.size} elements")
    chunks = [_encode_chunk(base[span], target[span]) for span in _chunks(base.size)]
    if all(chunk == [_BYTE.pack(_SAME)] for chunk in chunks):
        return unchanged(base.size)
    return b"".join([_HEADER.pack(_MAGIC, base.size, True), *(part for chunk in chunks for part in chunk)])


def unchanged(count: int) -> bytes:
    """The patch that leaves a tensor of `count` elements as it is."""
    return _HEADER.pack(_MAGIC, count, False)


def is_unchanged(patch: bytes | memoryview, count: int) -> bool:
    """Whether a patch for `count` elements leaves a tensor as it is, and says so in the one way there is."""
    return len(patch) == _HEADER.size and bytes(patch) == unchanged(count)


def apply_patch(base: U16, patch: bytes | memoryview, *, out: U16 | None = None) -> U16:
    """The target, uint16[n], of a patch made for `base`; it is the caller who compares it with what it should be.

    out: where to put it, not `base` itself (a new array by default). Raises PatchError; it then holds nothing of use.
    """
    base = _flat(base)
    target = np.empty_like(base) if out is None else out
    at = 0
    for window in patched(base, [patch]):
        target[at : at + window.size] = window
        at += window.size
    return target


def patched(base: U16, patches: Sequence[bytes | memoryview], *, before: int = 0, back: bool = False) -> Iterator[U16]:
    """Window by window, uint16[WINDOW at most], what patches make of `base`, one applied after another; nothing is
    hashed. A window is overwritten by the next, so memory does not grow with the tensor. Raises PatchError.

    before: elements that stand before `base`, from where windows are counted: none reaches over a multiple of WINDOW.
    back: take patches back that led to `base`, the last one first; PatchError where one has new bits.
    """
    base = _flat(base)
    readers = [PackedReader(patch) for patch in patches]
    try:
        layers = _layers(readers, base.size)
        room = np.empty(min(CHUNK, base.size) if layers[1:] else 0, dtype=np.uint16)
        window = np.empty(min(WINDOW, base.size), dtype=np.uint16)
        for span in _chunks(base.size):
            stretch, changes = _stacked(layers, base[span], room, back)
            yield from _windows(changes, stretch, window, before + span.start)
        for reader in readers:
            reader.end()
    except PackedError as error:
        raise PatchError(error.why) from error


def patch_in_place(
    tensor: U16, patches: Sequence[bytes | memoryview], *, before: int = 0, back: bool = False
) -> Iterator[U16]:
    """The same, put into `tensor` itself: uint16[n], which lies in one piece. Windows are views of it. Raises
    PatchError; what it holds then is of no use."""
    at = 0
    for window in patched(tensor, patches, before=before, back=back):
        place = tensor[at : at + window.size]
        # What a window is made of lies behind it, or in a room of its own: it may be overwritten now.
        if not np.may_share_memory(place, window):
            np.copyto(place, window)
        at += window.size
        yield place


def patched_part(base: U16, patches: Sequence[bytes | memoryview], start: int, stop: int) -> U16:
    """Elements `start` to `stop` of the same. Chunks before them are passed over unopened, those behind them not looked
    at: for patches of which all was compared once. Raises PatchError."""
    base = _flat(base)
    parts: list[U16] = [np.empty(0, dtype=np.uint16)]
    try:
        layers = _layers([PackedReader(patch) for patch in patches], base.size)
        for span in _chunks(base.size):
            if span.stop <= start:
                for reader in layers:
                    _pass_over(reader)
            elif span.start < stop:
                room = np.empty(span.stop - span.start, dtype=np.uint16)
                stretch, changes = _stacked(layers, base[span], room)
                whole = _put(changes, stretch, room)
                parts.append(whole[max(0, start - span.start) : stop - span.start])
    except PackedError as error:
        raise PatchError(error.why) from error
    return np.concatenate(parts)


def _layers(readers: Sequence[PackedReader], count: int) -> list[PackedReader]:
    """Patches that change nothing are no layer: a chain of many steps often leaves a tensor alone."""
    return [reader for reader in readers if _header(reader, count)]


def _stacked(layers: Sequence[PackedReader], base: U16, room: U16, back: bool = False) -> "tuple[U16, ChunkChanges]":
    """A chunk after all layers but the last, in `room` where any of them changes it, and what the last changes."""
    stretch, changes = base, _NOTHING
    for reader in layers:
        stretch = _put(changes, stretch, room)
        changes = _decode_chunk(reader, stretch, back)
    return stretch, changes


def max_patch_bytes(count: int) -> int:
    """The most bytes that a patch for `count` elements can have: raw everywhere, no stream compressed."""
    header_bytes = 4 + 8 + 1
    return header_bytes + 2 * count + 32 * (-(-count // CHUNK))


def _header(reader: PackedReader, count: int) -> bool:
    """Whether a patch for `count` elements changes anything."""
    magic, size, changed = cast(tuple[bytes, int, int], reader.unpack(_HEADER))
    if magic != _MAGIC:
        raise PatchError("it is no patch, or one of another version")
    # Refused before anything is decoded: every later bound follows from the base's own length.
    if size != count:
        raise PatchError(f"it is for {size} elements, the base has {count}")
    if changed not in (False, True):
        raise PatchError("it does not say whether it changes anything")
    return bool(changed)


def _chunks(size: int) -> Iterator[slice]:
    return (slice(start, min(size, start + CHUNK)) for start in range(0, size, CHUNK))


def _flat(tensor: U16) -> U16:
    if tensor.dtype != np.uint16:
        raise PatchError(f"bit patterns are uint16, not {tensor.dtype}")
    return np.ascontiguousarray(tensor, dtype="<u2").reshape(-1)


# the order of bf16 numbers


def _ordered(bits: U16) -> U16:
    """Bit patterns -> integers in the order of the numbers: a negative number's bits are turned round."""
    # For a negative number all bits turn, for a positive one the sign only: the usual way to sort floats by bits.
    return bits ^ ((_ZERO - (bits >> _SIGN)) | _TOP)


def _unordered(places: U16) -> U16:
    return places ^ (((places >> _SIGN) - _ONE) | _TOP)


def _stepped(bits: U16, steps: U16) -> U16:
    return _unordered(_ordered(bits) + steps)


# encoding


def _encode_chunk(base: U16, target: U16) -> list[bytes]:
    """The smallest of the forms that can be the smallest at this share of changes."""
    positions, old, new = _changes(base, target)
    share = positions.size / base.size
    if not positions.size:
        return [_BYTE.pack(_SAME)]
    forms: list[list[bytes]] = []
    steps = _ordered(new) - _ordered(old)
    # Only the forms that can win at this share are tried: each costs a pass and a compression.
    most = 1 / 3
    if share <= most:  # shares of changes at which the forms cross; a wrong guess costs bytes and never the result
        forms.append(_encode_sparse(positions, steps, share < 1 / 400))
    if share > 1 / 5:
        every = _ordered(target) - _ordered(base)
        forms.append([_BYTE.pack(_DENSE), *_encode_steps(every)])
    if share > 2 * most or _far(steps).mean() > most:
        forms.append([_BYTE.pack(_RAW), *_encode_planes(target)])
    return min(forms, key=lambda form: sum(map(len, form)))


def _changes(base: U16, target: U16) -> tuple[Positions, U16, U16]:
    """Ascending positions where the two differ, and what stands there in either; in blocks that fit a cache."""
    positions: list[Positions] = []
    old: list[U16] = []
    new: list[U16] = []
    # A block of both fits the second-level cache; over the whole chunk each pass would wait for memory.
    block = 1 << 18
    for start in range(0, base.size, block):
        before, after = base[start : start + block], target[start : start + block]
        found = np.flatnonzero(before != after)
        old.append(before[found])
        new.append(after[found])
        found += start
        positions.append(found)
    return np.concatenate(positions), np.concatenate(old), np.concatenate(new)


def _encode_sparse(positions: Positions, steps: U16, wide: bool) -> list[bytes]:
    # At very few changes most gaps are beyond a byte, and its escapes would outnumber them.
    form, kind = (_SPARSE16, np.uint16) if wide else (_SPARSE8, np.uint8)
    gaps = _encode_gaps(positions, kind)
    packed = _encode_planes(gaps.view(np.uint16)) if wide else [pack(gaps.data)]
    return [_BYTE.pack(form), _COUNT.pack(positions.size), *packed, *_encode_steps(steps)]


def _encode_gaps(positions: Positions, kind: type[np.uint8] | type[np.uint16]) -> NDArray[Any]:
    """Unchanged elements before each change; the largest number of the type says: that many, and no change yet."""
    most = int(np.iinfo(kind).max)
    gaps = np.diff(positions, prepend=-1) - 1
    skips = gaps // most
    if not skips.any():
        return gaps.astype(kind)
    stream = np.full(positions.size + int(skips.sum()), most, dtype=kind)
    stream[np.cumsum(skips) + np.arange(positions.size)] = gaps - most * skips
    return stream


def _far(steps: U16) -> NDArray[np.bool_]:
    """Which steps are beyond -7..7, modulo 2^16."""
    return steps + np.uint16(_NEAR) > 2 * _NEAR


def _encode_steps(steps: U16) -> list[bytes]:
    far = _far(steps)
    codes = (steps + np.uint16(_NEAR)).astype(np.uint8)
    codes[far] = _FAR
    if codes.size % 2:
        codes = np.append(codes, np.uint8(0))
    nibbles = pack((codes[::2] | (codes[1::2] << 4)).data)
    return [nibbles, *_encode_planes(_zigzag(steps[far]))]


def _zigzag(steps: U16) -> U16:
    """Steps modulo 2^16 -> small numbers for small steps of either sign."""
    return (steps << _ONE) ^ (_ZERO - (steps >> _SIGN))


def _unzigzag(values: U16) -> U16:
    return (values >> _ONE) ^ (_ZERO - (values & _ONE))


def _encode_planes(values: U16) -> list[bytes]:
    return [pack(values.astype(np.uint8).data), pack((values >> 8).astype(np.uint8).data)]


# decoding


class ChunkChanges(NamedTuple):
    """What becomes of a chunk. positions: ascending, intp[n], with a step for each; None: `values` are all of its bits.

    Steps are taken where the chunk is handed out: to look elements up all over it first would be a miss each.
    """

    positions: Positions | None
    values: U16


_NOTHING = ChunkChanges(np.empty(0, dtype=np.intp), np.empty(0, dtype=np.uint16))


def _decode_chunk(reader: PackedReader, base: U16, back: bool) -> ChunkChanges:
    (form,) = cast(tuple[int], reader.unpack(_BYTE))
    if form == _SAME:
        return _NOTHING
    if form == _RAW:
        if back:
            raise PatchError("it has new bits, and nobody knows the old ones")
        return ChunkChanges(None, _decode_planes(reader, base.size, base.size))
    if form == _DENSE:
        return ChunkChanges(None, _stepped(base, _decode_steps(reader, base.size, back)))
    if form not in (_SPARSE8, _SPARSE16):
        raise PatchError(f"a chunk has the unknown form {form}")
    positions = _decode_positions(reader, base.size, form == _SPARSE16)
    return ChunkChanges(positions, _decode_steps(reader, positions.size, back))


def _pass_over(reader: PackedReader) -> None:
    """The next chunk."""
    (form,) = cast(tuple[int], reader.unpack(_BYTE))
    if form in (_SPARSE8, _SPARSE16):
        reader.take(_COUNT.size)
    for _ in range({_RAW: 2, _SPARSE8: 1, _SPARSE16: 2}.get(form, 0)):
        reader.skip()
    for _ in range(3 if form in (_DENSE, _SPARSE8, _SPARSE16) else 0):
        reader.skip()


def _put(changes: ChunkChanges, base: U16, room: U16) -> U16:
    """A whole chunk with its changes, uint16[base.size], in `room` if it is put together; `base` may lie there."""
    if changes.positions is None:
        return changes.values
    if not changes.positions.size:
        return base
    out = room[: base.size]
    if not np.may_share_memory(out, base):
        np.copyto(out, base)
    out[changes.positions] = _stepped(out[changes.positions], changes.values)
    return out


def _windows(changes: ChunkChanges, base: U16, room: U16, before: int) -> Iterator[U16]:
    """A chunk with its changes, cut where `before` and what has been handed out are a multiple of WINDOW."""
    first = min(base.size, WINDOW - before % WINDOW)
    ends = [*range(first, base.size, WINDOW), base.size]
    places = [0, *(np.searchsorted(changes.positions, ends) if changes.positions is not None else ends)]
    for number, end in enumerate(ends):
        start, own = ends[number - 1] if number else 0, slice(places[number], places[number + 1])
        if changes.positions is None:
            yield changes.values[own]
        elif own.start == own.stop:
            yield base[start:end]
        else:
            out = room[: end - start]
            np.copyto(out, base[start:end])
            positions = changes.positions[own] - start
            out[positions] = _stepped(out[positions], changes.values[own])
            yield out


def _decode_positions(reader: PackedReader, size: int, wide: bool) -> Positions:
    """Strictly ascending positions below `size`."""
    (changes,) = cast(tuple[int], reader.unpack(_COUNT))
    # No changes at all are written as _SAME: an empty list would be a second spelling.
    if not 1 <= changes <= size:
        raise PatchError(f"{changes} changes in {size} elements")
    most = 0xFFFF if wide else 0xFF
    # No honest list has more skips than fit the tensor, so this bounds what is unpacked.
    longest = changes + size // most
    gaps = _decode_planes(reader, changes, longest) if wide else _stream(reader, changes, longest)
    skip = gaps == most
    advance = gaps.astype(np.int32)
    np.add(advance, 1, out=advance)
    if skip.any():
        advance[skip] = most
        positions = np.cumsum(advance, dtype=np.intp)[~skip]
    else:
        positions = np.cumsum(advance, dtype=np.intp)
    positions -= 1
    # The last gap must end at a change: a trailing skip would be bytes that say nothing.
    if positions.size != changes or skip[-1] or positions[-1] >= size:
        raise PatchError("its positions reach beyond the tensor, or are fewer or more than it says")
    return positions


def _decode_steps(reader: PackedReader, count: int, back: bool) -> U16:
    """So many steps, or those that take them back."""
    pairs = _stream(reader, (count + 1) // 2, (count + 1) // 2)
    codes = np.empty(2 * pairs.size, dtype=np.uint8)
    np.bitwise_and(pairs, 15, out=codes[::2])
    np.right_shift(pairs, 4, out=codes[1::2])
    # The odd nibble is padding: let it be anything, and one patch has sixteen encodings.
    if count % 2 and codes[-1]:
        raise PatchError("a step too many")
    codes = codes[:count]
    steps = codes.astype(np.uint16)
    steps -= np.uint16(_NEAR)
    far = np.flatnonzero(codes == _FAR)
    steps[far] = _unzigzag(_decode_planes(reader, far.size, far.size))
    return np.negative(steps, out=steps) if back else steps


def _decode_planes(reader: PackedReader, least: int, most: int) -> U16:
    low = _stream(reader, least, most)
    high = _stream(reader, low.size, low.size)
    values = high.astype(np.uint16)
    values <<= 8
    values |= low
    return values


def _stream(reader: PackedReader, least: int, most: int) -> U8:
    return np.frombuffer(reader.section(least, most), dtype=np.uint8)
