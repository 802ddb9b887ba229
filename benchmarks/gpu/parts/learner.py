"""The learner on one card: sharded by FSDP2 over a world of one, with bf16 layers and float32 master weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.job import Job, Rows
from benchmarks.trainer_gpu import median_step

SECONDS = ("forward_backward", "optimizer", "pack", "publish", "step")


def measure(job: Job) -> Rows:
    """`python -m benchmarks.trainer_gpu` for each size; one that has no room does not end the others."""
    large = {"0.6b": ["--size", "0.6b"], "1.5b": ["--size", "1.5b", "--no-checkpoint", "--steps", "4"]}
    found = []
    for size, options in ({"tiny": ["--tiny"]} if job.quick else large).items():
        found.append(_figures(job, size, options))
        yield "learner", found[-1]
    if all("why not" in row for row in found):
        raise RuntimeError("it did not learn at any size")


def _figures(job: Job, size: str, options: list[str]) -> dict[str, Any]:
    target: Path = job.scratch / f"learner-{size}.json"
    command = [sys.executable, "-m", "benchmarks.trainer_gpu", *options, "--json", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not target.exists():
        print(done.stderr, file=sys.stderr)
        return {"model": size, "why not": " ".join(done.stderr.split())[-400:]}
    told = json.loads(target.read_text())
    step = median_step(told["steps"])
    return {
        "model": size,
        "parameters": told["parameters"],
        "ranks": told["ranks"],
        "tokens/s": step["tokens_per_second"],
        "MFU": step.get("mfu", "the device's peak is not known"),
        "peak GiB": step["peak_memory_bytes"] / 2**30,
        "tokens of a step": step["fed_tokens"],
        "padding": step["padding_share"],
        **{f"{name} s": step["seconds"].get(name) for name in SECONDS},
    }
