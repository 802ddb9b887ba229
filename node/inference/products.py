"""x @ weight.T + bias, by the kernel that is fastest where it is computed.

In float32 on a CPU that is oneDNN's, which torch has beside MKL's: 1.2 to 1.9 times faster for 4 to 64 rows, most of
all over a matrix that was packed for it once. Its sums do not depend on how many rows there are but where one row
meets a long sum, so a validator that recomputes rows in other batches gets an engine's numbers.
"""

import torch
from torch import Tensor
from torch.nn import functional

_ONEDNN = torch.backends.mkldnn.is_available() and all(
    hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")
)
_ROWS = 16
"""That oneDNN is told to pack for; for a single one it would pack nothing."""
_WORTH_A_CALL = 1 << 17
"""Cells of a matrix below which oneDNN's longer way to its kernel, some 20 us, costs more than the kernel saves."""


def packs(cells: int, device: str, dtype: torch.dtype) -> bool:
    """Whether a matrix of so many numbers is to be packed there."""
    return _ONEDNN and cells >= _WORTH_A_CALL and dtype == torch.float32 and torch.device(device).type == "cpu"


def packed(weight: Tensor) -> Tensor:
    """A copy of float32[out, in] that only `linear` can read."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., out]; x: [..., in]; weight: [out, in], as it is or `packed`; bias: [out]."""
    if packs(weight.numel(), x.device.type, x.dtype):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return functional.linear(x, weight, bias)
