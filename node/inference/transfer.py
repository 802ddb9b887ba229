"""Numbers on their way between a process and the device that it computes on.

A GPU works behind the process that feeds it, and a plain copy waits until it has caught up; then it has nothing to do
until the process has thought of more. What is sent from here is not waited for, and what is fetched only once.
"""

from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(values: NDArray[Any], device: torch.device | str) -> Tensor:
    """The same numbers there, in the same memory where that is the CPU's."""
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # torch keeps what is page-locked until it has arrived


def fetched(*tensors: Tensor) -> list[NDArray[Any]]:
    """The same numbers here, of tensors of one device, the last of which has some."""
    *first, last = tensors
    begun = [one.to("cpu", non_blocking=one.is_cuda) for one in first]
    return [one.numpy() for one in (*begun, last.cpu())]  # copies are made in order: with the last, all are there


STRETCH = 1 << 26
"""Bytes of page-locked memory that a tensor is read through."""


def stretches(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in its order, each part valid until the next is asked for. From a GPU they come through
    page-locked memory: without it an H100's machine took 0.8 s a GiB."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    if not flat.is_cuda:
        yield flat.numpy().data
        return
    room = torch.empty(min(STRETCH, len(flat)), dtype=torch.uint8, pin_memory=True)
    for part in flat.split(STRETCH):
        # This copy is waited for: the same memory takes the next part.
        yield room[: len(part)].copy_(part).numpy().data
