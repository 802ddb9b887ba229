"""Our engine on vLLM, by an interpreter that has it: `python -m benchmarks.gpu.vllm_engine JOB` prints a row a line."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.command import clock_of
from benchmarks.engine import prompts, rate
from benchmarks.gpu.job import Row, neat
from node.inference.engine import Engine, FinishedSequence, GenerationRequest, generate
from node.inference.engines import make_engine
from node.inference.settings import EngineSettings
from node.inference.vllm import hooks as hooks_module
from node.inference.vllm.engine import VllmEngine
from node.inference.vllm.hooks import ActivationRecorder

WAY = "vllm engine"
ROUNDS = 2


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    made = _engine(Path(job["model"]), EngineSettings(job["device"], job["dtype"], "vllm"))
    assert isinstance(made, VllmEngine)
    for section, row in _measured(made, job):
        print(json.dumps({"section": section, "row": neat(row)}), flush=True)


def _measured(made: VllmEngine, job: dict[str, Any]) -> Iterator[Row]:
    clock = clock_of(job["device"])
    for name, work in job["works"].items():
        best = max(rate(lambda asked: _decode(made, asked), work, clock) for _ in range(ROUNDS))
        yield "decoding, tokens per second", {"way": WAY, "batch": name, "tokens_per_s": best}
    for texts in job["read"]:
        best = 0.0
        for text in texts:
            started = clock()
            made.prefill([FinishedSequence(text[: len(text) // 4], text[len(text) // 4 :])], 1.0)
            best = max(best, len(text) / (clock() - started))
        yield "prefill", {"way": WAY, "tokens": len(texts[0]), "tokens_per_s": best}
    for batch in (1, 8) if job["quick"] else (1, 8, 64, 256):
        yield "sampler and rows", {"batch": batch, **_cost_of_hooks(made, [16] * batch)}


def _engine(model: Path, settings: EngineSettings) -> Engine:
    """With the model's weights, and without an end token: lengths are those that were asked for."""
    made, _ = make_engine(model, settings)
    made.load(made.read(str(model / "model.safetensors")))
    made.eos = frozenset()  # type: ignore[misc]
    return made


def _decode(made: Engine, work: list[int]) -> int:
    drawn = np.random.default_rng(3)
    asked = zip(prompts(len(work), made.vocabulary), work, strict=True)
    requests = [GenerationRequest(prompt, drawn.random(count)) for prompt, count in asked]
    return sum(len(completion.output) for completion in generate(made, requests, 1.0))


def _cost_of_hooks(made: VllmEngine, work: list[int]) -> dict[str, float]:
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
        (ActivationRecorder, "add", "rows"),
        (ActivationRecorder, "take", "rows"),
    ]
    with ExitStack() as stack:
        for place, name, part in hooked:
            stack.enter_context(patch.object(place, name, timed(part, getattr(place, name))))
        started = clock()
        tokens = _decode(made, work)
        whole = clock() - started
    rest = whole - sum(spent.values())
    shares = {f"{name}_share": round(seconds / rest, 4) for name, seconds in spent.items()}
    return {"tokens_per_s": round(tokens / whole, 1), **shares}


if __name__ == "__main__":
    main()
