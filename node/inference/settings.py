"""How an engine computes: device, type, attention kernel, over how many devices, batch size. The same policy under any.

Honest engines that differ in these give slightly different numbers; `intellect-node calibrate` measures how different.
"""

import os
import platform
import re
from dataclasses import dataclass
from importlib.metadata import version

from node.inference.room import CONTEXT
from node.inference.vllm.installed import found
from protocol.engines import FIXED, LORA

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("sdpa", "eager", FIXED, LORA)
"""Of the torch engine; those of others are in node.inference.engines."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """dtype: of weights and activations (logits are always float32); attention: the kernel that
    the class is named after; parallel: fewest GPUs that one model is split over; batch_tokens: most tokens in the cache
    of what is decoded, and in one forward pass; 0: as many as there is memory for (node.inference.room); leave: bytes
    of what is free there that others, a learner or an evaluator, will take; columns: of adapters that are kept apart,
    for which there is to be room (node.inference.room); most: bytes of a GPU's memory, 0: all that is free."""

    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "sdpa"
    batch_tokens: int = 0
    parallel: int = 1
    leave: int = 0
    columns: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        if (
            self.dtype not in DTYPES
            or self.batch_tokens < 0
            or self.parallel < 1
            or min(self.leave, self.columns, self.most) < 0
        ):
            raise ValueError(f"unusable engine settings: {self}")

    @property
    def name(self) -> str:
        """The class of an engine with these settings on this machine, as in protocol.engines."""
        kernel, precision, build = self.attention, "ieee", f"torch-{version('torch')}"
        if self.attention not in ATTENTIONS:
            kernel, precision, build = self._of_vllm()
        elif self.attention == FIXED and self.device.startswith("cuda"):
            kernel = f"{FIXED}-{multiprocessors(self.device)}"
        return f"{hardware(self.device)}/{self.dtype}/{kernel}/{precision}/tp{self.parallel}/{build}".lower()

    def _of_vllm(self) -> tuple[str, str, str]:
        """(attention, precision, build). Which backend attends follows from the other parts, unless somebody chose one;
        in float32 on a GPU it is Triton's, which multiplies in TF32 whatever torch is told."""
        chosen = os.environ.get("VLLM_ATTENTION_BACKEND", "")
        name, number = found() or ("vllm", "none")
        kernel = f"{self.attention}-{re.sub(r'[^A-Za-z0-9_]', '', chosen)}"[:32] if chosen else self.attention
        rounded = self.dtype == "float32" and self.device.startswith("cuda")
        return kernel, "tf32" if rounded else "ieee", f"{name}-{number}"[:32]


DEFAULT = EngineSettings()


def keep_precision() -> None:
    """Products of float32 are not rounded to TF32, and those of bfloat16 are summed in float32, as classes say. Without
    the second a GPU adds partial sums in bfloat16, and how many there are depends on the batch."""
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def hardware(device: str) -> str:
    """The first part of an engine's class: what decides in which order a device adds numbers up.

    A CPU's vector unit, since kernels are chosen by it; a GPU's compute capability.
    """
    import torch

    kind = torch.device(device)
    if kind.type == "cuda":
        major, minor = torch.cuda.get_device_capability(kind)
        return f"cuda-sm{major}{minor}"
    if kind.type != "cpu":
        return kind.type
    return re.sub(r"[^a-z0-9_-]", "", f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}".lower())


def multiprocessors(device: str) -> int:
    """How many a GPU has, by which libraries choose their kernels."""
    import torch

    return torch.cuda.get_device_properties(device).multi_processor_count


def free_memory(device: str, most: int = 0) -> int:
    """Bytes that an engine there could still have. most: of a GPU's, 0 for all; its allocator then refuses more."""
    import torch

    if torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        if most:
            # The libraries' part is none of the allocator's.
            share = min(max(most - CONTEXT, 1) / total, 1.0)
            torch.cuda.set_per_process_memory_fraction(share, torch.device(device).index)
        return min(int(free), most or int(free))
    from node import limits  # a machine that is borrowed for its GPU need not have psutil

    return limits.memory().free


def devices() -> list[str]:
    """The devices of this machine, best first."""
    import torch

    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
