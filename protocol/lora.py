"""LoRA (arXiv 2106.09685) as a run's option: which layers get an adapter, how large it is, how its tensors are called.

A policy of such a run is its adapter alone. To a layer NAME.weight, [out, in], belong NAME.lora_a, [rank, in], and
NAME.lora_b, [out, rank]. The trainer's alpha / rank is already in what is published as lora_b, so whoever has a policy
and the start model needs nothing else: the layer's weight is weight + lora_b @ lora_a.
"""

import re
from collections.abc import Iterable

import msgspec

LORA_A, LORA_B, WEIGHT = ".lora_a", ".lora_b", ".weight"
EVERY_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Of Llama, Qwen2 and Qwen3: all linear layers but the output head."""
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter in PEFT's format."""
ADAPTER = "adapter"
"""Directory of a run's assets: its policy 0 in PEFT's format, where that is no empty adapter."""
MAX_RANK = 1024
MAX_TARGETS = 32
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


class Lora(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """rank: columns of lora_b and rows of lora_a; alpha: the adapter counts alpha / rank; targets: last parts of the
    names of the linear layers that have one, in every decoder layer."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = EVERY_LINEAR

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def rules(self) -> list[tuple[str, bool, str]]:
        """(field, whether it makes sense, the rule)."""
        names = self.targets
        return [
            ("recipe.lora.rank", 1 <= self.rank <= MAX_RANK, f"must be 1 to {MAX_RANK}"),
            ("recipe.lora.alpha", 0 < self.alpha <= 1e6, "must be above 0"),
            ("recipe.lora.targets", 1 <= len(names) <= MAX_TARGETS, f"must be 1 to {MAX_TARGETS} names of layers"),
            (
                "recipe.lora.targets",
                len(set(names)) == len(names) and all(map(_NAME.fullmatch, names)),
                "must be names of linear layers without dots, each once, like q_proj",
            ),
        ]


def is_adapter(names: Iterable[str]) -> bool:
    """Whether a policy with tensors of these names is an adapter, not a whole model."""
    found = list(names)
    return bool(found) and all(name.endswith((LORA_A, LORA_B)) for name in found)


def adapted_weight(name: str) -> str:
    """The weight that an adapter's tensor belongs to."""
    return name.removesuffix(LORA_A).removesuffix(LORA_B) + WEIGHT


_PEFT = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def peft_name(name: str) -> str:
    """base_model.model.NAME.lora_A.weight for NAME.lora_a."""
    stem, matrix = (name[: -len(LORA_A)], "A") if name.endswith(LORA_A) else (name[: -len(LORA_B)], "B")
    return f"base_model.model.{stem}.lora_{matrix}.weight"


def from_peft_name(name: str) -> str | None:
    """The other way; None for what is no part of such an adapter."""
    found = _PEFT.fullmatch(name)
    return found and found[1] + (LORA_A if found[2] == "A" else LORA_B)


def tensors_of(weight: str) -> tuple[str, str]:
    """The names of the two tensors that are added to a weight."""
    stem = weight.removesuffix(WEIGHT)
    return stem + LORA_A, stem + LORA_B
