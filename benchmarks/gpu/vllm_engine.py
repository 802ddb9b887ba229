"""Our engine on vLLM, by an interpreter that has it: `python -m benchmarks.gpu.vllm_engine JOB` prints a row a line."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import clock_of
from benchmarks.engine import prompts, rate
from benchmarks.gpu.job import Row, neat
from benchmarks.vllm_engine import cost_of_hooks, decode, engine
from node.inference.engine import Finished, Request
from node.inference.settings import EngineSettings
from node.inference.vllm.engine import VllmEngine

WAY = "vllm engine"
ROUNDS = 2


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    made = engine(Path(job["model"]), EngineSettings(job["device"], job["dtype"], "vllm"))
    assert isinstance(made, VllmEngine)  # noqa: S101 - what the registry makes for its kernel
    for section, row in _measured(made, job):
        print(json.dumps({"section": section, "row": neat(row)}), flush=True)


def _measured(made: VllmEngine, job: dict[str, Any]) -> Iterator[Row]:
    clock = clock_of(job["device"])
    for name, work in job["works"].items():
        best = max(rate(lambda asked: decode(made, asked), work, clock) for _ in range(ROUNDS))
        yield "decoding, tokens per second", {"way": WAY, "batch": name, "tokens_per_s": best}
    for texts in job["read"]:
        best = 0.0
        for text in texts:
            started = clock()
            made.prefill([Finished(text[: len(text) // 4], text[len(text) // 4 :])], 1.0)
            best = max(best, len(text) / (clock() - started))
        yield "prefill", {"way": WAY, "tokens": len(texts[0]), "tokens_per_s": best}
    for batch in (1, 8) if job["quick"] else (1, 8, 64, 256):
        yield "sampler and rows", {"batch": batch, **cost_of_hooks(made, [16] * batch)}
    yield "a policy loaded in flight", _swapped_in_flight(made, Path(job["other"]))


def _swapped_in_flight(made: VllmEngine, other: Path) -> dict[str, Any]:
    """Eight requests draw on, from the next token on with the new weights."""
    decoder, drawn = made.decoder(1.0), np.random.default_rng(3)
    for prompt in prompts(8, made.vocabulary):
        decoder.submit(Request(prompt, drawn.random(32)))
    for _ in range(8):
        decoder.step()
    started = time.perf_counter()
    made.load(made.read(str(other)), interrupt=True)
    seconds, done = time.perf_counter() - started, []
    while len(decoder):
        done += [completion for _, completion in decoder.step()]
    return {
        "requests": 8,
        "went on to their end": sum(len(one.output) == 32 for one in done),
        "drawn on with the new weights": sum(len(one.swaps) == 1 for one in done),
        "seconds": seconds,
        "GB/s": other.stat().st_size / seconds / 1e9,
    }


if __name__ == "__main__":
    main()
