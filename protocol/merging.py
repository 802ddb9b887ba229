"""Merging policies of one shape into one: average, TIES, DARE. The same bytes on every machine.

With x a model's weight, b the base's, t = x - b and w a whole weight, number by number:

    average   sum(w x) / sum(w)
    ties      b + scale * sum(w t, over the kept t of the elected sign) / sum(w, over the same)      arXiv 2306.01708
    dare      b + scale * sum(w t / density, over the t that a draw keeps) / sum(w)                  arXiv 2311.03099

TIES keeps of each model and tensor the `density` of largest |t| (and what is as large as the smallest of them), and
elects the sign of sum(w t) of what was kept. DARE's draw is a stream of 16-bit words from (seed, model, tensor), so
that any stretch of it can be had by itself. bf16 numbers times weights below 2^14 are exact in float32; all else is
one float32 operation after another, in the order of the models, and one rounding to bf16 (to nearest even). Nothing
depends on how a tensor is cut into windows, or on threads. Pure; windows of tensors come in.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ProtocolError
from protocol.policy import U16

WINDOW = 1 << 16
"""Numbers that are merged together: the buffers stay in the processor's cache."""
# Five standard errors of a share are then 0.7 % at most, so little is left to gather between the bounds.
SAMPLE = 1 << 17
"""Numbers that say between which bounds TIES' threshold lies."""
MAX_MODELS = 64
# bf16 has 8 bits of significand: times 14 bits it is still exact in float32's 24.
MAX_WEIGHT = 1 << 14
# All but the sign.
_SIZE = np.uint32(0x7FFFFFFF)
_DRAW = "intellect-node merge draw v1"
F32 = NDArray[np.float32]
METHODS = ("average", "ties", "dare")


class MergeError(ProtocolError):
    """Models that cannot be merged like this."""

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__("these models cannot be merged", why, remedy)


class Merge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """weights: of the models, in their order; density: share of the differences that TIES and DARE keep; scale: of what
    is added to the base; seed: of DARE's draw."""

    method: Literal["average", "ties", "dare"] = "average"
    weights: tuple[int, ...] = ()
    density: float = 0.5
    scale: float = 1.0
    seed: int = 0

    @property
    def needs_base(self) -> bool:
        return self.method != "average"

    def check(self) -> None:
        """Raises MergeError naming the first number that makes no sense."""
        for name, good, rule in (
            ("weights", 1 <= len(self.weights) <= MAX_MODELS, f"must be of 1 to {MAX_MODELS} models"),
            ("weights", all(1 <= w <= MAX_WEIGHT for w in self.weights), f"must be whole, 1 to {MAX_WEIGHT}"),
            ("density", 0 < self.density <= 1, "must be above 0, at most 1"),
            ("scale", -100 <= self.scale <= 100, "must be -100 to 100"),
            ("seed", 0 <= self.seed < 1 << 64, "must be 0 to 2^64 - 1"),
        ):
            if not good:
                raise MergeError(f"{name} {rule}", f"give another {name}")


class Thresholds:
    """Of one tensor of each model: from which bits of |t| on TIES keeps a number. Exact."""

    def __init__(self, merge: Merge, base: U16, models: Sequence[U16]) -> None:
        kept = max(1, round(merge.density * base.size))
        self.least = [_least(base, model, kept) if base.size else 0 for model in models]


def merged(
    merge: Merge, name: str, base: U16 | None, models: Sequence[U16], start: int = 0, stop: int | None = None
) -> Iterator[U16]:
    """The merged tensor, window by window, uint16 bit patterns; a window is overwritten by the next.

    name: the tensor's; base, models: its bit patterns, flat and of one length; start, stop: of a stretch, to recompute
    just that.
    """
    end = models[0].size if stop is None else stop
    size = max(0, min(WINDOW, end - start))
    room, found = _Room(size, merge.weights), np.empty(size, np.uint16)
    least = Thresholds(merge, base, models).least if base is not None and merge.method == "ties" else []
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
                    _draw(merge, name, parts, begin, use)
                if merge.scale != 1:
                    np.multiply(use.total, np.float32(merge.scale), out=use.total)
                np.add(use.before, use.total, out=use.total)
            _round(use.total, use.sizes, out)
        yield out


class _Room:
    """Buffers of one window, used again and again, so that everything stays in the processor's cache."""

    def __init__(self, size: int, weights: Sequence[int]) -> None:
        self.before, self.total, self.spare = (np.empty(size, np.float32) for _ in range(3))
        self.share = np.empty(size, np.min_scalar_type(sum(weights)))  # whole numbers: sums are exact in any order
        self.several = [np.empty(size, np.float32) for _ in weights]
        self.sizes = np.empty(size, np.uint32)
        self.kept, self.other, self.up, self.down = (np.empty(size, np.bool_) for _ in range(4))

    def first(self, count: int) -> "_Room":
        """The same memory, shorter for a last window."""
        if count == len(self.total):
            return self
        found = _Room(0, ())
        for name, buffer in vars(self).items():
            setattr(found, name, [one[:count] for one in buffer] if name == "several" else buffer[:count])
        return found


def _widen(bits: U16, out: F32) -> None:
    """bf16 patterns as float32."""
    room = out.view(np.uint32)
    room[...] = bits
    np.left_shift(room, 16, out=room)


def _keep(values: F32, kept: NDArray[np.bool_]) -> None:
    """+0 where not kept: a product of the bits, since infinity times 0 is no number."""
    bits = values.view(np.uint32)
    np.multiply(bits, kept, out=bits)


def _times(values: F32, weight: int) -> None:
    if weight != 1:
        np.multiply(values, np.float32(weight), out=values)


def _add_to(total: F32, values: F32, place: int) -> None:
    """In the order of the models; the first one is where the sum begins."""
    if place:
        np.add(total, values, out=total)
    else:
        total[...] = values


def _average(merge: Merge, parts: Sequence[U16], use: _Room) -> None:
    """Into use.total."""
    for place, (part, weight) in enumerate(zip(parts, merge.weights, strict=True)):
        _widen(part, use.several[0])
        _times(use.several[0], weight)
        _add_to(use.total, use.several[0], place)
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


def _elect(merge: Merge, parts: Sequence[U16], least: Sequence[int], use: _Room) -> None:
    """Into use.total: the mean of what agrees with the sign of the sum."""
    elected, agrees, other = use.spare, use.kept, use.other
    for place, (part, values) in enumerate(zip(parts, use.several, strict=True)):
        _widen(part, values)
        np.subtract(values, use.before, out=values)
        np.bitwise_and(values.view(np.uint32), _SIZE, out=use.sizes)
        np.greater_equal(use.sizes, np.uint32(least[place]), out=use.kept)
        _keep(values, use.kept)
        _times(values, merge.weights[place])
        _add_to(elected, values, place)
    up, down = np.greater(elected, 0, out=use.up), np.less(elected, 0, out=use.down)
    for place, (values, weight) in enumerate(zip(use.several, merge.weights, strict=True)):
        np.greater(values, 0, out=agrees)
        np.bitwise_and(agrees, up, out=agrees)
        np.less(values, 0, out=other)
        np.bitwise_and(other, down, out=other)
        np.bitwise_or(agrees, other, out=agrees)
        _keep(values, agrees)
        # Adding 0 turns -0 into +0: the sum must not depend on which model was the first to be kept.
        np.add(use.total, values, out=use.total) if place else np.add(values, np.float32(0), out=use.total)
        several = agrees.view(np.uint8)
        if weight != 1:
            several = np.multiply(several, use.share.dtype.type(weight))
        np.add(use.share, several, out=use.share) if place else np.copyto(use.share, several)
    np.maximum(use.share, 1, out=use.share)
    use.spare[...] = use.share
    np.divide(use.total, use.spare, out=use.total)


def _least(base: U16, model: U16, kept: int) -> int:
    """The bits of the `kept`-th largest |model - base|: sizes of float32 numbers have the order of their bits.

    A sample says between which bounds it lies; one pass counts what is above and gathers what is between.
    """
    low, high = _bounds(base, model, kept)
    above, between, found = 0, 0, list[NDArray[np.uint32]]()
    mask = np.empty(min(WINDOW, base.size), np.bool_)
    for sizes in _sizes(base, model):
        few = mask[: len(sizes)]
        above += int(np.count_nonzero(np.greater(sizes, high, out=few)))
        np.subtract(sizes, low, out=sizes)  # what is below `low` becomes larger than all
        np.less_equal(sizes, high - low, out=few)
        if low == high:
            between += int(np.count_nonzero(few))
        else:
            found.append(sizes.take(np.flatnonzero(few)))
            between += len(found[-1])
    # The bounds are a guess; counting says whether it held. So the result is exact whatever the sample was.
    if not above < kept <= above + between:
        return _counted(base, model, kept)  # the sample was not like the rest
    return int(low) if low == high else int(low) + int(_largest(np.concatenate(found), kept - above))


def _largest(sizes: NDArray[np.uint32], place: int) -> np.uint32:
    """The `place`-th largest, from 1."""
    return np.partition(sizes, len(sizes) - place)[len(sizes) - place]


def _bounds(base: U16, model: U16, kept: int) -> tuple[np.uint32, np.uint32]:
    """Between which bits the `kept`-th largest size lies, by every n-th number: five standard errors to each side."""
    every = max(1, base.size // SAMPLE)
    (sizes,) = _sizes(base[::every], model[::every], window=base.size)
    share, count = kept / base.size, len(sizes)
    wide = 5 * (share * (1 - share) * count) ** 0.5 + 2
    places = (max(1, int(share * count - wide)), min(count, int(share * count + wide) + 1))
    return _largest(sizes, places[1]), _largest(sizes, places[0])


def _counted(base: U16, model: U16, kept: int) -> int:
    """As `_least`, by two passes over histograms, whatever the numbers are."""
    upper, above = _reached(_histogram(base, model, None), kept)
    return upper << 16 | _reached(_histogram(base, model, upper), kept - above)[0]


def _histogram(base: U16, model: U16, upper: int | None) -> NDArray[np.int64]:
    """How often each upper half of the sizes' bits occurs; or each lower half of those that have this upper one."""
    found = np.zeros(1 << 16, dtype=np.int64)
    for sizes in _sizes(base, model):
        halves = sizes >> 16
        if upper is not None:
            halves = sizes[halves == upper] & 0xFFFF
        found += np.bincount(halves, minlength=1 << 16)
    return found


def _reached(counts: NDArray[np.int64], wanted: int) -> tuple[int, int]:
    """(the bin, from the top, in which `wanted` are reached; how many stand above it)."""
    running = np.cumsum(counts[::-1])
    place = int(np.searchsorted(running, wanted))
    return len(counts) - 1 - place, int(running[place - 1]) if place else 0


def _sizes(base: U16, model: U16, window: int = 0) -> Iterator[NDArray[np.uint32]]:
    """Bits of |model - base|, window by window; a window is overwritten by the next."""
    step = window or WINDOW
    before, values = np.empty(min(step, base.size), np.float32), np.empty(min(step, base.size), np.float32)
    for begin in range(0, base.size, step):
        count = min(step, base.size - begin)
        _widen(base[begin : begin + count], before[:count])
        _widen(model[begin : begin + count], values[:count])
        with np.errstate(over="ignore", invalid="ignore"):
            np.subtract(values[:count], before[:count], out=values[:count])
        sizes = values[:count].view(np.uint32)
        yield np.bitwise_and(sizes, _SIZE, out=sizes)


# DARE


def _draw(merge: Merge, name: str, parts: Sequence[U16], begin: int, use: _Room) -> None:
    """Into use.total."""
    # The density as it is drawn: dividing by the asked one would leave a bias of up to 2^-17.
    words = round(merge.density * (1 << 16))
    rest = np.float32(words / (1 << 16))
    for number, (part, weight) in enumerate(zip(parts, merge.weights, strict=True)):
        place = merge.seed.to_bytes(8, "little") + number.to_bytes(2, "little") + name.encode()
        # BLAKE3 can be read from any place, so a shard of a tensor is merged without what stands before it.
        stream = blake3(place, derive_key_context=_DRAW).digest(2 * len(use.total), seek=2 * begin)
        _widen(part, use.several[0])
        np.subtract(use.several[0], use.before, out=use.several[0])
        _times(use.several[0], weight)
        np.divide(use.several[0], rest, out=use.several[0])
        if words < 1 << 16:
            np.less(np.frombuffer(stream, dtype="<u2"), np.uint16(words), out=use.kept)
            _keep(use.several[0], use.kept)
        _add_to(use.total, use.several[0], number)
    np.divide(use.total, np.float32(sum(merge.weights)), out=use.total)
