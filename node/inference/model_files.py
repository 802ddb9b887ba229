"""The small JSON files of a model directory."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from node.inference.errors import ModelError

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""Tensors of every family: an output head is the embedding, unless it is one of its own."""
TIED, POSITIONS = "tie_word_embeddings", "max_position_embeddings"
SMALL_FILES = (".json", ".txt", ".model", ".jinja")
QUANTIZATION = "quantization_config"
NESTED: Mapping[str, tuple[str, str]] = {
    "qwen3_5": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
"""model_type of a model that reads pictures, too -> that of its language model, and transformers' class of it."""
_UNSAID: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208, TIED: True}
}
"""What published configurations leave to transformers' defaults."""
_NESTED = "text_config"
MAX_CONFIG_BYTES = 1024**2


def is_model_file(path: Path) -> bool:
    """Whether it goes with other weights of the same model: settings, tokenizer, template."""
    return path.suffix in SMALL_FILES and path.name != INDEX


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object of a model directory. Raises ModelError."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {MAX_CONFIG_BYTES} bytes")
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    # A stranger's config.json may be brackets without end, which json follows until Python's limit of recursion.
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            "the model cannot be loaded",
            f"{path}: {error}",
            "the model directory needs config.json, tokenizer.json and model.safetensors in Hugging Face form",
        ) from None
    return value


def language_config(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json as the language model in it is described: itself, but of a model that reads pictures, too."""
    inner, kind = config.get(_NESTED), str(config.get("model_type"))
    if kind not in NESTED or not isinstance(inner, dict):
        return config
    own = {**_UNSAID.get(kind, {}), **{name: config[name] for name in (TIED, "eos_token_id") if name in config}}
    return own | inner | {"model_type": NESTED[kind][0], "architectures": [NESTED[kind][1]]}


def is_mxfp4(config: dict[str, Any]) -> bool:
    """Whether a config.json says that experts are in four bits of the kind that node.inference.start_weights reads."""
    said = config.get(QUANTIZATION)
    return isinstance(said, dict) and said.get("quant_method") == "mxfp4"


def as_bf16(config: bytes, tensors: Collection[str] = ()) -> bytes:
    """A model's config.json that says bfloat16, which a policy's tensors are whatever the start model's were. tensors:
    names of the policy's: where they have a head of their own, it says so too.

    Who loads it would otherwise take twice the memory, look for four bits, or drop the head. What is no JSON object
    stays as it is.
    """
    try:
        found: Any = json.loads(config)
    except (ValueError, RecursionError):
        return config
    if isinstance(found, dict) and (inner := language_config(found)) is not found:
        found = inner  # its pictures are no part of a policy
        config = (json.dumps(found, indent=2) + "\n").encode()
    if isinstance(found, dict) and is_mxfp4(found):
        del found[QUANTIZATION]
        config = (json.dumps(found, indent=2) + "\n").encode()
    if isinstance(found, dict) and HEAD in tensors and found.get(TIED, True):
        found[TIED] = False
        config = (json.dumps(found, indent=2) + "\n").encode()
    names = [name for name in ("dtype", "torch_dtype") if name in found] if isinstance(found, dict) else []
    if not isinstance(found, dict) or (names and all(found[name] == "bfloat16" for name in names)):
        return config
    return (json.dumps(found | dict.fromkeys(names or ["dtype"], "bfloat16"), indent=2) + "\n").encode()
