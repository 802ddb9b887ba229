"""What each optimiser step of a batch learns from: advantages within groups of the whole batch, whole groups dealt out,
and the weight of every token.

Knows the objective; knows no model. The same numbers come out for the same numbers in.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from node.training.advantages import apart, overlong_penalty, row_weights
from node.training.batch import BatchRow
from node.training.functions import AdvantageSamples, Functions
from protocol.recipe import Recipe


@dataclass(slots=True)
class Update:
    """What one optimiser step learns from: rows, and per row its advantage and the weight of each of its tokens."""

    rows: list[BatchRow]
    advantages: NDArray[np.float32]
    weights: NDArray[np.float64]
    rounds: list[list[NDArray[np.int64]]] = field(default_factory=list)
    proximal: list[Tensor] = field(default_factory=list)
    """per round, for this rank; empty where the loss needs none"""


class Updates:
    """Of one recipe. functions: its own and the built-in ones; limit: of an answer's tokens; distilled: whether a
    teacher speaks of every row."""

    def __init__(self, recipe: Recipe, functions: Functions, limit: int, *, distilled: bool) -> None:
        self._recipe, self._objective, self._functions = recipe, recipe.objective(), functions
        self._limit, self._distilled = limit, distilled

    @property
    def _all_count(self) -> bool:
        """Whether rows of groups without signal have a gradient too, beside others that have one."""
        objective = self._objective
        # Such terms pull at every token, whatever its advantage is.
        regular = objective.reference_kl > 0 or objective.entropy_bonus > 0 or self._distilled
        return regular or self._functions.pulls_at_zero_advantage

    def of(self, rows: list[BatchRow], step: int) -> list[Update]:
        """Advantages within groups of the whole batch, then whole groups dealt out to the updates."""
        objective = self._objective
        groups = np.array([row.group_key for row in rows], dtype=np.int64)
        lengths = np.array([row.length for row in rows], dtype=np.int64)
        rewards = np.array([row.reward for row in rows], dtype=np.float32)
        # Also what is longer than others of equal rewards says nothing by itself (arXiv 2503.14476, section 3.2).
        telling = apart(groups, rewards) if self._functions.within_groups else np.ones(len(rows), dtype=bool)
        # Before the advantages: the penalty is part of what answers of one group are compared by.
        rewards += overlong_penalty(lengths, self._limit, objective.overlong_share)
        advantages = self._functions.advantage(AdvantageSamples(groups, rewards, lengths))
        telling &= advantages != 0
        finished = np.array([row.finished for row in rows], dtype=bool)
        learnt = finished if objective.mask_truncated else np.ones(len(rows), dtype=bool)
        updates = []
        for share in _shares(groups, self._recipe.updates_per_step, self._recipe.seed, step):
            counted = share[learnt[share]]
            # Of all counted rows, also of those that are not computed: dropping a zero must not change the scale.
            weights = row_weights(objective.normalisation, groups[counted], lengths[counted], self._limit)
            kept = np.ones(len(counted), dtype=bool) if self._all_count else advantages[counted] != 0
            # Without a signal a pull is all that there is. It comes of rounding where sampler and learner compute the
            # same policy, and AdamW, which divides by its size, makes whole steps of it: 12 of them changed half of a
            # model's weights.
            kept &= self._distilled or bool(telling[counted].any())
            chosen = counted[kept]
            updates.append(Update([rows[i] for i in chosen], advantages[chosen], weights[kept]))
        return updates


def _shares(groups: NDArray[np.int64], count: int, seed: int, step: int) -> Iterator[NDArray[np.int64]]:
    """Indices of the rows of each optimiser step: whole groups, dealt out at random, the same at every replay."""
    if count == 1:
        yield np.arange(len(groups))
        return
    labels = np.unique(groups)
    # From seed and step alone, so that an audit deals the same groups to the same updates.
    order = np.random.default_rng([seed & 0xFFFFFFFF, step]).permutation(labels)
    for chosen in np.array_split(order, count):
        yield np.flatnonzero(np.isin(groups, chosen))
