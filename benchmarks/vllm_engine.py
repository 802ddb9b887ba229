"""What benchmarks.gpu's child on vLLM measures with: an engine of given lengths, and what our hooks in vLLM cost. No
program by itself.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import clock_of
from benchmarks.engine import prompts
from node.inference.engine import Engine, Request, generate
from node.inference.engines import make_engine
from node.inference.settings import EngineSettings
from node.inference.vllm import hooks as hooks_module
from node.inference.vllm.engine import VllmEngine
from node.inference.vllm.hooks import Recorder


def engine(model: Path, settings: EngineSettings) -> Engine:
    """With the model's weights, and without an end token: lengths are those that were asked for."""
    made, _ = make_engine(model, settings)
    made.load(made.read(str(model / "model.safetensors")))
    made.eos = frozenset()  # type: ignore[misc]
    return made


def decode(made: Engine, work: list[int]) -> int:
    drawn = np.random.default_rng(3)
    asked = zip(prompts(len(work), made.vocabulary), work, strict=True)
    requests = [Request(prompt, drawn.random(count)) for prompt, count in asked]
    return sum(len(completion.output) for completion in generate(made, requests, 1.0))


def cost_of_hooks(made: VllmEngine, work: list[int]) -> dict[str, float]:
    clock = clock_of(made.device)
    spent = {"sampler": 0.0, "rows": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = clock()
            try:
                return call(*arguments)
            finally:
                spent[name] += clock() - started

        return run

    hooked = [
        (hooks_module, "choose", "sampler"),
        (hooks_module, "force", "sampler"),
        (hooks_module, "bf16_bits", "rows"),
        (Recorder, "add", "rows"),
        (Recorder, "take", "rows"),
    ]
    before = [getattr(place, name) for place, name, _ in hooked]
    for (place, name, part), call in zip(hooked, before, strict=True):
        setattr(place, name, timed(part, call))
    try:
        started = clock()
        tokens = decode(made, work)
        whole = clock() - started
    finally:
        for (place, name, _), call in zip(hooked, before, strict=True):
            setattr(place, name, call)
    rest = whole - sum(spent.values())
    shares = {f"{name}_share": round(seconds / rest, 4) for name, seconds in spent.items()}
    return {"tokens_per_s": round(tokens / whole, 1), **shares}
