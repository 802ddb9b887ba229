"""A policy's image as an engine reads it: mapped, not copied. Its pages are the file's, and memory that is short takes
them back."""

import os
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.inference.errors import ModelError
from node.inference.lora import expected_tensors
from protocol.policy import MalformedPolicy, decode_image


def read_image(path: str, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """bf16 views of the tensors of a canonical policy image; names and shapes must be exactly those of `parameters`, or
    of an adapter to them (node.inference.lora). Raises ModelError."""
    tensors = open_image(path)
    _check(path, tensors, parameters)
    return as_tensors(tensors)


def open_image(path: str) -> dict[str, NDArray[np.uint16]]:
    """bf16 bits by name, views of the file. Raises ModelError for a file that is no canonical image."""
    try:
        return decode_image(_mapped(path).numpy().data)
    except (OSError, ValueError, RuntimeError, MalformedPolicy) as error:
        raise unusable(path, str(error)) from None


def as_tensors(image: Mapping[str, NDArray[np.uint16]]) -> dict[str, Tensor]:
    """The same bits as bf16 tensors."""
    return {name: torch.from_numpy(bits).view(torch.bfloat16) for name, bits in image.items()}


def _mapped(path: str) -> Tensor:
    """uint8[bytes of the file], of which writes would stay with this process."""
    return torch.from_file(path, shared=False, size=os.stat(path).st_size, dtype=torch.uint8)


def _check(path: str, tensors: Mapping[str, np.ndarray], parameters: Mapping[str, Tensor]) -> None:
    expected = expected_tensors({name: bits.shape for name, bits in tensors.items()}, parameters)
    if set(tensors) != set(expected):
        wrong = sorted(set(tensors) ^ set(expected))
        raise unusable(path, f"tensor {wrong[0][:100]!r} is missing or not expected ({len(wrong)} in all)")
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise unusable(path, f"tensor {name[:100]!r} has shape {tensors[name].shape} instead of {shape}")


def unusable(path: str, why: str) -> ModelError:
    """What is said of an image that cannot be used."""
    return ModelError(
        "the policy's weights cannot be used", f"{path}: {why}", "fetch the policy anew, or check the model directory"
    )
