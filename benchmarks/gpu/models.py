"""The models that are measured: random weights in the shape of a real model, from a configuration or as a directory."""

import json
from dataclasses import dataclass
from math import log, sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3Config

from benchmarks.engine import LARGE_VOCABULARY, configuration

POSITIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class Size:
    """tied: whether the output head is the embedding. In a model of a few layers what comes out still resembles what
    went in, and a tied head would only repeat it."""

    shape: dict[str, Any]
    vocabulary: int
    tied: bool

    @property
    def config(self) -> Qwen3Config:
        made = configuration(self.shape, self.vocabulary, tied=self.tied)
        made.max_position_embeddings = POSITIONS
        return made


SIZES: dict[str, Size] = {
    "1.5b": Size(
        {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
        LARGE_VOCABULARY,
        tied=True,
    ),
    "tiny": Size(
        {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4},
        2048,
        tied=False,
    ),
}
"""1.5b: the shape of Qwen2.5-1.5B, with the norms of Qwen3."""


def directory(scratch: Path, size: str, device: str, seed: int = 0) -> Path:
    """A model directory with a canonical image of random weights, made once in `scratch`."""
    folder = scratch / f"model-{size}-{seed}"
    made = folder / "made"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, SIZES[size], device, seed)
        made.touch()
    return folder


def _write(folder: Path, size: Size, device: str, seed: int) -> None:
    from node.inference.torch_engine import build_model, image_names
    from node.training.image import stream_image
    from node.training.warmstart import SORT_ALPHABET, write_tokenizer

    write_tokenizer(folder, SORT_ALPHABET)
    size.config.save_pretrained(folder)
    told = json.loads((folder / "config.json").read_text())
    told |= {"architectures": ["Qwen3ForCausalLM"], "eos_token_id": 1, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps(told, indent=1))
    shapes = {name: tuple(tensor.shape) for name, tensor in image_names(build_model(folder, "meta")).items()}
    random = torch.Generator(device).manual_seed(seed)
    tensors = ((name, _weights(name, shape, size, random)) for name, shape in shapes.items())
    with (folder / "model.safetensors").open("wb") as file:
        stream_image(shapes, tensors, file)


def _weights(name: str, shape: tuple[int, ...], size: Size, random: torch.Generator) -> Tensor:
    """bf16 on the CPU. Logits spread so far that a few tokens have most of the weight, as after training: with a
    vocabulary of V the weight lies on ever fewer tokens as the spread nears sqrt(2 ln V)."""
    if name.endswith("norm.weight"):
        return torch.ones(shape, dtype=torch.bfloat16)
    head = "embed_tokens" if size.tied else "lm_head"
    hidden = size.shape["hidden_size"]
    spread = (0.85 * sqrt(2 * log(size.vocabulary)) if head in name else 0.8) / sqrt(hidden)
    return torch.empty(shape, device=random.device).normal_(0, spread, generator=random).bfloat16().cpu()
