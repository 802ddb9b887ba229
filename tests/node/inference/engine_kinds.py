"""Every engine that this environment can run, made for a model; why the others cannot be tested."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from node.inference.engine import Engine, GenerationRequest, generate
from node.inference.engines import ENGINES, make_engine
from node.inference.errors import EngineError
from node.inference.image import ImageFile
from node.inference.settings import EngineSettings
from node.inference.torch_engine import bf16_bits
from protocol.policy import encode_image
from protocol.sampling import uniforms

KINDS = sorted(ENGINES)
DEVICE = os.environ.get("INTELLECT_NODE_TEST_DEVICE", "cpu")
"""Where the engines under test compute."""


def write_image(path: Path, tensors: Mapping[str, Tensor]) -> ImageFile:
    """A policy's image of these weights."""
    path.write_bytes(encode_image({name: bf16_bits(tensor) for name, tensor in tensors.items()}))
    return ImageFile(path)


def open_engine(kind: str, model: Path) -> Engine:
    """An engine in float32, with the model's own weights. Skips where it cannot run."""
    try:
        ENGINES[kind].check(DEVICE)
    except EngineError as error:
        pytest.skip(f"{kind}: {error.why}; make test-vllm has an environment for it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, at its import
        engine, _ = make_engine(model, EngineSettings(DEVICE, attention=ENGINES[kind].kernels[0]))
        engine.load(engine.read(str(model / "model.safetensors")))
    return engine


def requests(lengths: list[int], limit: int = 30) -> list[GenerationRequest]:
    """Prompts of these lengths; a seed of its own for each."""
    random = np.random.default_rng(1)
    return [
        GenerationRequest(random.integers(2, 12, size=n).tolist(), uniforms(bytes([i]) * 32, limit))
        for i, n in enumerate(lengths)
    ]


def outputs(engine: Engine, asked: list[GenerationRequest]) -> list[list[int]]:
    return [completion.output for completion in generate(engine, asked, 0.9)]
