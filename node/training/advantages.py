"""Advantages: how much better a sample is than its group. Pure numpy.

    grpo     (r - mean) / (std + 1e-6), unbiased std of the group    arXiv 2402.03300, section 4.1.1
    mean     r - mean                                                arXiv 2503.20783 (Dr. GRPO)
    opo      r - sum(length * r) / sum(length)                       arXiv 2505.23585, equation 8
    max_rl   (r - mean) / mean; zero where the mean is not positive  arXiv 2602.02710
    batch    (r - mean) / (std of all r - mean of the batch + 1e-6)  arXiv 2510.13786 (ScaleRL)

A group of one, or of equal rewards, gets zeros everywhere: it says nothing about what is better.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.expression import compute, is_formula, parse_advantage
from protocol.recipe import ALIKE


def apart(groups: NDArray[np.int64], rewards: NDArray[np.float32]) -> NDArray[np.bool_]:
    """bool[n]: whether the rewards of a sample's group differ. groups, rewards: [n]."""
    if len(groups) == 0:
        return np.zeros(0, dtype=bool)
    _, place = np.unique(groups, return_inverse=True)
    most, least = np.full(place.max() + 1, -np.inf), np.full(place.max() + 1, np.inf)
    np.maximum.at(most, place, rewards.astype(np.float64))
    np.minimum.at(least, place, rewards.astype(np.float64))
    return (most - least > ALIKE)[place]


def group_advantages(
    groups: NDArray[np.int64],
    rewards: NDArray[np.float32],
    lengths: NDArray[np.int64] | None = None,
    kind: str = "grpo",
) -> NDArray[np.float32]:
    """float32[n]. groups: int64[n], any labels; rewards: float32[n]; lengths: int64[n] tokens (only for opo).

    kind: a name, or a formula (protocol.expression). Raises ValueError for an unknown kind.
    """
    if len(groups) == 0:
        return np.zeros(0, dtype=np.float32)
    _, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    values = rewards.astype(np.float64)
    mean = np.bincount(place, values) / count
    centred = values - mean[place]
    epsilon = 1e-6
    match kind:
        case "grpo":
            variance = np.bincount(place, centred**2) / np.maximum(count - 1, 1)
            advantages = centred / (np.sqrt(variance)[place] + epsilon)
        case "mean":
            advantages = centred
        case "opo":
            weight = np.ones(len(values)) if lengths is None else lengths.astype(np.float64)
            # A group whose answers are all empty has no length to divide by.
            baseline = np.bincount(place, weight * values) / np.maximum(np.bincount(place, weight), 1)
            advantages = values - baseline[place]
        case "max_rl":
            scale = mean[place]
            advantages = np.where(scale > epsilon, centred / np.maximum(scale, epsilon), 0.0)
        case "batch":
            advantages = centred / (np.sqrt(np.mean(centred**2)) + epsilon)
        case _ if is_formula(kind):
            advantages = _by_formula(kind, place, values, lengths)
        case _:
            raise ValueError(f"unknown kind of advantage: {kind}")
    # Zero and not nearly so: the learner computes every row whose advantage is not zero.
    # The mean of equal rewards may be off by a rounding, and their rows would be computed for nothing.
    return np.where(apart(groups, rewards), advantages, 0.0).astype(np.float32)


def _by_formula(
    text: str, place: NDArray[np.int64], rewards: NDArray[np.float64], lengths: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """place: int64[n], each sample's group, from 0. A formula has reward, length, and of the sample's group mean, std
    (unbiased), least, most, count. Zero where it gives no finite number."""
    count = np.bincount(place)
    mean = np.bincount(place, rewards) / count
    least, most = np.full(len(count), np.inf), np.full(len(count), -np.inf)
    np.minimum.at(least, place, rewards)
    np.maximum.at(most, place, rewards)
    variance = np.bincount(place, (rewards - mean[place]) ** 2) / np.maximum(count - 1, 1)
    names = {
        "reward": rewards,
        "length": np.ones(len(rewards)) if lengths is None else lengths.astype(np.float64),
        "count": count[place].astype(np.float64),
        **{"mean": mean[place], "std": np.sqrt(variance)[place], "least": least[place], "most": most[place]},
    }
    with np.errstate(all="ignore"):
        found = np.asarray(compute(_parsed(text), names, _FUNCTIONS), dtype=np.float64)
    # A formula without names gives one number, not one for each sample.
    return np.where(np.isfinite(found), found, 0.0) * np.ones(len(rewards))


_parsed = lru_cache(16)(parse_advantage)
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "number": np.float64,
    "where": np.where,
    "abs": np.abs,
    "sqrt": lambda x: np.sqrt(np.maximum(x, 0.0)),
    "min": np.minimum,
    "max": np.maximum,
    "clip": lambda x, low, high: np.maximum(np.minimum(x, high), low),
}


def overlong_penalty(lengths: NDArray[np.int64], limit: int, share: float) -> NDArray[np.float32]:
    """DAPO's soft punishment (arXiv 2503.14476, equation 13), float32[n] in [-1, 0], to be added to the rewards.

    Zero up to limit * (1 - share) tokens, then linear to -1 at the limit. share 0 turns it off.
    """
    ramp = limit * share
    if ramp <= 0:
        return np.zeros(len(lengths), dtype=np.float32)
    return np.clip(-(lengths - (limit - ramp)) / ramp, -1.0, 0.0).astype(np.float32)


def row_weights(kind: str, groups: NDArray[np.int64], lengths: NDArray[np.int64], limit: int) -> NDArray[np.float64]:
    """What each token of a row is multiplied by, float64[n], so that the losses of one update add up to its mean.

    The counts are those of the whole update, whatever micro-batch or rank a row falls into: the same batch gives
    the same gradient however it is packed or split. Kinds as in protocol.recipe. limit: max_output_tokens.
    """
    n = max(len(lengths), 1)
    match kind:
        case "tokens":
            return np.full(len(lengths), 1.0 / max(int(lengths.sum()), 1))
        case "samples":
            return 1.0 / (n * np.maximum(lengths, 1))
        case "prompts":
            labels, place = np.unique(groups, return_inverse=True)
            tokens = np.bincount(place, lengths)
            return 1.0 / (max(len(labels), 1) * np.maximum(tokens, 1))[place]
        case "constant":
            return np.full(len(lengths), 1.0 / (n * limit))
    raise ValueError(f"unknown normalisation: {kind}")
