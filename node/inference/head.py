"""The output head: logits in float32, whatever the layers compute in. Sampling is decided by their last digits.

The product of two bfloat16 numbers is exact in float32, so a head in bfloat16 whose products are summed in float32
gives what one in float32 does, up to the order of sums, at half the bytes and on a GPU's units for bfloat16.
"""

import torch
from torch import Tensor

from node.inference.matrices import linear

CHUNK_CELLS = 1 << 24
"""Weights turned into float32 at a time where a device has no such product: 64 MiB."""


class OutputHead:
    """weight: [vocabulary, hidden], not copied unless `wide`; bias: [vocabulary] or None.

    wide: a copy in float32 is kept. On a CPU it is worth its memory, since nothing there sums bfloat16 in float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight, None if bias is None else bias.float()
        self.wide = weight.dtype == torch.float32 or weight.device.type == "cpu"
        self._copy = weight.float() if self.wide else weight
        self._sums = not self.wide and has_float32_sums(weight)
        self.vocabulary, self.hidden = weight.shape

    def load(self) -> None:
        """The values of `weight` have changed."""
        # In float32 the copy is the weight itself.
        if self._copy is not self._weight:
            self._copy.copy_(self._weight)

    def __call__(self, hidden: Tensor) -> Tensor:
        """float32[n, vocabulary] of hidden [n, hidden], in the type of the layers."""
        if self.wide:
            return linear(hidden.float(), self._copy, self._bias)
        logits = _summed(hidden, self._weight) if self._sums else _by_chunks(hidden, self._weight)
        return logits if self._bias is None else logits.add_(self._bias)


def has_float32_sums(weight: Tensor) -> bool:
    """Whether torch can multiply matrices of this type there and sum in float32: tried, since versions differ."""
    some = weight.new_zeros(16, 16)
    try:
        return _summed(some, some).dtype == torch.float32
    except (RuntimeError, TypeError):
        return False


def _summed(hidden: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(hidden, weight.t(), out_dtype=torch.float32)


def _by_chunks(hidden: Tensor, weight: Tensor) -> Tensor:
    logits = torch.empty(len(hidden), len(weight), dtype=torch.float32, device=hidden.device)
    rows, wide = max(1, CHUNK_CELLS // weight.shape[1]), hidden.float()
    for at in range(0, len(weight), rows):
        torch.mm(wide, weight[at : at + rows].float().t(), out=logits[:, at : at + rows])
    return logits
