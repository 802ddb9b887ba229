"""Merging policies of one shape into one: average, TIES, DARE. The same bytes on every machine.

With x a model's weight, b the base's, t = x - b and w a whole weight, number by number:

    average   sum(w x) / sum(w)
    ties      b + scale * sum(w t, over the kept t of the elected sign) / sum(w, over the same)      arXiv 2306.01708
    dare      b + scale * sum(w t, over the t that a draw keeps) / (density * sum(w))                arXiv 2311.03099

TIES keeps of each model and tensor what is as large as the `density` of largest |t| in a sample: runs of 32 numbers at
an odd distance, of a small tensor all. It elects the sign of sum(w t) of what was kept. DARE's draw is a stream of
16-bit words from (seed, model, tensor), by AES in counter mode, so that any stretch of it can be had by itself. bf16
numbers times weights below 2^14 are exact in float32; all else is one float32 operation after another, in the order of
the models, and one rounding to bf16 (to nearest even). Nothing depends on how a tensor is cut into windows, or on
threads. Pure; windows of tensors come in.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from protocol.errors import ProtocolError
from protocol.policy import U16, bf16_values

WINDOW = 1 << 17
"""Numbers that are merged together: few calls, and buffers that stay in the processor's cache."""
VERSION = 2
"""Of the arithmetic. 1 counted whole tensors for TIES' threshold, drew by BLAKE3, and divided by the density first."""
MAX_MODELS = 64
# bf16 has 8 bits of significand: times 14 bits it is still exact in float32's 24.
MAX_WEIGHT = 1 << 14
# All but the sign.
_SIZE = np.uint32(0x7FFFFFFF)
_NORMAL = np.uint32(0x00800000)
"""The bits of the smallest float32 whose leading bit is 1: below it processors may be told to see nothing."""
_DRAW = "intellect-node merge draw v2"
_ZEROS = memoryview(bytes(2 * WINDOW))
F32 = NDArray[np.float32]
METHODS = ("average", "ties", "dare")


class MergeError(ProtocolError):
    """Models that cannot be merged like this."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__("these models cannot be merged", why, remedy)


class Merge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """weights: of the models, in their order; density: share of the differences that TIES and DARE keep; scale: of what
    is added to the base; seed: of DARE's draw; version: of the arithmetic."""

    method: Literal["average", "ties", "dare"] = "average"
    weights: tuple[int, ...] = ()
    density: float = 0.5
    scale: float = 1.0
    seed: int = 0
    version: int = VERSION

    @property
    def needs_base(self) -> bool:
        return self.method != "average"

    def check(self) -> None:
        """Raises MergeError naming the first number that makes no sense."""
        for name, good, rule in (
            ("weights", 1 <= len(self.weights) <= MAX_MODELS, f"must be of 1 to {MAX_MODELS} models"),
            ("weights", all(1 <= w <= MAX_WEIGHT for w in self.weights), f"must be whole, 1 to {MAX_WEIGHT}"),
            ("density", 0 < self.density <= 1, "must be above 0, at most 1"),
            ("density", self.method != "dare" or _drawn(self.density) > 0, "of dare must be above 2^-17"),
            ("scale", -100 <= self.scale <= 100, "must be -100 to 100"),
            ("seed", 0 <= self.seed < 1 << 64, "must be 0 to 2^64 - 1"),
            ("version", self.version == VERSION, f"of a merge must be {VERSION}, which this program computes"),
        ):
            if not good:
                raise MergeError(f"{name} {rule}", f"give another {name}")


def thresholds(merge: Merge, base: U16, models: Sequence[U16]) -> F32:
    """Of one tensor of each model: from which |t| on TIES keeps a number; never what is 0, or no number."""
    before = bf16_values(_sample(base))
    place = before.size - max(1, round(merge.density * before.size))
    found = np.empty(len(models), np.uint32)
    for number, model in enumerate(models):
        with np.errstate(over="ignore", invalid="ignore"):
            t = bf16_values(_sample(model)) - before
        found[number] = np.partition(t.view(np.uint32) & _SIZE, place)[place] if t.size else 0
    return np.maximum(found, _NORMAL).view(np.float32)


def _sample(values: U16) -> U16:
    run = 32  # of them stand beside each other: one line of the processor's cache
    # Numbers of a large tensor, about, that TIES' threshold is found in: a share's standard error is 0.002 at most.
    step = values.size * run // (1 << 16)
    if step < 2 * run:
        return values
    step -= 1 - step % 2  # odd: widths of tensors are even, and no column may be left out
    rows = values.size // step
    return values[: rows * step].reshape(rows, step)[:, :run].reshape(-1)


def merged(
    merge: Merge, name: str, base: U16 | None, models: Sequence[U16], start: int = 0, stop: int | None = None
) -> Iterator[U16]:
    """The merged tensor, window by window, uint16 bit patterns; a window is overwritten by the next.

    name: the tensor's; base, models: its bit patterns, flat and of one length; start, stop: of a stretch, to recompute
    just that.
    """
    end = models[0].size if stop is None else stop
    size = max(0, min(WINDOW, end - start))
    room, found = _Room(size, merge), np.empty(size, np.uint16)
    least = thresholds(merge, base, models) if base is not None and merge.method == "ties" else ()
    draws = [_Draw(merge, number, name, start) for number in range(len(models))] if merge.method == "dare" else []
    for begin in range(start, end, WINDOW):
        cut = slice(begin, min(begin + WINDOW, end))
        use, out = room.first(cut.stop - begin), found[: cut.stop - begin]
        parts = [model[cut] for model in models]
        with np.errstate(over="ignore", invalid="ignore"):  # infinities and what is no number are merged like all else
            if merge.method == "average" or base is None:
                _average(merge, parts, use)
            else:
                _widen(base[cut], use.before)
                if merge.method == "ties":
                    _elect(merge, parts, least, use)
                else:
                    _draw(merge, parts, draws, use)
                if merge.scale != 1:
                    np.multiply(use.total, np.float32(merge.scale), out=use.total)
                np.add(use.before, use.total, out=use.total)
            _round(use.total, use.words, out)
        yield out


class _Room:
    """Buffers of one window, used again and again, so that everything stays in the processor's cache."""

    def __init__(self, size: int, merge: Merge) -> None:
        several = len(merge.weights) if merge.method == "ties" else 0
        self.before, self.total, self.spare = (np.empty(size, np.float32) for _ in range(3))
        self.words = np.empty(size, np.uint32)
        self.stream = np.empty((2 * size if merge.method == "dare" else 0) + 16, np.uint8)
        self.kept, self.plus, self.minus = (np.empty(size, np.bool_) for _ in range(3))
        self.several = [np.empty(size, np.float32) for _ in range(several)]
        self.up, self.down = ([np.empty(size, np.bool_) for _ in range(several)] for _ in range(2))
        kind = np.min_scalar_type(sum(merge.weights))  # whole numbers: sums are exact in any order
        self.share, self.one = np.empty(size, kind), np.ones(size, kind)

    def first(self, count: int) -> "_Room":
        """The same memory, shorter for a last window."""
        if count == len(self.total):
            return self
        found = _Room(0, Merge())
        for name, buffer in vars(self).items():
            if isinstance(buffer, list):
                setattr(found, name, [one[:count] for one in cast("list[NDArray[Any]]", buffer)])
            else:
                setattr(found, name, buffer if name == "stream" else buffer[:count])
        return found


def _widen(bits: U16, out: F32) -> None:
    """bf16 patterns as float32."""
    room = out.view(np.uint32)
    room[...] = bits
    np.left_shift(room, 16, out=room)


def _keep(values: F32, kept: NDArray[np.bool_], room: NDArray[np.uint32]) -> None:
    """+0 where not kept: a product of the bits, since infinity times 0 is no number."""
    np.copyto(room, kept)  # by itself: numpy's product of two types takes longer
    bits = values.view(np.uint32)
    np.multiply(bits, room, out=bits)


def _times(values: F32, weight: int) -> None:
    if weight != 1:
        np.multiply(values, np.float32(weight), out=values)


def _average(merge: Merge, parts: Sequence[U16], use: _Room) -> None:
    """Into use.total."""
    for place, (part, weight) in enumerate(zip(parts, merge.weights, strict=True)):
        values = use.spare if place else use.total
        _widen(part, values)
        _times(values, weight)
        if place:
            np.add(use.total, values, out=use.total)
    # A division by 1 would change nothing but a NaN's bits.
    if sum(merge.weights) != 1:
        np.divide(use.total, np.float32(sum(merge.weights)), out=use.total)


def _round(values: F32, room: NDArray[np.uint32], out: U16) -> None:
    """As `bf16_bits`, without memory of its own."""
    bits = values.view(np.uint32)
    np.right_shift(bits, 16, out=room)
    np.bitwise_and(room, 1, out=room)
    np.add(room, 0x7FFF, out=room)
    np.add(room, bits, out=room)
    np.right_shift(room, 16, out=room)
    out[...] = room
    if values.size and np.isnan(values.max()):
        out[np.isnan(values)] = 0x7FC0


# TIES


def _elect(merge: Merge, parts: Sequence[U16], least: Sequence[np.float32] | F32, use: _Room) -> None:
    """Into use.total: the mean of what agrees with the sign of the sum."""
    for part, values, weight, border, up, down in zip(
        parts, use.several, merge.weights, least, use.up, use.down, strict=True
    ):
        _widen(part, values)
        np.subtract(values, use.before, out=values)
        np.greater_equal(values, border, out=up)
        np.less_equal(values, -border, out=down)
        _keep(values, np.bitwise_or(up, down, out=use.kept), use.words)
        _times(values, weight)
    elected = _sum(use.several, use.total)
    np.greater(elected, 0, out=use.plus)
    np.less(elected, 0, out=use.minus)
    for values, up, down in zip(use.several, use.up, use.down, strict=True):
        np.bitwise_and(up, use.plus, out=up)
        np.bitwise_and(down, use.minus, out=down)
        _keep(values, np.bitwise_or(up, down, out=up), use.words)
    shares = [up.view(np.uint8) for up in use.up]
    kind = use.share.dtype.type
    _sum(
        [np.multiply(each, kind(w)) if w != 1 else each for each, w in zip(shares, merge.weights, strict=True)],
        use.share,
    )
    np.maximum(use.share, use.one, out=use.share)
    use.spare[...] = use.share
    np.divide(_sum(use.several, use.total), use.spare, out=use.total)


def _sum(several: Sequence[NDArray[Any]], out: NDArray[Any]) -> NDArray[Any]:
    """In the order of the models."""
    if len(several) == 1:
        np.copyto(out, several[0])
        return out
    np.add(several[0], several[1], out=out)
    for values in several[2:]:
        np.add(out, values, out=out)
    return out


# DARE


class _Draw:
    """The words of one model's tensor, from the place `start` on."""

    def __init__(self, merge: Merge, number: int, name: str, start: int) -> None:
        place = merge.seed.to_bytes(8, "little") + number.to_bytes(2, "little") + name.encode()
        key = algorithms.AES128(blake3(place, derive_key_context=_DRAW).digest(16))
        # The counter is the block's number, so a stretch of a tensor is merged without what stands before it.
        block = 8  # words of one block of AES
        counter = modes.CTR((start // block).to_bytes(16, "big"))
        self._cipher: CipherContext = Cipher(key, counter).encryptor()
        self._cipher.update(bytes(2 * (start % block)))

    def words(self, count: int, room: NDArray[np.uint8]) -> U16:
        """The next ones. room: of 2 * count + 16 bytes."""
        self._cipher.update_into(_ZEROS[: 2 * count], room.data)
        return room[: 2 * count].view("<u2")


def _drawn(density: float) -> int:
    """How many of 2^16 words keep a number."""
    return round(density * (1 << 16))


def _draw(merge: Merge, parts: Sequence[U16], draws: Sequence[_Draw], use: _Room) -> None:
    """Into use.total."""
    # The density as it is drawn: dividing by the asked one would leave a bias of up to 2^-17.
    words = _drawn(merge.density)
    for place, (part, weight, draw) in enumerate(zip(parts, merge.weights, draws, strict=True)):
        values = use.spare if place else use.total
        _widen(part, values)
        np.subtract(values, use.before, out=values)
        _times(values, weight)
        if words < 1 << 16:
            _keep(values, np.less(draw.words(len(part), use.stream), np.uint16(words), out=use.kept), use.words)
        if place:
            np.add(use.total, values, out=use.total)
    np.divide(use.total, np.float32(words / (1 << 16) * sum(merge.weights)), out=use.total)
