"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.1). Pure numpy."""

import numpy as np
from numpy.typing import NDArray

_EPSILON = 1e-6


def group_advantages(groups: NDArray[np.int64], rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """(reward - mean of its group) / (unbiased std of its group + 1e-6).

    groups: int64[n], any labels; rewards: float32[n]. A group of one, or of equal rewards, gets zeros.
    """
    if len(groups) == 0:
        return np.zeros(0, dtype=np.float32)
    _, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    values = rewards.astype(np.float64)
    centred = values - (np.bincount(place, values) / count)[place]
    variance = np.bincount(place, centred**2) / np.maximum(count - 1, 1)
    advantages = centred / (np.sqrt(variance)[place] + _EPSILON)
    return np.where(np.abs(centred) < 1e-12, 0.0, advantages).astype(np.float32)
