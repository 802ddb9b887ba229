"""What drawing tokens that can be replayed, and proving activations, take of a step of decoding."""

import torch

from benchmarks.command import Clock, clock_of
from benchmarks.engine import cost_of_hooks, engine_run, model_of, rate
from benchmarks.gpu.job import BATCH_TOKENS, Job, Rows
from benchmarks.gpu.models import SIZES
from node.inference.language_model import LanguageModel


def _with_and_without(model: LanguageModel, work: list[int], clock: Clock) -> dict[str, float | bool]:
    """The better of two turns each; `captured`: whether the device could, and replays were right."""
    found: dict[str, float | bool] = {}
    usable = model.graphs.works
    for name, wanted in (("without", False), ("with", True)):
        model.graphs.works = usable and wanted
        found[name] = max(rate(engine_run(model, BATCH_TOKENS), work, clock) for _ in range(2))
    return {**found, "captured": model.graphs.works}


def measure(job: Job) -> Rows:
    """Shares are of the rest of decoding. The device is waited for before and after each draw, so that its seconds are
    its own: what runs ahead of it otherwise makes tokens per second a little lower than those of part `engine`."""
    model = model_of(SIZES[job.size].config, getattr(torch, job.dtype), job.device)
    clock = clock_of(job.device)
    cost_of_hooks(model, 1, 4, clock)  # wakes the device
    for batch, new in ((8, 8),) if job.quick else ((1, 128), (8, 128), (64, 128), (256, 128)):
        yield "CUDA graphs, tokens per second", {"batch": batch, **_with_and_without(model, [new] * batch, clock)}
    for batch, new in ((1, 8), (8, 8)) if job.quick else ((1, 128), (8, 128), (64, 64), (256, 64)):
        found = cost_of_hooks(model, batch, new, clock, BATCH_TOKENS)
        yield "sampler and proofs", {"batch": batch, "vocabulary": model.vocabulary, **found}
