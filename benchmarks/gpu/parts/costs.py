"""What drawing tokens that can be replayed, and proving activations, take of a step of decoding."""

import torch

from benchmarks.engine import cost_of_hooks, model_of
from benchmarks.gpu.job import BATCH_TOKENS, Job, Rows
from benchmarks.gpu.models import SIZES
from benchmarks.measuring import clock_of


def measure(job: Job) -> Rows:
    """Shares are of the rest of decoding. The device is waited for before and after each draw, so that its seconds are
    its own: what runs ahead of it otherwise makes tokens per second a little lower than those of part `engine`."""
    model = model_of(SIZES[job.size].config, getattr(torch, job.dtype), job.device)
    clock = clock_of(job.device)
    cost_of_hooks(model, 1, 4, clock)  # wakes the device
    for batch, new in ((1, 8), (8, 8)) if job.quick else ((1, 128), (8, 128), (64, 64), (256, 64)):
        found = cost_of_hooks(model, batch, new, clock, BATCH_TOKENS)
        yield "sampler and proofs", {"batch": batch, "vocabulary": model.vocabulary, **found}
