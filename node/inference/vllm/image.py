"""A policy image as a mapped file: tensors that take no memory, and the digest of what they were when it was read.

The processes of a tensor-parallel engine each open the file for themselves, so a path goes to them and not tensors; the
digest shows each of them that it reads what the daemon checked.
"""

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from node.inference.errors import ModelError
from protocol.policy import MalformedPolicy, decode_image, describe_tensors, weights_root


class ImageFile(Mapping[str, Tensor]):
    """bf16 tensors by name, views of the file. Raises ModelError for a file that is no canonical image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants what it could write to
            bits = decode_image(memoryview(mapped))
        except (OSError, ValueError, MalformedPolicy) as error:
            raise _unusable(path, str(error)) from None
        self.digest = weights_root(describe_tensors(bits))
        self._tensors = {name: torch.from_numpy(one.view(np.int16)).view(torch.bfloat16) for name, one in bits.items()}

    @classmethod
    def checked(cls, path: Path, digest: bytes) -> "ImageFile":
        """The same, of this very digest. Raises ModelError."""
        image = cls(path)
        if image.digest != digest:
            raise _unusable(path, f"its weights are {image.digest.hex()[:16]}, and {digest.hex()[:16]} was checked")
        return image

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _unusable(path: Path, why: str) -> ModelError:
    return ModelError("the weights cannot be loaded", f"{path}: {why}", "fetch the policy anew")
