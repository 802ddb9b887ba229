"""The learner on one card: sharded by FSDP2 over a world of one, with bf16 layers and float32 master weights."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import Job, Rows
from benchmarks.trainer_gpu import median_step

SECONDS = ("forward_backward", "optimizer", "pack", "publish", "step")


def measure(job: Job) -> Rows:
    """`python -m benchmarks.trainer_gpu` for each size; one that has no room does not end the others."""
    large = {"0.6b": ["--size", "0.6b", "--no-checkpoint"], "1.5b": ["--size", "1.5b", "--no-checkpoint"]}
    learnt = False
    for size, options in ({"tiny": ["--tiny"]} if job.quick else large).items():
        steps = []
        command = [sys.executable, "-m", "benchmarks.trainer_gpu", *options, "--steps", "4"]
        log = job.scratch / f"learner-{size}.said"
        for step in _steps(command, log):
            steps.append(step)
            yield "steps", {"model": size, "step": step["step"], **_figures(step)}
        if len(steps) > 1:
            learnt = True
            yield "learner", {"model": size, **_figures(median_step(steps))}
        else:
            yield "learner", {"model": size, "why not": " ".join(log.read_text(errors="replace").split())[-400:]}
    if not learnt:
        raise RuntimeError("it did not learn at any size")


def _steps(command: list[str], log: Path) -> Iterator[dict[str, Any]]:
    """As each is done."""
    with log.open("wb") as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as child:
        for line in child.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)


def _figures(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokens/s": step["tokens_per_second"],
        "MFU": step.get("mfu", "the device's peak is not known"),
        "peak GiB": step["peak_memory_bytes"] / 2**30,
        "tokens of a step": step["fed_tokens"],
        "padding": step["padding_share"],
        **{f"{name} s": step["seconds"].get(name) for name in SECONDS},
    }
