"""The learner on one card: sharded by FSDP2 over a world of one, with bf16 layers and float32 master weights."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import Job, Rows
from benchmarks.trainer_gpu import median_step

SETTINGS = ("micro_batch_tokens", "activation_checkpointing", "offload_parameters", "logit_cells", "deterministic")
SECONDS = ("forward_backward", "optimizer", "pack", "publish", "step")


def measure(job: Job) -> Rows:
    """`python -m benchmarks.trainer_gpu` tuned and as a run has it that says nothing; one that has no room does not end
    the others."""
    ways = {
        "0.6b, tuned": ["--size", "0.6b"],
        "0.6b, default": ["--size", "0.6b", "--default"],
        "1.5b, tuned": ["--size", "1.5b"],
        "1.5b, default": ["--size", "1.5b", "--default"],
    }
    quick = {"tiny, tuned": ["--tiny"], "tiny, default": ["--tiny", "--default"]}
    learnt = False
    for name, options in (quick if job.quick else ways).items():
        steps = list[dict[str, Any]]()
        log = job.scratch / f"learner-{name.replace(', ', '-')}.said"
        for step in steps_of([*options, "--no-checkpoint", "--steps", "4"], log):
            if "settings" in step:
                yield "settings", {"model": name, **{one: step["settings"][one] for one in SETTINGS}}
                continue
            steps.append(step)
            yield "steps", {"model": name, "step": step["step"], **figures_of(step)}
        if len(steps) > 1:
            learnt = True
            yield "learner", {"model": name, **figures_of(median_step(steps))}
        else:
            yield "learner", {"model": name, "why not": " ".join(log.read_text(errors="replace").split())[-400:]}
    if not learnt:
        raise RuntimeError("it did not learn at any size")


def steps_of(options: list[str], log: Path) -> Iterator[dict[str, Any]]:
    """The settings, and each step as it is done. log: what else it says."""
    command = [sys.executable, "-m", "benchmarks.trainer_gpu", *options]
    with log.open("wb") as said, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as child:
        for line in child.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)


def figures_of(step: dict[str, Any]) -> dict[str, Any]:
    return {
        "tokens/s": step["tokens_per_second"],
        "MFU": step.get("mfu", "the device's peak is not known"),
        "peak GiB": step["peak_memory_bytes"] / 2**30,
        "tokens of a step": step["fed_tokens"],
        "padding": step["padding_share"],
        **{f"{name} s": step["seconds"].get(name) for name in SECONDS},
    }
