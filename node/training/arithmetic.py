"""The class of this trainer's arithmetic, and the root of a learner's state.

Two trainers of one class compute the same bits; the class names what was found to change them. Threads change none.
"""

import os
import platform
from collections.abc import Iterator, Mapping

import torch
from blake3 import blake3
from torch import Tensor

from node.inference.transfer import stretches
from node.training.head import ARITHMETIC
from node.training.learner import Learner
from node.training.settings import TrainerSettings
from node.training.sharding import whole
from node.training.world import World, compute_dtype
from protocol.manifest import Arithmetic, state_root

LIMITS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA")
"""Variables that make the libraries below torch use fewer instructions than the processor has."""
SLOTS = ("exp_avg", "exp_avg_sq")


def arithmetic_of(learner: Learner, settings: TrainerSettings, world: World, micro_batch_tokens: int) -> Arithmetic:
    """Of the steps that this learner does with passes of at most `micro_batch_tokens`."""
    defaults = learner.optimizer.defaults
    kinds = [kind for kind in ("fused", "foreach") if defaults.get(kind)]
    return Arithmetic(
        processor=processor(world.device),
        dtype=str(compute_dtype(settings, world.device)).removeprefix("torch."),
        ranks=world.size,
        sharded=world.mesh is not None,
        micro_batch_tokens=micro_batch_tokens,
        packing=settings.packing,
        logit_cells=settings.logit_cells,
        fp32_logits=settings.fp32_logits,
        offload=settings.offload_parameters,
        adamw=kinds[0] if kinds else "default",
        compiled=learner.compiled,
        versions=versions(),
    )


def versions() -> str:
    from transformers import __version__ as transformers

    return f"torch {torch.__version__} transformers {transformers} node {ARITHMETIC}"


def processor(device: torch.device) -> str:
    """'x86_64-AVX512', or a GPU's name. What limits the libraries' choice of instructions stands behind it."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"sm_{major}{minor} {torch.cuda.get_device_name(device)} cuda {torch.version.cuda}"
    limits = "".join(f" {name}={os.environ[name]}" for name in LIMITS if os.environ.get(name))
    return f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}{limits}"


def state_root_of(learner: Learner, world: World, step: int, consumed: Mapping[str, int]) -> bytes:
    """Of weights and moments, whole tensor by whole tensor. All ranks take part; only the first one's root counts."""
    # The condition stands behind the loop: all ranks take part in gathering each tensor, and the first alone hashes it.
    digests = ((name, digest(tensor)) for name, tensor in _tensors(learner) if world.first)
    return state_root(step, learner.updates, consumed, digests)


def digest(tensor: Tensor) -> bytes:
    """BLAKE3 of a float32 tensor's little-endian bytes."""
    hasher = blake3(max_threads=_threads(tensor.device))
    for part in stretches(tensor):
        hasher.update(part)
    return hasher.digest()


def _threads(device: torch.device) -> int:
    """Where a GPU waits for a digest, all processors that there are make it."""
    return blake3.AUTO if device.type == "cuda" else 1


def _tensors(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor): of each parameter, in name order, its weights and its moments, once it has some."""
    for name, parameter in learner.parameters.items():
        slots = learner.optimizer.state.get(parameter) or {}
        parts = {"weight": parameter.detach()} | {slot: slots[slot] for slot in SLOTS if slot in slots}
        for part, tensor in parts.items():
            yield f"{part}/{name}", whole(tensor, torch.float32)
