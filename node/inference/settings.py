"""How an engine computes: device, type, attention kernel, batch size. The same policy under any of them.

Honest engines that differ in these give slightly different numbers; `intellect-node calibrate` measures how different.
"""

import platform
import re
from dataclasses import dataclass

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("sdpa", "eager")
"""Of the torch engine; those of others are in node.inference.engines."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """dtype: of weights and activations (logits are always float32); attention: the kernel that
    the class is named after; batch_tokens: most tokens in the cache of what is decoded, and in one forward pass."""

    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "sdpa"
    batch_tokens: int = 1 << 15

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES or self.batch_tokens < 1:
            raise ValueError(f"unusable engine settings: {self}")

    @property
    def name(self) -> str:
        """The class of an engine with these settings on this machine, as in protocol.engines."""
        return f"{hardware(self.device)}/{self.dtype}/{self.attention}"


DEFAULT = EngineSettings()


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


def devices() -> list[str]:
    """The devices of this machine, best first."""
    import torch

    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]
