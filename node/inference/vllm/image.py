"""A policy image as a mapped file: tensors that take no memory, and the digest of what they were when it was read.

The processes of a tensor-parallel engine each open the file for themselves, so a path goes to them and not tensors; the
digest shows each of them that it reads what the daemon checked.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from node.inference.image import as_tensors, open_image, unusable
from protocol.policy import describe_tensors, weights_root


class ImageFile(Mapping[str, Tensor]):
    """bf16 tensors by name, views of the file. Raises ModelError for a file that is no canonical image."""

    def __init__(self, path: Path) -> None:
        self.path = path
        bits = open_image(str(path))
        self.digest = weights_root(describe_tensors(bits))
        self._tensors = as_tensors(bits)

    @classmethod
    def checked(cls, path: Path, digest: bytes) -> "ImageFile":
        """The same, of this very digest. Raises ModelError."""
        image = cls(path)
        if image.digest != digest:
            raise unusable(str(path), f"its weights are {image.digest.hex()[:16]}, and {digest.hex()[:16]} was checked")
        return image

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
