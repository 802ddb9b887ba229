"""Policy 0: the weights of the start model's own files, rounded to bf16, read one tensor at a time."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from node.inference.errors import ModelError


class StartWeights(Mapping[str, Tensor]):
    """Tensors of a model directory in Hugging Face form, by name. A rank needs one of them at a time, and only its
    shard of it for longer: the whole model is never in memory. Raises ModelError for files that are none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Path] = {}
        for path in sorted(directory.glob("*.safetensors")):
            with _opened(path) as file:
                self._files |= dict.fromkeys(file.keys(), path)

    def __getitem__(self, name: str) -> Tensor:
        """bf16, on the CPU."""
        with _opened(self._files[name]) as file:
            return file.get_tensor(name).to(torch.bfloat16)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raises ModelError unless every parameter has a tensor of its name and shape."""
        for name, parameter in parameters.items():
            if name not in self._files:
                raise _unusable(self._directory, f"tensor {name!r} of the architecture is in no file")
            found, wanted = self.shape(name), tuple(parameter.shape)
            if found != wanted:
                raise _unusable(self._files[name], f"tensor {name!r} has shape {found}, config.json makes it {wanted}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Read from the file's header."""
        with _opened(self._files[name]) as file:
            return tuple(file.get_slice(name).get_shape())


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise _unusable(path, str(error)) from None


def _unusable(where: Path, why: str) -> ModelError:
    return ModelError(
        "the start model cannot be loaded", f"{where}: {why}", "use a complete model directory in Hugging Face form"
    )
