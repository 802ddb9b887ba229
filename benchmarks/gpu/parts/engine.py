"""Tokens per second that the torch engine draws and reads, beside transformers on the same weights, and peak memory."""

import numpy as np
import torch

from benchmarks.command import clock_of, peak, reset_peak
from benchmarks.engine import Run, engine_run, model_of, rate, read, transformers_runs
from benchmarks.gpu.job import BATCH_TOKENS, Job, Rows
from benchmarks.gpu.models import SIZES

OWN = "torch engine"
ROUNDS = {OWN: 2}
"""Turns, of which the best counts (1): the engine captures its graphs in the first. All have drawn a few tokens
before."""


def works(quick: bool) -> dict[str, list[int]]:
    """Name -> the lengths to decode, all at a time; what says most comes first."""
    batches, new, longest = ((1, 8), 8, 32) if quick else ((1, 8, 64, 256), 128, 512)
    count = batches[-1]
    mixed = np.random.default_rng(2).permutation(np.linspace(longest // 16, longest, count).astype(int)).tolist()
    return {f"{count} of {longest // 16}..{longest}": mixed} | {str(batch): [new] * batch for batch in batches[::-1]}


def reads(quick: bool) -> tuple[int, int]:
    """A prompt of a usual length, and a long one."""
    return (256, 1536) if quick else (2048, 32_768)


def measure(job: Job) -> Rows:
    size, dtype = SIZES[job.size], getattr(torch, job.dtype)
    before = reset_peak(job.device)
    model = model_of(size.config, dtype, job.device)
    yield "memory", {"weights and head of the torch engine, MiB": reset_peak(job.device) - before}
    ours = engine_run(model, BATCH_TOKENS)
    own: dict[str, dict[str, float | str]] = {}
    for name, work in works(job.quick).items():
        own[name] = _best(OWN, ours, work, job.device)
        yield "decoding, tokens per second", {"batch": name, "tokens": sum(work), **own[name]}
    if not any(isinstance(row[OWN], float) for row in own.values()):
        raise RuntimeError("the torch engine did not decode at all")
    for length in reads(job.quick):
        yield "prefill", read(model, length, job.device)
    # Rivals last: they take most of the time, and say nothing of us by themselves.
    for way, run in transformers_runs(size.config, dtype, job.device).items():
        for name, work in works(job.quick).items():
            row = {"batch": name, **_best(way, run, work, job.device)}
            if isinstance(own[name][OWN], float) and isinstance(row[way], float):
                row["ratio"] = own[name][OWN] / row[way]
            yield f"beside {way}", row


def _best(way: str, run: Run, work: list[int], device: str) -> dict[str, float | str]:
    """The best turn, and its memory on top of all weights; or why there is none: another batch may do."""
    clock = clock_of(device)
    try:
        run([4] * len(work))
        before = reset_peak(device)
        best = max(rate(run, work, clock) for _ in range(ROUNDS.get(way, 1)))
        return {way: best, f"{way}, MiB on top": peak(device) - before}
    except RuntimeError as error:  # of memory, most likely
        return {way: f"{type(error).__name__}: {error}"[:200]}
