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
from protocol.policy import U16, bf16_bits

WINDOW = 1 << 16
"""Numbers that are merged together: the buffers stay in the processor's cache."""
MAX_MODELS = 64
MAX_WEIGHT = 1 << 14
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
    """Of one tensor of each model: from which |t| on TIES keeps a number. Two passes over histograms, exact."""

    def __init__(self, merge: Merge, base: U16, models: Sequence[U16]) -> None:
        self.least = [_least(base, model, max(1, round(merge.density * base.size))) for model in models]


def merged(
    merge: Merge, name: str, base: U16 | None, models: Sequence[U16], start: int = 0, stop: int | None = None
) -> Iterator[U16]:
    """The merged tensor, window by window, uint16 bit patterns; a window is overwritten by the next.

    name: the tensor's; base, models: its bit patterns, flat and of one length; start, stop: of a stretch, to recompute
    just that.
    """
    end = models[0].size if stop is None else stop
    if merge.method == "average" or base is None:
        yield from _averaged(merge, [model[start:end] for model in models])
        return
    thresholds = Thresholds(merge, base, models).least if merge.method == "ties" else []
    for begin in range(start, end, WINDOW):
        cut = slice(begin, min(begin + WINDOW, end))
        before, parts = _values(base[cut]), [model[cut] for model in models]
        with _whatever_comes():
            if merge.method == "ties":
                added = _elected(merge, before, parts, thresholds)
            else:
                added = _drawn(merge, name, before, parts, begin)
            window = bf16_bits(np.add(before, np.float32(merge.scale) * added, dtype=np.float32))
        yield window


def _whatever_comes() -> np.errstate:
    """Infinities and what is no number are merged like all else."""
    return np.errstate(over="ignore", invalid="ignore")


# average


def _averaged(merge: Merge, models: Sequence[U16]) -> Iterator[U16]:
    size = min(WINDOW, models[0].size)
    total, spare, found = np.empty(size, np.float32), np.empty(size, np.uint32), np.empty(size, np.uint16)
    whole = np.float32(sum(merge.weights))
    for begin in range(0, models[0].size, WINDOW):
        count = min(size, models[0].size - begin)
        acc, room, out = total[:count], spare[:count], found[:count]
        with _whatever_comes():
            for place, (model, weight) in enumerate(zip(models, merge.weights, strict=True)):
                room[...] = model[begin : begin + count]
                np.left_shift(room, 16, out=room)
                values = room.view(np.float32)
                if weight != 1:
                    np.multiply(values, np.float32(weight), out=values)
                if place:
                    np.add(acc, values, out=acc)
                else:
                    acc[...] = values
            if whole != 1:
                np.divide(acc, whole, out=acc)
            _round(acc, room, out)
        yield out


def _round(values: F32, room: NDArray[np.uint32], out: U16) -> None:
    """As `bf16_bits`, without memory of its own."""
    bits = values.view(np.uint32)
    np.right_shift(bits, 16, out=room)
    np.bitwise_and(room, 1, out=room)
    np.add(room, 0x7FFF, out=room)
    np.add(room, bits, out=room)
    np.right_shift(room, 16, out=room)
    out[...] = room
    none = np.isnan(values)
    if none.any():
        out[none] = 0x7FC0


# TIES


def _elected(merge: Merge, before: F32, parts: Sequence[U16], least: Sequence[int]) -> F32:
    kept = [_kept(_values(part) - before, border) for part, border in zip(parts, least, strict=True)]
    weighted = [values * np.float32(weight) for values, weight in zip(kept, merge.weights, strict=True)]
    sign = np.sign(_sum(weighted))
    total, share = np.zeros_like(before), np.zeros_like(before)
    for values, weight in zip(weighted, merge.weights, strict=True):
        agrees = (np.sign(values) == sign) & (values != 0)
        total += np.where(agrees, values, np.float32(0))
        share += np.where(agrees, np.float32(weight), np.float32(0))
    return np.divide(total, np.maximum(share, np.float32(1)), dtype=np.float32)


def _kept(values: F32, least: int) -> F32:
    return np.where(_sizes(values) >= least, values, np.float32(0))


def _least(base: U16, model: U16, kept: int) -> int:
    """The bits of the `kept`-th largest |model - base|: sizes of float32 numbers have the order of their bits."""
    upper, above = _reached(_histogram(base, model, None), kept)
    return upper << 16 | _reached(_histogram(base, model, upper), kept - above)[0]


def _histogram(base: U16, model: U16, upper: int | None) -> NDArray[np.int64]:
    """How often each upper half of the sizes' bits occurs; or each lower half of those that have this upper one."""
    found = np.zeros(1 << 16, dtype=np.int64)
    for begin in range(0, base.size, WINDOW):
        cut = slice(begin, begin + WINDOW)
        with _whatever_comes():
            sizes = _sizes(_values(model[cut]) - _values(base[cut]))
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


def _sizes(values: F32) -> NDArray[np.uint32]:
    return values.view(np.uint32) & np.uint32(0x7FFFFFFF)


# DARE


def _drawn(merge: Merge, name: str, before: F32, parts: Sequence[U16], begin: int) -> F32:
    words = round(merge.density * (1 << 16))
    rest, scaled = np.float32(words / (1 << 16)), list[F32]()
    for number, (part, weight) in enumerate(zip(parts, merge.weights, strict=True)):
        place = merge.seed.to_bytes(8, "little") + number.to_bytes(2, "little") + name.encode()
        stream = blake3(place, derive_key_context=_DRAW).digest(2 * before.size, seek=2 * begin)
        keep = np.frombuffer(stream, dtype="<u2") < words if words < 1 << 16 else np.True_
        scaled.append(np.where(keep, (_values(part) - before) * np.float32(weight) / rest, np.float32(0)))
    return _sum(scaled) / np.float32(sum(merge.weights))


def _sum(parts: Sequence[F32]) -> F32:
    """In their order."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _values(bits: U16) -> F32:
    found = bits.astype(np.uint32)
    found <<= 16
    return found.view(np.float32)
