"""What batch-invariant arithmetic costs beside the ordinary kind, and what is equal in each: `benchmarks.gpu --only
invariance`. Tokens a second are the better of two turns; no program by itself.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from benchmarks.command import clock_of
from benchmarks.engine import engine_run, model_of, prompts, rate, read
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, Finished, Request
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller

KERNELS = ("sdpa", "fixed")
Row = dict[str, Any]


def rows(
    config: Qwen3Config, dtype: torch.dtype, device: str, batches: tuple[int, ...], new: int, length: int
) -> Iterator[Row]:
    """One a kernel and batch. length: of the sequence that is read."""
    clock = clock_of(device)
    for kernel in KERNELS:
        model = model_of(config, dtype, device, kernel)
        common = {"kernel": kernel, "dtype": str(dtype).removeprefix("torch.")}
        reading = read(model, length, device)["tokens_per_s"]
        for batch in batches:
            speed = max(rate(engine_run(model), [new] * batch, clock) for _ in range(2))
            yield {**common, "batch": batch, "drawn_per_s": speed, "read_per_s": reading, "equal": equal(model, batch)}


def equal(model: LanguageModel, batch: int, new: int = 24) -> float:
    """The share of rows that decoding so many sequences together, decoding each alone and reading them agree about, to
    the bit."""
    drawn = np.random.default_rng(5)
    asked = [Request(prompt, drawn.random(new)) for prompt in prompts(min(batch, 16), model.vocabulary)]
    together, alone = decoded(model, asked), [decoded(model, [one])[0] for one in asked]
    finished = [Finished(request.prompt, one.output) for request, one in zip(asked, together, strict=True)]
    seen = Prefiller(model, model.pass_tokens).prefill(finished, 1.0)
    same = [
        (one.heads == other.heads).all(1) & (one.heads == looked.heads).all(1)
        if one.output == other.output
        else np.zeros(new, dtype=bool)
        for one, other, looked in zip(together, alone, seen, strict=True)
    ]
    return float(np.concatenate(same).mean())


def decoded(model: LanguageModel, asked: list[Request]) -> list[Completion]:
    decoder = TorchDecoder(model, frozenset(), 1 << 15, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]
