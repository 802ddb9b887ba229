"""Our learner's step beside TRL's GRPO loss: same model, batch, thread count (one) and formula.

`python -m benchmarks.trainer_vs_trl [--quick] [--json FILE]` makes an environment with PyPI's trl in --venv (kept for
the next time), runs both sides as processes of their own, in turns, and prints tokens per second, their ratio, and
peak memory. TRL may choose its fastest micro-batch. Losses and gradient norms must agree, or nothing is compared.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

TRL = ("trl==1.9.2", "torch==2.13.0", "transformers==5.19.0", "requests")  # trl imports requests without asking for it
GROUP = 8
CLIP = {"clip_low": 0.2, "clip_high": 0.2, "ratio_cap": 4.0, "grad_clip": 1.0}


def make_rows(count: int, longest: int, vocabulary: int) -> list[dict[str, Any]]:
    """Rollouts of long-tailed lengths (median a fifth of the longest), all with signal."""
    random = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for i in range(count):
        size = int(np.clip(random.lognormal(np.log(longest / 5), 0.8), 4, longest))
        output = random.integers(2, vocabulary, size=size).tolist()
        prompt = random.integers(2, vocabulary, size=int(random.integers(8, 33))).tolist()
        logprobs = (-np.log(vocabulary) + random.normal(size=size) * 0.1).tolist()
        rows.append({"prompt": prompt, "output": output, "sampler_logprobs": logprobs, "reward": float(i % 2)})
    return rows


def ours(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    from node.inference.torch_engine import build_model
    from node.training.batch import BatchRow
    from node.training.learner import Learner
    from node.training.settings import TrainerSettings
    from protocol.recipe import preset

    torch.set_num_threads(1)
    recipe = preset("intellect2", learning_rate=1e-30, decay_steps=0, **CLIP)
    learner = Learner(build_model(Path(job["model"])), recipe, 1.0, TrainerSettings(micro_batch_tokens=job["budget"]))
    from safetensors.torch import load_file

    learner.load_weights(load_file(Path(job["model"]) / "model.safetensors"))
    rows = [
        BatchRow(i // GROUP, row["prompt"], row["output"], row["sampler_logprobs"], row["reward"], 0)
        for i, row in enumerate(job["rows"])
    ]
    seconds = []
    told: dict[str, Any] = {}
    for _ in range(job["repeats"] + 1):
        started = time.perf_counter()
        told = learner.step(rows, 0)
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": sorted(seconds[1:])[job["repeats"] // 2],
        "loss": told["loss"],
        "grad_norm": told["grad_norm"],
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def make_environment(directory: Path) -> Path:
    """A virtual environment with TRL; returns its Python."""
    python = directory / "bin" / "python"
    if not (directory / "ready").exists():
        print(f"installing {', '.join(TRL)} into {directory} (once, some minutes)", file=sys.stderr)
        venv.create(directory, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *TRL], check=True)
        (directory / "ready").touch()
    return python


def run(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the batch, one repeat")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "intellect-node-trl")
    parser.add_argument("--rounds", type=int, default=3, help="how often both sides take their turn")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.job:
        print(json.dumps(ours(json.loads(a.job.read_text()))))
        return
    import torch

    from node.training.warmstart import create_model

    torch.set_num_threads(1)
    rival = make_environment(a.venv)
    alphabet = "".join(chr(0x4E00 + i) for i in range(1022))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        create_model(scratch / "model", alphabet, seed=0, hidden=256, layers=4)
        rows = make_rows(16 if a.quick else 64, 192 if a.quick else 384, 1024)
        centred = np.array([row["reward"] for row in rows]).reshape(-1, GROUP)
        scaled = (centred - centred.mean(1, keepdims=True)) / (centred.std(1, ddof=1, keepdims=True) + 1e-6)
        for row, advantage in zip(rows, scaled.flatten().tolist(), strict=True):
            row["advantage"] = advantage
        job = {
            "model": str(scratch / "model"),
            "scratch": str(scratch / "trl"),
            "rows": rows,
            "group": GROUP,
            "repeats": 1 if a.quick else 3,
            "micro_batches": [8, 16] if a.quick else [4, 8, 16, 64],
            "budget": 4096,
            **CLIP,
        }
        path = scratch / "job.json"
        path.write_text(json.dumps(job))
        mine, theirs = [], []
        for _ in range(1 if a.quick else a.rounds):
            mine.append(run([sys.executable, "-m", "benchmarks.trainer_vs_trl", "--job", str(path)]))
            theirs.append(run([str(rival), str(Path(__file__).with_name("trl_step.py")), str(path)]))
    tokens = sum(len(row["prompt"]) + len(row["output"]) for row in rows)
    report(mine, theirs, tokens, a.json)


def report(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], tokens: int, target: Path | None) -> None:
    one, other = (min(side, key=lambda run: run["seconds"]) for side in (mine, theirs))
    for name in ("loss", "grad_norm"):
        if abs(one[name] - other[name]) > 1e-4 * max(1.0, abs(one[name])):
            raise SystemExit(f"not the same computation: {name} {one[name]} here, {other[name]} in TRL")
    ratio = other["seconds"] / one["seconds"]
    pairs = sorted(b["seconds"] / a["seconds"] for a, b in zip(mine, theirs, strict=True))
    print(f"{'':12}{'s/step':>10}{'tokens/s':>12}{'peak MiB':>12}{'grad norm':>12}")
    for name, side in (("this node", one), ("TRL", other)):
        peak = side["peak_bytes"] / 2**20
        print(f"{name:12}{side['seconds']:10.3f}{tokens / side['seconds']:12.0f}{peak:12.0f}{side['grad_norm']:12.6f}")
    print(f"ratio of tokens/s {ratio:.2f} (turn by turn {pairs[0]:.2f} to {pairs[-1]:.2f}); {tokens} tokens a step;")
    print(f"TRL at its fastest: {other['rows_per_micro_batch']} rows a micro-batch")
    if target:
        figures = {"ratio": ratio, "ratios": pairs, "tokens": tokens, "ours": mine, "trl": theirs, "versions": TRL}
        target.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
