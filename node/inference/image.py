"""A policy's image as an engine reads it: mapped, not copied. Its pages are the file's, and memory that is short takes
them back. Where patches lead on from the image, each tensor is put together as it is asked for, and compared."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.inference.errors import ModelError
from node.inference.layers import LayeredImage, PatchFile, in_order
from node.inference.lora import expected_tensors
from protocol.delta import PatchError
from protocol.policy import MalformedPolicy, decode_image, describe_tensors, weights_root


# The processes of a tensor-parallel engine each open the file for themselves, so a path goes to them and not tensors;
# the digest shows each of them that it reads what the daemon checked.
class ImageFile(dict[str, Tensor]):
    """bf16 tensors by name, views of the file. digest: their weights root, where it is known. Raises ModelError for a
    file that is no canonical image."""

    def __init__(self, path: Path, digest: bytes = b"") -> None:
        self.path = path
        bits = open_image(str(path))
        self.digest = digest or weights_root(describe_tensors(bits))
        super().__init__(as_tensors(bits))

    @classmethod
    def checked(cls, path: Path, digest: bytes) -> "ImageFile":
        """The same, of this very digest. Raises ModelError."""
        image = cls(path)
        if image.digest != digest:
            raise unusable(str(path), f"its weights are {image.digest.hex()[:16]}, and {digest.hex()[:16]} was checked")
        return image


class PatchedWeights(Mapping[str, Tensor]):
    """bf16 tensors by name, put together as they are asked for. Raises ModelError."""

    def __init__(self, path: str, patches: Sequence[PatchFile], digests: bytes) -> None:
        self.path, self.patches, self.digests = path, patches, digests
        self.image = open_layers(path, patches, digests)

    def __len__(self) -> int:
        return len(self.image)

    def __iter__(self) -> Iterator[str]:
        return iter(self.image)

    def __contains__(self, name: object) -> bool:
        return name in self.image

    def __getitem__(self, name: str) -> Tensor:
        try:
            bits = self.image[name]
        except (MalformedPolicy, PatchError) as error:
            raise unusable(self.path, error.why) from None
        return torch.from_numpy(bits).view(torch.bfloat16)


def open_layers(path: str, patches: Sequence[PatchFile] = (), digests: bytes = b"") -> LayeredImage:
    """Raises ModelError."""
    try:
        return LayeredImage(Path(path), patches, digests)
    except (OSError, ValueError) as error:
        raise unusable(path, str(error)) from None
    except (MalformedPolicy, PatchError) as error:
        raise unusable(path, error.why) from None


def one_by_one(weights: Mapping[str, Tensor], names: Iterable[str]) -> Iterator[Tensor]:
    """The tensors of these names, from several threads where they have to be put together."""
    if isinstance(weights, PatchedWeights):
        return in_order(weights.__getitem__, list(names), weights.image.layout.size)
    return map(weights.__getitem__, names)


def read_image(
    path: str, parameters: Mapping[str, Tensor], patches: Sequence[PatchFile] = (), digests: bytes = b""
) -> Mapping[str, Tensor]:
    """bf16 tensors of a canonical policy image, or of what patches make of it; names and shapes must be exactly those
    of `parameters`, or of an adapter to them (node.inference.lora). Raises ModelError."""
    if patches:
        weights = PatchedWeights(path, patches, digests)
        _check(path, dict(weights.image.forms), parameters)
        return weights
    tensors = open_image(path)
    _check(path, {name: bits.shape for name, bits in tensors.items()}, parameters)
    return as_tensors(tensors)


def open_image(path: str) -> dict[str, NDArray[np.uint16]]:
    """bf16 bits by name, views of the file. Raises ModelError for a file that is no canonical image."""
    try:
        # Not shared: what is written there would stay with this process.
        whole = torch.from_file(path, shared=False, size=os.stat(path).st_size, dtype=torch.uint8)
        return decode_image(whole.numpy().data)
    except (OSError, ValueError, RuntimeError, MalformedPolicy) as error:
        raise unusable(path, str(error)) from None


def as_tensors(image: Mapping[str, NDArray[np.uint16]]) -> dict[str, Tensor]:
    """The same bits as bf16 tensors."""
    return {name: torch.from_numpy(bits).view(torch.bfloat16) for name, bits in image.items()}


def _check(path: str, shapes: Mapping[str, tuple[int, ...]], parameters: Mapping[str, Tensor]) -> None:
    expected = expected_tensors(shapes, parameters)
    if set(shapes) != set(expected):
        wrong = sorted(set(shapes) ^ set(expected))
        raise unusable(path, f"tensor {wrong[0][:100]!r} is missing or not expected ({len(wrong)} in all)")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise unusable(path, f"tensor {name[:100]!r} has shape {shapes[name]} instead of {shape}")


def unusable(path: str, why: str) -> ModelError:
    """What is said of an image that cannot be used."""
    return ModelError(
        "the policy's weights cannot be used", f"{path}: {why}", "fetch the policy anew, or check the model directory"
    )
