"""Keys and values of sequences being decoded: one row each, laid out ahead of their tokens.

Rows in use stand side by side from the first on, so that a pass over them is one view. A row that ends is filled by
the last one. Rows and positions are added when sequences need them, not for the longest that they may become.
"""

import torch
from torch import Tensor

from node.inference.transformer import Shape


class KVCache:
    """keys, values: per layer [rows, kv heads, span, D]; what no sequence wrote is arbitrary but finite."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype
        self.rows = self.span = 0
        self.keys = [self._empty(0, 0) for _ in range(shape.layers)]
        self.values = [self._empty(0, 0) for _ in range(shape.layers)]

    def resize(self, rows: int, span: int, kept_rows: int, kept_span: int) -> None:
        """Make room for rows x span tokens, with what the first rows have in their first positions."""
        self.rows, self.span = rows, span
        for kept in (self.keys, self.values):
            for layer, old in enumerate(kept):
                new = self._empty(rows, span)
                new[:kept_rows, :, :kept_span] = old[:kept_rows, :, :kept_span]
                kept[layer] = new

    def copy(self, source: int, target: int, length: int, count: int = 1) -> None:
        """The first positions of a row, into `count` others."""
        for kept in (*self.keys, *self.values):
            kept[target : target + count, :, :length] = kept[source, :, :length]

    def _empty(self, rows: int, span: int) -> Tensor:
        """Zeros: a masked position must hold no NaN, which a weight of 0 would not remove."""
        return torch.zeros(
            rows, self._shape.kv_heads, span, self._shape.head_dim, dtype=self._dtype, device=self._device
        )
