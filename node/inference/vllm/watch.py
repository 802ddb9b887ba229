"""The rows of a finished sequence at the places that its tokens were drawn from, gathered chunk by chunk."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Watch:
    """places: int64[n], ascending positions in the sequence whose rows are wanted."""

    def __init__(self, places: NDArray[np.int64]) -> None:
        self._places = places
        self._heads: Tensor | None = None

    def saw(self, first: int, rows: Tensor) -> None:
        """rows: [m, hidden] of the positions from `first` on; others than the wanted are not kept."""
        low, high = np.searchsorted(self._places, (first, first + len(rows)))
        if low == high:
            return
        if self._heads is None:
            self._heads = rows.new_full((len(self._places), rows.shape[1]), torch.nan)
        self._heads[low:high] = rows[torch.from_numpy(self._places[low:high] - first).to(rows.device)]

    def heads(self) -> Tensor:
        """[n, hidden], in the type of the model."""
        if self._heads is None:
            raise ValueError("none of the wanted places was seen")
        return self._heads
