"""The small JSON files of a model directory."""

import json
from pathlib import Path
from typing import Any

from node.inference.errors import ModelError

MAX_CONFIG_BYTES = 1024**2


def read_json(path: Path) -> dict[str, Any]:
    """A small JSON object of a model directory. Raises ModelError."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {MAX_CONFIG_BYTES} bytes")
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise ModelError(
            "the model cannot be loaded",
            f"{path}: {error}",
            "the model directory needs config.json, tokenizer.json and model.safetensors in Hugging Face form",
        ) from None
    return value
