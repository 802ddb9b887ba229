"""Whether batch-invariant arithmetic is that on this device, and what it costs beside the ordinary kind."""

import numpy as np
import torch

from benchmarks.command import clock_of
from benchmarks.engine import engine_run, model_of, prompts, rate, read
from benchmarks.gpu.job import Job, Rows
from benchmarks.gpu.models import SIZES
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, FinishedSequence, GenerationRequest
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller

KERNELS = ("sdpa", "fixed")


def measure(job: Job) -> Rows:
    """Rows that decoding at this batch size, decoding alone and reading agree about; one that is not 1 for `fixed`
    means that the device's kernels are not what the class promises. Tokens a second are the better of two turns."""
    batches, new, length = ((1, 8), 8, 600) if job.quick else ((1, 8, 64, 256), 64, 2048)
    clock, dtype = clock_of(job.device), getattr(torch, job.dtype)
    for kernel in KERNELS:
        model = model_of(SIZES[job.size].config, dtype, job.device, kernel)
        common = {"kernel": kernel, "dtype": job.dtype}
        reading = read(model, length, job.device)["tokens_per_s"]
        for batch in batches:
            speed = max(rate(engine_run(model), [new] * batch, clock) for _ in range(2))
            found = {"batch": batch, "drawn_per_s": speed, "read_per_s": reading, "equal": _equal(model, batch)}
            yield "rows equal and tokens per second", {**common, **found}


def _equal(model: LanguageModel, batch: int, new: int = 24) -> float:
    """The share of rows that decoding so many sequences together, decoding each alone and reading them agree about, to
    the bit."""
    drawn = np.random.default_rng(5)
    asked = [GenerationRequest(prompt, drawn.random(new)) for prompt in prompts(min(batch, 16), model.vocabulary)]
    together, alone = _decoded(model, asked), [_decoded(model, [one])[0] for one in asked]
    finished = [FinishedSequence(request.prompt, one.output) for request, one in zip(asked, together, strict=True)]
    seen = Prefiller(model, model.pass_tokens).prefill(finished, 1.0)
    same = [
        (one.heads == other.heads).all(1) & (one.heads == looked.heads).all(1)
        if one.output == other.output
        else np.zeros(new, dtype=bool)
        for one, other, looked in zip(together, alone, seen, strict=True)
    ]
    return float(np.concatenate(same).mean())


def _decoded(model: LanguageModel, asked: list[GenerationRequest]) -> list[Completion]:
    decoder = TorchDecoder(model, frozenset(), 1 << 15, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]
