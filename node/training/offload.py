"""What the backward pass needs, kept in the CPU's memory meanwhile: torch's `save_on_cpu`, but for the weights.

Those are there again when they are needed: a copy of each layer's gathered weights for every pass would cost more than
all activations of a short one.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class ActivationsOnCpu(saved_tensors_hooks):
    """pinned: through page-locked memory, which copies from and to a GPU without waiting."""

    def __init__(self, *, pinned: bool) -> None:
        def pack(tensor: Tensor) -> tuple[Any, Tensor]:
            # A view of a weight, such as its transpose, is the weight: it takes no memory of its own.
            if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
                return None, tensor
            kept = torch.empty(tensor.size(), dtype=tensor.dtype, layout=tensor.layout, pin_memory=pinned)
            kept.copy_(tensor, non_blocking=pinned)  # nobody but the device reads it, which does so later
            return tensor.device, kept

        def unpack(packed: tuple[Any, Tensor]) -> Tensor:
            device, tensor = packed
            return tensor if device is None else tensor.to(device, non_blocking=pinned)

        super().__init__(pack, unpack)
