"""The rules of a round: when it is over, which contributions are in, and the outer step that everybody makes alike.

    mean      = sum over contributions, in the order of their ids, of tokens * tensor, divided once by all tokens
    momentum' = outer_momentum * momentum + mean
    outer'    = outer - outer_rate * (mean + outer_momentum * momentum')      (Nesterov; without momentum: mean)

Each line is one float32 operation after another on every number by itself, so replicas are equal to the bit whatever
the order of arrival, the process or the number of threads. Never an all-reduce, and never a sum in order of arrival.
Pure: tensors, ids and times come in.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import numpy as np
from blake3 import blake3

from protocol.exchange import F32
from protocol.pretraining import Diloco

_STATE = "intellect-node outer state v1"
_LOT = "intellect-node round lot v1"


def closes_at(opened: float, accepted: Sequence[float], rules: Diloco, *, tried: int = 0) -> float | None:
    """When a round that began at `opened` is over; None until enough is accepted. accepted: times of acceptance; tried:
    contributions that were made, accepted or not: a peer has one a round, so where all are refused it ends without.

    Nobody waits longer than round_seconds and grace_seconds once min_contributions are there.
    """
    if len(accepted) < rules.min_contributions:
        # Times that a round's and the grace's seconds pass before a round is over in which too few were accepted.
        return opened + 3 * (rules.round_seconds + rules.grace_seconds) if tried else None
    enough = sorted(accepted)[rules.min_contributions - 1]
    return max(enough, opened + rules.round_seconds) + rules.grace_seconds


def chosen(authors: Mapping[bytes, bytes], most: int, seed: bytes) -> list[bytes]:
    """Ids of the contributions that are in, in the order in which they are added. authors: id -> who made it; seed:
    root of the list before. Of more than `most` a lot by author chooses, which nobody's bytes can change."""
    # By author, not by content: a peer could change its file until the lot is in its favour.
    lots = {one: blake3(seed + author, derive_key_context=_LOT).digest() for one, author in authors.items()}
    return sorted(sorted(authors, key=lambda one: (lots[one], one))[:most])


def too_large(norms: Mapping[bytes, float]) -> set[bytes]:
    """Those whose norm is beyond a multiple of the median. For those who vote on it, not for those who apply the
    list: the last bits of a norm depend on the machine."""
    # Times the round's median: a contribution whose norm is beyond it is refused. A mean is moved by its largest term:
    # without this one peer could make a round its own.
    norm_factor = 4.0
    # The median, since the mean would be moved by the very contributions that are to be found.
    limit = norm_factor * median(norms.values()) if norms else 0.0
    return {one for one, norm in norms.items() if not norm <= limit}


def fragment(shapes: Mapping[str, tuple[int, ...]], round_: int, fragments: int) -> list[str]:
    """Names, ascending, of the tensors that a round exchanges; a round before the first exchanges nothing."""
    return parts_of(shapes, fragments)[round_ % fragments] if round_ >= 0 else []


def parts_of(shapes: Mapping[str, tuple[int, ...]], fragments: int) -> list[list[str]]:
    """Names, ascending, of the tensors of each fragment. The largest go first, each to the lightest fragment, so that
    all have about as many numbers."""
    parts: list[list[str]] = [[] for _ in range(fragments)]
    sizes = [0] * fragments
    # By name among equal sizes, so that everybody cuts the model into the same fragments.
    for name in sorted(shapes, key=lambda one: (-math.prod(shapes[one]), one)):
        lightest = sizes.index(min(sizes))
        parts[lightest].append(name)
        sizes[lightest] += math.prod(shapes[name])
    return [sorted(part) for part in parts]


class Mean:
    """The weighted mean of one tensor, contribution by contribution in the order of their ids."""

    def __init__(self, count: int) -> None:
        self._sum = np.zeros(count, dtype=np.float32)
        self._tokens = 0

    def add(self, values: F32, tokens: int) -> None:
        # Weighted first and divided once at the end: dividing each would round as often as there are contributions.
        self._sum += values * np.float32(tokens)
        self._tokens += tokens

    def result(self) -> F32:
        """Zero if nothing was added: a round in which nobody is accepted leaves the outer state as it is."""
        return self._sum / np.float32(max(self._tokens, 1))


def outer_step(outer: F32, momentum: F32 | None, mean: F32, rules: Diloco) -> tuple[F32, F32 | None]:
    """(outer, momentum) of the next round, of one flat tensor; the momentum is None where the run has none."""
    factor, rate, step = np.float32(rules.outer_momentum), np.float32(rules.outer_rate), mean
    if rules.outer_momentum:
        momentum = mean if momentum is None else factor * momentum + mean
        step = mean + factor * momentum
    return np.subtract(outer, rate * step, dtype=np.float32), momentum if rules.outer_momentum else None


def digest_of(values: F32) -> bytes:
    """32 bytes, of the numbers as little-endian float32."""
    return blake3(np.ascontiguousarray(values, dtype="<f4").reshape(-1).view(np.uint8).data).digest()


def state_root(round_: int, tensors: Iterable[tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """32 bytes that name a state: of the outer state of a round, or of a peer's own. tensors: name, shape and digest,
    in name order; an outer momentum stands among them as "momentum/NAME"."""
    hasher = blake3(round_.to_bytes(8, "little"), derive_key_context=_STATE)
    for name, shape, digest in tensors:
        text = name.encode()
        hasher.update(len(text).to_bytes(4, "little") + text + len(shape).to_bytes(1))
        hasher.update(b"".join(size.to_bytes(8, "little") for size in shape) + digest)
    return hasher.digest()
