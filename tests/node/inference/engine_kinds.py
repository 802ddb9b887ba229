"""Every engine that this environment can run, made for a model; why the others cannot be tested."""

import warnings
from pathlib import Path

import pytest

from node.inference.engine import Engine
from node.inference.engines import ENGINES, make_engine
from node.inference.errors import EngineError
from node.inference.settings import EngineSettings

KINDS = sorted(ENGINES)


def open_engine(kind: str, model: Path) -> Engine:
    """An engine in float32 on the CPU, with the model's own weights. Skips where it cannot run."""
    try:
        ENGINES[kind].check("cpu")
    except EngineError as error:
        pytest.skip(f"{kind}: {error.why}; make test-vllm has an environment for it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, at its import
        engine, _ = make_engine(model, EngineSettings(attention=ENGINES[kind].kernels[0]))
        engine.load(engine.read(str(model / "model.safetensors")))
    return engine
