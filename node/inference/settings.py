"""How an engine computes: device, type, attention kernel, batch size. The same policy under any of them.

Honest engines that differ in these give slightly different numbers; `intellect-node calibrate` measures how different.
"""

import argparse
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.engines import permits

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


@dataclass(frozen=True, slots=True)
class Wish:
    """Settings as a command line has them: what is None is chosen by the machine and the run."""

    device: str | None = None
    dtype: str | None = None
    attention: str | None = None
    batch_tokens: int = 1 << 15

    def granted(self, permitted: Sequence[str], devices: Sequence[str]) -> EngineSettings:
        """The first of `devices` and of the ways to compute on it that the run permits (patterns of protocol.engines).

        If it permits none of them, the first one: whoever must not compute so says it in better words.
        """
        ways = [
            EngineSettings(device, dtype, attention, self.batch_tokens)
            for device in ([self.device] if self.device else devices)
            for dtype in ([self.dtype] if self.dtype else _dtypes(device))
            for attention in ([self.attention] if self.attention else ATTENTIONS)
        ]
        fitting = (way for way in ways if permits(permitted, way.name))
        return next(fitting, ways[0])


def _dtypes(device: str) -> Sequence[str]:
    """What suits a device, best first: only GPUs are faster in bfloat16 than they are inexact."""
    return DTYPES if device == "cpu" else DTYPES[::-1]


def devices() -> list[str]:
    """The devices of this machine, best first."""
    import torch

    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


def wish_from(arguments: Sequence[str]) -> Wish:
    """The settings named on an engine's command line; prints usage and exits with 2 if it cannot be read."""
    parser = argparse.ArgumentParser(
        prog="engine",
        description="A node's inference engine, driven over pipes. What is not said is chosen: a GPU if there is one, "
        "and what the run permits.",
    )
    parser.add_argument("--device", help="torch device")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--attention", choices=ATTENTIONS)
    parser.add_argument("--batch-tokens", type=int, default=1 << 15, help="most padded tokens in one forward pass")
    chosen = parser.parse_args(arguments)
    if chosen.batch_tokens < 1:
        parser.error("--batch-tokens must be at least 1")
    return Wish(chosen.device, chosen.dtype, chosen.attention, chosen.batch_tokens)
