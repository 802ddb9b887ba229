"""Which samples share a forward pass, and which rank makes it. Pure; the same plan on every rank.

Bins are filled longest first, each sample into the cheapest bin that has room, so bins differ little in cost and
ranks wait little for each other. No sample is cut, dropped or given twice: a rank without work in the last
round makes an empty pass.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


def plan(lengths: NDArray[np.int64], budget: int, ranks: int = 1, hidden: int = 1024) -> list[list[NDArray[np.int64]]]:
    """rounds[r][rank] = indices of the samples of that micro-batch, shortest first; possibly none.

    budget: most tokens of a micro-batch (a longer sample has one for itself). hidden: the model's width, from which
    the quadratic part of the cost follows: a layer's products cost 24 hidden^2 per token, causal attention
    2 hidden per token and position.
    """
    if len(lengths) == 0:
        return []
    cost = lengths * (1 + lengths / (12 * hidden))
    # Equal lengths by their place: all ranks must come to one plan.
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    count = -(-int(lengths.sum()) // budget)
    while True:
        count = -(-count // ranks) * ranks
        bins = _fill(order, lengths, cost, count, budget)
        if bins is not None:
            break
        count += ranks
    # Bins of about one cost are in one round, in which ranks wait for each other.
    bins.sort(key=lambda samples: -float(cost[samples].sum()))
    shortest_first = [np.array(sorted(samples, key=lambda i: (lengths[i], i)), dtype=np.int64) for samples in bins]
    rounds = [shortest_first[at : at + ranks] for at in range(0, count, ranks)]
    return [members for members in rounds if any(len(samples) for samples in members)]


def plan_padded(lengths: NDArray[np.int64], budget: int, ranks: int = 1) -> list[list[NDArray[np.int64]]]:
    """The same for padded micro-batches: samples of similar length together, at most `budget` padded tokens."""
    order = np.argsort(lengths, kind="stable")
    bins: list[NDArray[np.int64]] = []
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * lengths[order[end]] > budget:
            bins.append(order[start:end])
            start = end
    # Every rank makes a pass in each round: the others wait for it.
    bins += [np.zeros(0, dtype=np.int64)] * (-len(bins) % ranks)
    return [bins[at : at + ranks] for at in range(0, len(bins), ranks)]


def _fill(
    order: NDArray[np.int64], lengths: NDArray[np.int64], cost: NDArray[np.float64], count: int, budget: int
) -> list[list[int]] | None:
    """Longest-processing-time first into `count` bins of `budget` tokens; None if they do not fit."""
    bins: list[list[int]] = [[] for _ in range(count)]
    room = [budget] * count
    cheapest = [(0.0, number) for number in range(count)]
    for sample in order:
        full: list[tuple[float, int]] = []
        while cheapest:
            spent, number = heapq.heappop(cheapest)
            # An empty bin takes a sample that is longer than any bin has room for.
            if lengths[sample] <= room[number] or not bins[number]:
                break
            full.append((spent, number))
        else:
            return None
        bins[number].append(int(sample))
        room[number] -= int(lengths[sample])
        heapq.heappush(cheapest, (spent + float(cost[sample]), number))
        for entry in full:
            heapq.heappush(cheapest, entry)
    return bins


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive samples of a pack that share one attention call. lengths: of its samples, ascending; width: of the
    longest."""

    lengths: tuple[int, ...]

    @property
    def width(self) -> int:
        return self.lengths[-1]

    @property
    def uniform(self) -> bool:
        return self.lengths[0] == self.lengths[-1]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def buckets(lengths: Sequence[int]) -> list[Bucket]:
    """Cut a pack (samples by ascending length) into attention calls with little padding in each."""
    found: list[Bucket] = []
    first = tokens = 0
    for i, length in enumerate(lengths):
        # Samples of unlike length share one attention call up to this ratio of padded to real positions.
        if i > first and (i + 1 - first) * length > 1.125 * (tokens + length):
            found.append(Bucket(tuple(lengths[first:i])))
            first, tokens = i, 0
        tokens += length
    if tokens:
        found.append(Bucket(tuple(lengths[first:])))
    return found
