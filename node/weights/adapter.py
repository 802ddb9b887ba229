"""Adapters (protocol.lora) for others: in PEFT's format, and merged into the start model.

PEFT loads an adapter as weight + lora_B @ lora_A * lora_alpha / r. A policy has the trainer's factor in its second
matrix already, so lora_alpha is r here, whatever the recipe said: the sum is the same. Hashes nothing: the image is the
caller's to verify.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from node.state.files import whole_file, write_whole
from node.weights.images import mapped
from protocol.lora import LORA_A, LORA_B, is_adapter
from protocol.policy import bf16_bits, bf16_values, decode_image, image_header, raw

ADAPTER_DIRECTORY, POLICY_DIRECTORY = "adapter", "policy"
"""Below an exported model: PEFT's files, and the tensors that the trainer signed."""
MERGED_WEIGHTS = "model.safetensors"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def holds_adapter(image: Path) -> bool:
    """Whether a policy's image is an adapter. Raises MalformedPolicy."""
    return is_adapter(decode_image(mapped(image)))


def write_both(image: Path, out: Path, model_dir: Path) -> tuple[str, ...]:
    """An adapter for PEFT and, where the start model's weights are at hand, merged into them; the weight files,
    relative to `out`. Raises MalformedPolicy."""
    write_adapter(image, out / ADAPTER_DIRECTORY, model_dir)
    found = f"{ADAPTER_DIRECTORY}/{ADAPTER_WEIGHTS}"
    # Whoever only fetched the policy has no start model; the adapter alone is of use to him.
    if not any(model_dir.glob("*.safetensors")):
        return (found,)
    write_merged(image, model_dir, out / MERGED_WEIGHTS)
    return (found, MERGED_WEIGHTS)


def write_adapter(image: Path, out: Path, model_dir: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors into the directory `out`. model_dir: the start model's,
    whose name or place is told to those who load the adapter by itself. Raises MalformedPolicy."""
    tensors = decode_image(mapped(image))
    out.mkdir(parents=True, exist_ok=True)
    # By PEFT's names, which sort otherwise than ours.
    named = dict(sorted((peft_name(name), tensor) for name, tensor in tensors.items()))
    with whole_file(out / ADAPTER_WEIGHTS) as file:
        file.write(image_header((name, tensor.shape) for name, tensor in named.items()))
        for tensor in named.values():
            file.write(raw(tensor))
    config = peft_config({name: tensor.shape for name, tensor in tensors.items()}, _called(model_dir))
    write_whole(out / ADAPTER_CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def peft_name(name: str) -> str:
    """base_model.model.NAME.lora_A.weight for NAME.lora_a."""
    stem, matrix = (name[: -len(LORA_A)], "A") if name.endswith(LORA_A) else (name[: -len(LORA_B)], "B")
    return f"base_model.model.{stem}.lora_{matrix}.weight"


def peft_config(shapes: Mapping[str, tuple[int, ...]], base: str) -> dict[str, object]:
    """What PEFT's LoraConfig writes of such an adapter."""
    rank = next(shape[0] for name, shape in shapes.items() if name.endswith(LORA_A))
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        # The last part of a name ("q_proj"): PEFT finds the layers by suffix.
        "target_modules": sorted({name.rpartition(".")[0].rpartition(".")[2] for name in shapes}),
        "inference_mode": True,
    }


def _called(model_dir: Path) -> str:
    """As on the hub, if its config.json says so; else its place on this machine."""
    try:
        name = json.loads((model_dir / "config.json").read_bytes()).get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        name = None
    return name if isinstance(name, str) and name else str(model_dir.resolve())


def write_merged(image: Path, model_dir: Path, out: Path) -> None:
    """Write the canonical bf16 image of the start model with the adapter in it. Needs torch; raises ModelError.

    Rounding to bf16 swallows what is smaller than a weight's last bit: the adapter itself is exact.
    """
    import torch

    from node.inference.lora import merged
    from node.inference.start_weights import StartWeights

    adapter = {
        name: torch.from_numpy(bf16_values(tensor)).to(torch.bfloat16)
        for name, tensor in decode_image(mapped(image)).items()
    }
    # Tensor by tensor from its files: the whole model need not fit beside its merged copy.
    start = StartWeights(model_dir)
    whole, names = merged(start, adapter), sorted(start)
    with whole_file(out) as file:
        file.write(image_header((name, start.shape(name)) for name in names))
        for name in names:
            file.write(raw(bf16_bits(whole[name].float().numpy())))
