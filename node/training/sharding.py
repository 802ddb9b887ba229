"""The model on the trainer's devices: FSDP2 with float32 master weights, recomputation, offload.

Each decoder layer is a unit of its own, computed in bf16 where the settings say so; embedding, last norm and output
head form the root unit, in float32 (ScaleRL, arXiv 2510.13786: float32 logits matter most of all choices). Gradients
are reduced in float32, whatever they were computed in. A plain float32 process is left as it is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.checkpoint import checkpoint

from node.training.compiling import compiled
from node.training.policy_model import PolicyModel
from node.training.settings import TrainerSettings
from node.training.world import World, compute_dtype

Whole = TypeVar("Whole", bound=nn.Module)


@contextmanager
def without_memory(world: World) -> Iterator[None]:
    """Models that are built inside have no memory for their parameters if the world shards them: `prepare_model` gives
    each rank that of its own shards. Buffers, which no file holds, are real in either case."""
    if world.mesh is None:
        yield
        return
    on_meta: Any = _on_meta  # what it returns is registered instead, which torch documents and does not annotate
    hook = register_module_parameter_registration_hook(on_meta)
    try:
        yield
    finally:
        hook.remove()


def _on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    # A start under torch.device("meta") would take the buffers along, and somebody would have to compute them again.
    if parameter is None or parameter.is_meta:
        return parameter
    return nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)


def prepare_model(
    model: Any, temperature: float, settings: TrainerSettings, world: World, *, compiles: bool = False
) -> PolicyModel:
    """Wrap, shard and place a transformers model with float32 parameters. Those that had no memory (`without_memory`)
    have it afterwards, and no values: fill them. compiles: its layers are, by `make_graphs`."""
    return placed(PolicyModel(model, temperature, settings.logit_cells), settings, world, compiles=compiles)


def placed(policy: Whole, settings: TrainerSettings, world: World, *, compiles: bool = False) -> Whole:
    """The same for another module around a model of transformers, its `model`."""
    layers = decoder_layers(policy.model)  # type: ignore[arg-type] - a module's attribute
    if compiles:
        for layer in layers:
            layer.forward = compiled(layer.forward)  # before what recomputes it, which computes the same again
    if settings.activation_checkpointing:
        for layer in layers:
            # The function and not the module is wrapped: images and checkpoints go by the names of parameters.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    if world.mesh is None:
        return policy.to(world.device)
    dtype = compute_dtype(settings, world.device)
    head = torch.float32 if settings.fp32_logits else dtype
    offload = (
        CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if settings.offload_parameters else OffloadPolicy()
    )
    common: dict[str, Any] = {
        "mesh": world.mesh,
        "offload_policy": offload,
        "reshard_after_forward": settings.reshard_after_forward,
    }
    for layer in layers:
        # Layers before the whole: what is sharded by then is no part of the root unit.
        fully_shard(layer, mp_policy=MixedPrecisionPolicy(dtype, torch.float32), **common)
    fully_shard(policy, mp_policy=MixedPrecisionPolicy(head, torch.float32), **common)
    place = torch.device("cpu") if settings.offload_parameters else world.device
    # Not `to_empty`, which would take the values of the buffers as well.
    return policy._apply(lambda tensor: torch.empty_like(tensor, device=place) if tensor.is_meta else tensor)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The members of the list of modules that holds most of the parameters."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    largest = max(lists, key=lambda members: sum(p.numel() for p in members.parameters()), default=None)
    return list(largest) if largest is not None else []


@torch.no_grad()
def fill(parameter: Tensor, value: Tensor) -> None:
    """Copy a whole tensor, the same on every rank, into a parameter or its shard."""
    if isinstance(parameter, DTensor):
        # No source: every rank has the whole value already, so nothing is sent.
        value = distribute_tensor(
            value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    parameter.copy_(value)


@torch.no_grad()
def whole(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """The whole tensor in `dtype`, on every rank."""
    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh.device_type  # offloaded shards are on the CPU, but gathered where the mesh is
        shards: Any = parameter.to(mesh, dtype)
        return shards.full_tensor()
    return parameter.to(dtype)


class ActivationsOnCpu(saved_tensors_hooks):
    """What the backward pass needs, kept in the CPU's memory meanwhile: torch's `save_on_cpu`, but for the weights.

    Those are there again when they are needed: a copy of each layer's gathered weights for every pass would cost more
    than all activations of a short one. pinned: through page-locked memory, which copies from and to a GPU without
    waiting.
    """

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
