"""Adapters in the learner's model: small matrices beside frozen layers, and what they start from (protocol.lora).

Knows nothing of optimisers or other processes. A layer keeps its own parameters under their own names; the two
that it gains are the only ones with a gradient.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor, nn
from torch.nn.functional import linear

from node.inference.lora import read_peft
from node.training.errors import TrainingError
from protocol.lora import LORA_A, LORA_B, Lora

_START = "intellect-node adapter start v1"


class AdaptedLinear(nn.Linear):
    """A linear layer, frozen, with an adapter beside it: x W' + (x a') b' * scale, as PEFT computes it."""

    def __init__(self, layer: nn.Linear, lora: Lora) -> None:
        # Not nn.Linear's: it would make weights as large as the frozen ones, and draw them at random.
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        place = {"device": layer.weight.device, "dtype": torch.float32}
        self.lora_a = nn.Parameter(torch.empty(lora.rank, layer.in_features, **place))
        self.lora_b = nn.Parameter(torch.empty(layer.out_features, lora.rank, **place))
        self.scale = lora.scale
        self.active = True

    def forward(self, input: Tensor) -> Tensor:
        own = linear(input, self.weight, self.bias)
        return own + linear(linear(input, self.lora_a), self.lora_b) * self.scale if self.active else own


def adapted_layers(model: nn.Module, lora: Lora) -> list[str]:
    """Names of the layers that get an adapter. Raises TrainingError for a target that is none of the model's."""
    # Without a dot stands the output head, which gets no adapter.
    linear_layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and "." in name]
    known = {name.rpartition(".")[2] for name in linear_layers}
    for target in lora.targets:
        if target not in known:
            raise TrainingError(
                "the adapter does not fit the model",
                f"recipe.lora.targets names {target!r}, and no linear layer of the model is called so",
                f"name some of {', '.join(sorted(known)) or 'its layers (it has no linear ones)'}",
            )
    return [name for name in linear_layers if name.rpartition(".")[2] in lora.targets]


def add_adapters(model: Any, lora: Lora, frozen: torch.dtype = torch.float32) -> None:
    """Freeze a transformers model and put adapters, without values, beside its layers. Raises TrainingError.

    frozen: the type in which the rest is kept; bfloat16 loses nothing of a start model, which is read as such.
    """
    names = adapted_layers(model, lora)
    model.requires_grad_(False)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(frozen)
    for name in names:
        model.set_submodule(name, AdaptedLinear(model.get_submodule(name), lora))


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes what the start model does."""
    adapted = [module for module in model.modules() if isinstance(module, AdaptedLinear)]
    for module in adapted:
        module.active = False
    try:
        yield
    finally:
        for module in adapted:
            module.active = True


class StartAdapter(Mapping[str, Tensor]):
    """Policy 0: lora_a normal with deviation 1 / sqrt(in), drawn from the seed and the tensor's name, and lora_b zero,
    so that the policy is the start model. bf16, on the CPU; the same on every machine."""

    def __init__(self, parameters: Mapping[str, Tensor], seed: int) -> None:
        """parameters: the adapter's, whose shapes count."""
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._seed = seed.to_bytes(8, "little", signed=True)

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        if name.endswith(LORA_B):
            return torch.zeros(shape, dtype=torch.bfloat16)
        # Each tensor has a key of its own: with more layers among the targets the others keep their numbers.
        key = blake3(self._seed + name.encode(), derive_key_context=_START).digest()
        drawn = np.random.default_rng(int.from_bytes(key, "little")).standard_normal(shape, dtype=np.float32)
        return torch.from_numpy(drawn / np.float32(np.sqrt(shape[1]))).to(torch.bfloat16)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def given(directory: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Policy 0 of a run that goes on with an adapter in PEFT's format: its numbers, rounded to bf16. shapes: of all
    tensors that learn, by name. Raises ModelError, and TrainingError for an adapter of fewer layers or of others."""

    def expects(found: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
        if odd := sorted(set(found) ^ set(shapes)):
            raise TrainingError(
                f"the adapter {directory} cannot be gone on with",
                f"{odd[0][:100]} is {'missing' if odd[0] in shapes else 'of no layer that learns'}, and {len(odd) - 1} "
                "more: recipe.lora.targets names layers by the last part of their names, in every decoder layer",
                "merge it (intellect-node weights merge OUT MODEL --adapter DIR), and begin with what comes of it",
            )
        return shapes

    return {name: tensor.to(torch.bfloat16) for name, tensor in read_peft(directory, expects).items()}


def shapes_of(model: nn.Module, lora: Lora) -> dict[str, tuple[int, ...]]:
    """Of the tensors that learn. Raises TrainingError for a target that is none of the model's."""
    found: dict[str, tuple[int, ...]] = {}
    for name in adapted_layers(model, lora):
        layer: Any = model.get_submodule(name)
        found |= {name + LORA_A: (lora.rank, layer.in_features), name + LORA_B: (layer.out_features, lora.rank)}
    return found
