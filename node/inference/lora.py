"""A policy that is an adapter (protocol.lora), added to the weights of the start model.

The product of an adapter's two matrices of bf16 numbers is summed in float64, where it is exact but for freak cases,
and rounded once to float32: engines on other devices, or with other libraries, get the same weights, bit for bit,
before they round them to their own type.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from node.inference.errors import ModelError
from node.inference.model_files import read_json
from node.inference.start_weights import StartWeights
from protocol.lora import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    LORA_A,
    MAX_RANK,
    WEIGHT,
    Lora,
    adapted_weight,
    from_peft_name,
    is_adapter,
    tensors_of,
)

CELLS = 1 << 24
"""Most cells of a product in float64 at a time."""


def merge(weight: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """weight + b @ a * scale, float32[out, in], where `weight` is. weight: [out, in]; a: [rank, in]; b: [out, rank].

    scale: of an adapter that does not have it in b, as policies do.
    """
    right = a.to(weight.device, torch.float64) * scale
    rows = max(1, CELLS // max(weight.shape[1], 1))
    # Of float32 `float` gives the tensor itself, and the start model's own must not change.
    whole = weight.float() if weight.dtype != torch.float32 else weight.clone()
    for at in range(0, len(weight), rows):
        left = b[at : at + rows].to(weight.device, torch.float64)
        whole[at : at + rows] += (left @ right).float()
    return whole


class _Merged(Mapping[str, Tensor]):
    """Tensors of the base by name, one in memory at a time; those with an adapter have it in them."""

    def __init__(self, base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float, device: str) -> None:
        self._base, self._adapter, self._scale, self._device = base, adapter, scale, device

    def __getitem__(self, name: str) -> Tensor:
        weight = self._base[name].to(self._device)
        a, b = tensors_of(name)
        if not name.endswith(WEIGHT) or a not in self._adapter:
            return weight
        return merge(weight, self._adapter[a], self._adapter[b], self._scale)

    def __iter__(self) -> Iterator[str]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)


def merged(
    base: Mapping[str, Tensor], adapter: Mapping[str, Tensor], scale: float = 1.0, device: str = "cpu"
) -> Mapping[str, Tensor]:
    """The base with the adapter in it, tensor by tensor, when asked for: float32 where the adapter has a part."""
    return _Merged(base, adapter, scale, device)


def whole_weights(model_dir: Path, weights: Mapping[str, Tensor], device: str = "cpu") -> Mapping[str, Tensor]:
    """What an engine computes with: the policy's tensors or, if it is an adapter, the start model's with it in them.

    Merged, an engine has the kernels and rows that verification was measured with. One that kept the adapter apart
    would be another class of engine to calibrate.
    """
    return merged(StartWeights(model_dir), weights, device=device) if is_adapter(weights) else weights


def start_policy(assets: Path, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Policy 0 of a run, bf16: the start model's weights, or the adapter that the run goes on with. Raises
    ModelError."""
    if (assets / ADAPTER).is_dir():
        found = read_peft(assets / ADAPTER, partial(expected_tensors, parameters=parameters))
        return {name: tensor.to(torch.bfloat16) for name, tensor in found.items()}
    weights = StartWeights(assets / "model")
    weights.check(parameters)
    return weights


def expected_tensors(
    found: Mapping[str, tuple[int, ...]], parameters: Mapping[str, Tensor]
) -> Mapping[str, tuple[int, ...]]:
    """Name -> shape of the tensors that a policy must have: the model's parameters, or those of an adapter of them.

    found: of the policy. Raises ModelError for an adapter to a layer that the model does not have.
    """
    if not is_adapter(found):
        return {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    expected: dict[str, tuple[int, ...]] = {}
    for weight in sorted({adapted_weight(name) for name in found}):
        if weight not in parameters or parameters[weight].dim() != 2:
            raise _unusable(f"the adapter belongs to {weight[:100]!r}, which is no linear layer of the model")
        rows, columns = parameters[weight].shape
        a, b = tensors_of(weight)
        # A stranger's tensor may have no dimensions at all.
        rank = found[a][0] if found.get(a) else 0
        if not 1 <= rank <= MAX_RANK:
            raise _unusable(f"{weight.removesuffix(WEIGHT)[:100]}{LORA_A} is missing or has not 1 to {MAX_RANK} rows")
        expected |= {a: (rank, columns), b: (rows, rank)}
    return expected


def read_peft(
    directory: Path, expects: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, tuple[int, ...]]]
) -> dict[str, Tensor]:
    """An adapter in PEFT's format as a policy's tensors are called, float32, with its scale in lora_b. expects: names
    and shapes of a policy with such tensors. Raises ModelError for what adds anything else to a model."""
    scale, rank = _scale(read_json(directory / ADAPTER_CONFIG))
    path = directory / ADAPTER_WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            names = _named(path, file)
            shapes = {ours: tuple(file.get_slice(theirs).get_shape()) for ours, theirs in names.items()}
            if wrong := [name for name, shape in expects(shapes).items() if shapes.get(name) != shape]:
                raise _unusable(f"{path}: {wrong[0][:100]!r} has another shape than the model's layer, or is missing")
            # The scale follows from the rank of the configuration: a tensor of another one would count otherwise than
            # it was trained.
            if wrong := [name for name, shape in shapes.items() if name.endswith(LORA_A) and shape[0] != rank]:
                raise _unusable(f"{path}: {wrong[0][:100]!r} is of rank {shapes[wrong[0]][0]}, not {rank}")
            tensors = {ours: file.get_tensor(theirs).float() for ours, theirs in names.items()}
    except (OSError, SafetensorError) as error:
        raise _unreadable(directory, error) from None
    if bad := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise _unusable(f"{path}: {bad[0][:100]!r} is not finite")
    return {name: tensor if name.endswith(LORA_A) else tensor * scale for name, tensor in tensors.items()}


def lora_of(directory: Path) -> Lora:
    """What a run says that goes on with an adapter in PEFT's format: of its configuration, and the names of its
    tensors. Raises ModelError."""
    scale, rank = _scale(read_json(directory / ADAPTER_CONFIG))
    try:
        with safe_open(directory / ADAPTER_WEIGHTS, framework="pt") as file:
            names = _named(directory / ADAPTER_WEIGHTS, file)
    except (OSError, SafetensorError) as error:
        raise _unreadable(directory, error) from None
    layers = {adapted_weight(name).removesuffix(WEIGHT).rpartition(".")[2] for name in names}
    return Lora(rank=rank, alpha=scale * rank, targets=tuple(sorted(layers)))


def _named(path: Path, file: Any) -> dict[str, str]:
    """Name here -> name in the file."""
    names = {from_peft_name(name): name for name in file.keys()}
    if None in names or not names:
        raise _unusable(f"{path}: {(names.get(None) or 'nothing')[:100]!r} is no part of a LoRA adapter")
    return {str(ours): theirs for ours, theirs in names.items()}


def _unreadable(directory: Path, error: Exception) -> ModelError:
    if (directory / "adapter_model.bin").is_file() and not (directory / ADAPTER_WEIGHTS).exists():
        return _unusable("adapter_model.bin is pickled, which may run code when it is read")
    return _unusable(f"{directory / ADAPTER_WEIGHTS}: {error}")


_PLAIN = {"bias": "none", "peft_type": "LORA"}
_MORE = ("use_dora", "fan_in_fan_out", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern")
_MORE = (*_MORE, "layer_replication", "trainable_token_indices", "target_parameters", "use_qalora", "use_bdlora")
_MORE = (*_MORE, "alora_invocation_tokens", "arrow_config", "loftq_config", "corda_config", "lora_ga_config")
"""Of adapter_config.json: what is more than lora_b @ lora_a beside a layer, or belongs to a base that was changed."""
_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Of `init_lora_weights`: such as leave the base as it is. PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA take the first
product out of its weights (PEFT's guide to LoRA): to the published base it is another model's adapter."""


def _scale(config: Mapping[str, Any]) -> tuple[float, int]:
    """(what an adapter's product counts, rank)."""
    if more := [key for key in _MORE if config.get(key)]:
        raise _unusable(f"its configuration uses {', '.join(more)}, which no engine here adds")
    if other := [key for key, plain in _PLAIN.items() if config.get(key, plain) != plain]:
        raise _unusable(f"its configuration says {other[0]} = {str(config[other[0]])[:40]!r}")
    if (start := config.get("init_lora_weights", True)) not in _STARTS:
        raise ModelError(
            "the adapter cannot be used",
            f"init_lora_weights = {str(start)[:40]!r}: it was trained beside a base with changed weights",
            "convert it to a plain LoRA adapter (PEFT's path_initial_model_for_weight_conversion), or merge it first",
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not 1 <= rank <= MAX_RANK or not isinstance(alpha, int | float) or not 0 < alpha <= 1e6:
        raise _unusable(f"its configuration needs r, 1 to {MAX_RANK}, and lora_alpha above 0")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), rank


def _unusable(why: str) -> ModelError:
    return ModelError("the adapter cannot be used", why, "use a plain LoRA adapter of this model; fetch a policy anew")
