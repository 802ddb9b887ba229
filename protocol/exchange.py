"""How a contribution's numbers are written: float32, int8 or int4 in blocks, or the largest of each chunk.

| form | bits of a number | one block |
|---|---|---|
| float32 | 32 | the numbers |
| int8 | 8.06 | 256 numbers as level * (-127 ... 127) |
| int4 | 4.13 | 128 numbers as level * (-7 ... 7) |
| sparse | 0.23 (64 of 4,096) | places, ascending, of log2(chunk) bits; a sign and a choice of two levels for each |

A level is a bf16: float16 would lose the small differences of a low learning rate in its subnormal numbers. Each form
has exactly one length for a number of numbers, so a reader compares lengths before it takes memory. Decoding is the
same arithmetic on every machine: one product of float32 numbers. Levels and numbers beyond `LARGEST` are refused, so
that no weighted sum of contributions can overflow. Pure.
"""

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolError
from protocol.policy import bf16_values

F32 = NDArray[np.float32]
# Weights are tokens, below 2^40: 256 such contributions still stay below float32's 2^128.
LARGEST = 2.0**64


class ContributionError(ProtocolError):
    """A contribution that cannot be taken."""

    def __init__(self, why: str) -> None:
        super().__init__("unusable contribution", why, "its peer must be fixed; the round goes on without it")


class ExchangeForm(Protocol):
    """One way of writing tensors, which come flat."""

    def size(self, count: int) -> int:
        """Bytes of `count` numbers."""
        ...

    def encode(self, values: F32) -> bytes:
        """Raises ContributionError for numbers that are not finite or beyond LARGEST."""
        ...

    def decode(self, data: bytes | memoryview, count: int) -> F32:
        """Raises ContributionError."""
        ...


class PlainForm:
    """float32, as they are."""

    def size(self, count: int) -> int:
        return 4 * count

    def encode(self, values: F32) -> bytes:
        return _sound(values).astype("<f4", copy=False).tobytes()

    def decode(self, data: bytes | memoryview, count: int) -> F32:
        _check_size(self, data, count)
        return _sound(np.frombuffer(data, dtype="<f4").astype(np.float32))


class BlockQuantized:
    """Whole numbers of `bits` bits, 4 or 8, times a level for each block: levels first, then the numbers."""

    def __init__(self, bits: int, block: int) -> None:
        self._bits, self._block = bits, block
        self._most = (1 << bits - 1) - 1

    def size(self, count: int) -> int:
        return 2 * self._blocks(count) + (count * self._bits + 7) // 8

    def encode(self, values: F32) -> bytes:
        blocks = _cut(_sound(values), self._block)
        levels = _level(np.abs(blocks).max(axis=1) / np.float32(self._most))
        steps = bf16_values(levels)
        with np.errstate(divide="ignore", invalid="ignore"):
            scaled = np.where(steps[:, None] > 0, blocks / steps[:, None], np.float32(0))
        whole = np.rint(scaled).clip(-self._most, self._most).astype(np.int8).reshape(-1)[: values.size]
        return levels.astype("<u2").tobytes() + (whole.tobytes() if self._bits == 8 else _nibbles(whole))

    def decode(self, data: bytes | memoryview, count: int) -> F32:
        _check_size(self, data, count)
        blocks = self._blocks(count)
        levels = _levels(np.frombuffer(data, dtype="<u2", count=blocks), self._most)
        body = np.frombuffer(data, dtype=np.uint8, offset=2 * blocks)
        whole = body.view(np.int8) if self._bits == 8 else _from_nibbles(body, count)
        # -128 and -8 have no positive partner: no encoder writes them, so they would be a second spelling.
        if whole.size and whole.min() < -self._most:
            raise ContributionError(f"it has a number below {-self._most}")
        return (_cut(whole.astype(np.float32), self._block) * levels[:, None]).reshape(-1)[:count]

    def _blocks(self, count: int) -> int:
        return -(-count // self._block)


class Sparse:
    """The `top` largest of each `chunk`, as one of two levels and a sign. A last, shorter chunk keeps the same
    share."""

    def __init__(self, chunk: int, top: int) -> None:
        self._chunk, self._top = chunk, top
        self._width = (chunk - 1).bit_length()

    def size(self, count: int) -> int:
        whole, rest = divmod(count, self._chunk)
        return whole * self._bytes(self._top) + (self._bytes(self._kept(rest)) if rest else 0)

    def encode(self, values: F32) -> bytes:
        values = _sound(values)
        end = values.size - values.size % self._chunk
        parts = [self._encode(values[:end].reshape(-1, self._chunk), self._top)] if end else []
        if end < values.size:
            parts.append(self._encode(values[None, end:], self._kept(values.size - end)))
        return b"".join(parts)

    def decode(self, data: bytes | memoryview, count: int) -> F32:
        _check_size(self, data, count)
        whole, rest = divmod(count, self._chunk)
        values, cut = np.zeros(count, dtype=np.float32), whole * self._bytes(self._top)
        end = whole * self._chunk
        if whole:
            self._decode(memoryview(data)[:cut], values[:end].reshape(whole, self._chunk), self._top)
        if rest:
            self._decode(memoryview(data)[cut:], values[None, end:], self._kept(rest))
        return values

    def _kept(self, length: int) -> int:
        return -(-length * self._top // self._chunk)

    def _bytes(self, kept: int) -> int:
        """Of one chunk: two levels, places, signs and choices."""
        return 4 + (kept * self._width + 7) // 8 + (2 * kept + 7) // 8

    def _encode(self, chunks: F32, kept: int) -> bytes:
        """chunks: float32[n, length]."""
        sizes = np.abs(chunks)
        places = _largest(sizes, kept)
        chosen = np.take_along_axis(chunks, places, 1)
        sizes = np.take_along_axis(sizes, places, 1).astype(np.float64)
        high = sizes > _threshold(sizes)
        levels = np.stack([_mean(sizes, ~high), _mean(sizes, high)], axis=1).astype(np.float32)
        codes = np.stack([chosen < 0, high], axis=2).reshape(len(chunks), 2 * kept)
        bits = (places[:, :, None] >> np.arange(self._width)) & 1
        return np.concatenate(
            [
                _nearest(levels).astype("<u2").view(np.uint8),
                np.packbits(bits.reshape(len(chunks), -1).astype(np.uint8), axis=1, bitorder="little"),
                np.packbits(codes.astype(np.uint8), axis=1, bitorder="little"),
            ],
            axis=1,
        ).tobytes()

    def _decode(self, data: memoryview, out: F32, kept: int) -> None:
        """Into float32[chunks, length], all of them zero."""
        places, levels, codes = self._parse(data, len(out), out.shape[1], kept)
        size = np.take_along_axis(levels, codes[:, :, 1].astype(np.int64), 1)
        np.put_along_axis(out, places, np.where(codes[:, :, 0] == 1, -size, size), 1)

    def _parse(
        self, data: memoryview, chunks: int, length: int, kept: int
    ) -> tuple[NDArray[np.int64], F32, NDArray[np.uint8]]:
        """(places, levels, codes[chunks, kept, 2]) of `chunks` chunks of one length."""
        rows = np.frombuffer(data, dtype=np.uint8).reshape(chunks, self._bytes(kept))
        middle = 4 + (kept * self._width + 7) // 8
        levels = _levels(rows[:, :4].copy().view("<u2").reshape(-1), 1).reshape(chunks, 2)
        bits = np.unpackbits(rows[:, 4:middle], axis=1, bitorder="little")
        codes = np.unpackbits(rows[:, middle:], axis=1, bitorder="little")
        # Padding that may be anything would give one contribution many ids, and a lot in each of them.
        if bits[:, kept * self._width :].any() or codes[:, 2 * kept :].any():
            raise ContributionError("it has bits set that mean nothing")
        powers = 1 << np.arange(self._width, dtype=np.int64)
        places = bits[:, : kept * self._width].reshape(chunks, kept, self._width) @ powers
        # A place that stands twice would count once or twice, by how a machine writes into an array.
        if (np.diff(places, axis=1) <= 0).any() or places.max(initial=0) >= length:
            raise ContributionError("its places do not ascend, or lie beyond their chunk")
        return places, levels, codes[:, : 2 * kept].reshape(chunks, kept, 2)


def form_of(rules: Any) -> ExchangeForm:
    """rules: the run's section [diloco]."""
    if rules.exchange == "sparse":
        return Sparse(rules.chunk, rules.top)
    return {"float32": PlainForm(), "int8": BlockQuantized(8, 256), "int4": BlockQuantized(4, 128)}[rules.exchange]


def _check_size(form: ExchangeForm, data: bytes | memoryview, count: int) -> None:
    # One length for a number of numbers: a longer file would have bytes that nobody reads, a shorter one none to read.
    if len(data) != form.size(count):
        raise ContributionError(f"{len(data)} bytes for {count} numbers, which have {form.size(count)}")


def _sound(values: F32) -> F32:
    """Flat. Raises ContributionError."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    # Not `> LARGEST`: NaN compares false, and one NaN would spread into everybody's outer state.
    if flat.size and not float(np.abs(flat).max()) <= LARGEST:
        raise ContributionError("it has a number that is not finite, or beyond 2^64")
    return flat


def _cut(values: F32, block: int) -> F32:
    """float32[blocks, block], with zeros behind the last."""
    short = -values.size % block
    return (np.concatenate([values, np.zeros(short, np.float32)]) if short else values).reshape(-1, block)


def _level(values: F32) -> NDArray[np.uint16]:
    """bf16 bits, rounded up: nothing of a block is beyond its level's largest multiple."""
    return ((np.ascontiguousarray(values, np.float32).view(np.uint32) + np.uint32(0xFFFF)) >> 16).astype(np.uint16)


def _nearest(values: F32) -> NDArray[np.uint16]:
    """bf16 bits of positive numbers, rounded to the nearest."""
    return ((np.ascontiguousarray(values, np.float32).view(np.uint32) + np.uint32(0x8000)) >> 16).astype(np.uint16)


def _levels(bits: NDArray[np.uint16], most: int) -> F32:
    """Raises ContributionError for one that is negative, not finite, or too large for `most` of it."""
    levels = bf16_values(np.ascontiguousarray(bits, dtype=np.uint16))
    if levels.size and ((bits >> 15).any() or not float(levels.max()) * most <= 2 * LARGEST):
        raise ContributionError("it has a level that is negative, not finite, or beyond 2^64")
    return levels


def _nibbles(whole: NDArray[np.int8]) -> bytes:
    """Two in a byte, the first one low, plus 8: no number is 0, so nothing else looks like the padding."""
    raised = (whole + np.int8(8)).astype(np.uint8)
    if raised.size % 2:
        raised = np.concatenate([raised, np.zeros(1, np.uint8)])
    return (raised[::2] | raised[1::2] << 4).astype(np.uint8).tobytes()


def _from_nibbles(body: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    raised = np.stack([body & 15, body >> 4], axis=1).reshape(-1)
    if count % 2 and raised[count:].any():
        raise ContributionError("it has bits set that mean nothing")
    return raised[:count].astype(np.int8) - np.int8(8)


def _largest(sizes: F32, kept: int) -> NDArray[np.int64]:
    """Places, ascending, of the `kept` largest of each row; of equal ones the first."""
    rows, length = sizes.shape
    border = np.partition(sizes, length - kept, axis=1)[:, length - kept, None]
    above, equal = sizes > border, sizes == border
    # Of equal numbers the first ones: which are kept must not depend on how a library partitions.
    room = kept - above.sum(axis=1, keepdims=True)
    above |= equal & (np.cumsum(equal, axis=1) <= room)
    return np.nonzero(above)[1].reshape(rows, kept)


def _threshold(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Between the two levels of each row: Lloyd's steps for two means, from the mean on."""
    border = sizes.mean(axis=1, keepdims=True)
    # Four steps are near enough; encoders may differ, since only decoding must be alike.
    for _ in range(4):
        high = sizes > border
        border = ((_mean(sizes, ~high) + _mean(sizes, high)) / 2)[:, None]
    return border


def _mean(sizes: NDArray[np.float64], chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of the chosen of each row; of none 0."""
    return np.where(chosen, sizes, 0.0).sum(axis=1) / np.maximum(chosen.sum(axis=1), 1)


def bits_per_number(form: ExchangeForm, shapes: dict[str, tuple[int, ...]]) -> float:
    """Of tensors of these shapes, headers aside."""
    counts = [math.prod(shape) for shape in shapes.values()]
    return 8 * sum(map(form.size, counts)) / max(sum(counts), 1)
