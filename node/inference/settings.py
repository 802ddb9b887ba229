"""How an engine computes: device, type, attention kernel, batch size. The same policy under any of them.

Honest engines that differ in these give slightly different numbers; `intellect-node calibrate` measures how different.
"""

import argparse
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """dtype: of weights and activations (logits are always float32); attention: transformers' kernel;
    batch_tokens: most padded tokens in one forward pass, and in one decode batch's cache."""

    device: str = "cpu"
    dtype: str = "float32"
    attention: str = "sdpa"
    batch_tokens: int = 1 << 15

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES or self.attention not in ATTENTIONS or self.batch_tokens < 1:
            raise ValueError(f"unusable engine settings: {self}")


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


def settings_from(arguments: Sequence[str]) -> EngineSettings:
    """The settings named on an engine's command line; prints usage and exits with 2 if it cannot be read."""
    parser = argparse.ArgumentParser(prog="engine", description="A node's inference engine, driven over pipes.")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--attention", choices=ATTENTIONS, default="sdpa")
    parser.add_argument("--batch-tokens", type=int, default=1 << 15, help="most padded tokens in one forward pass")
    chosen = parser.parse_args(arguments)
    try:
        return EngineSettings(chosen.device, chosen.dtype, chosen.attention, chosen.batch_tokens)
    except ValueError as error:
        parser.error(str(error))
