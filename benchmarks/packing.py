"""What packing saves: padding share and time of one optimiser step, packed beside padded batches.

`python -m benchmarks.packing [--quick] [--json FILE]`: a Qwen3 of 3.4 M parameters on one thread, three distributions
of lengths. "padded" sorts samples by length before it pads, "padded, unsorted" does not; the gradient is the same.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from node.inference.torch_engine import build_model
from node.training import learner as learner_module
from node.training.batch import BatchRow
from node.training.learner import Learner
from node.training.packing import plan_padded
from node.training.settings import TrainerSettings
from node.training.warmstart import create_model
from protocol.recipe import preset

VOCABULARY = 1024


def make_rows(kind: str, count: int, longest: int) -> list[BatchRow]:
    random = np.random.default_rng(0)
    rows = []
    for i in range(count):
        match kind:
            case "long tail":
                size = int(np.clip(random.lognormal(np.log(longest / 6), 0.9), 4, longest))
            case "uniform":
                size = int(random.integers(4, longest))
            case _:
                size = longest // 3
        output = random.integers(2, VOCABULARY, size=size).tolist()
        logprobs = (-np.log(VOCABULARY) + random.normal(size=size) * 0.1).tolist()
        prompt = random.integers(2, VOCABULARY, size=16).tolist()
        rows.append(BatchRow(i // 8, prompt, output, logprobs, float(i % 2), 0))
    return rows


def plan_unsorted(lengths: np.ndarray, budget: int, ranks: int = 1) -> list[list[np.ndarray]]:
    """Samples as they come: what a trainer does that pads each micro-batch to its longest."""
    size = max(1, budget // int(lengths.max()))
    return [[np.arange(at, min(at + size, len(lengths)))] for at in range(0, len(lengths), size)]


def measure(model: Path, rows: list[BatchRow], layout: str, budget: int, repeats: int) -> dict[str, Any]:
    settings = TrainerSettings(packing=layout == "packed", micro_batch_tokens=budget)
    learner = Learner(build_model(model), preset("dppo", learning_rate=1e-30, decay_steps=0), 1.0, settings)
    learner.load_weights(load_file(model / "model.safetensors"))
    setattr(learner_module, "plan_padded", plan_unsorted if layout == "padded, unsorted" else plan_padded)  # noqa: B010
    seconds, told = [], {}
    for _ in range(repeats + 1):
        started = time.perf_counter()
        told = learner.step(rows, 0)
        seconds.append(time.perf_counter() - started)
    return {
        "seconds": min(seconds[1:]),
        "padding_share": told["padding_share"],
        "grad_norm": told["grad_norm"],
        "micro_batches": told["micro_batches"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a quarter of the batch, one repeat")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--budget", type=int, default=4096, help="tokens of a micro-batch")
    a = parser.parse_args()
    torch.set_num_threads(1)
    count, longest, repeats = (16, 192, 1) if a.quick else (64, 384, 3)
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        model = Path(name)
        create_model(model, "".join(chr(0x4E00 + i) for i in range(VOCABULARY - 2)), seed=0, hidden=256, layers=4)
        print(f"{'lengths':12}{'layout':20}{'padding':>9}{'s/step':>9}{'time':>8}{'micro-batches':>15}")
        for kind in ("long tail", "uniform", "equal"):
            rows = make_rows(kind, count, longest)
            found = {
                layout: measure(model, rows, layout, a.budget, repeats)
                for layout in ("packed", "padded", "padded, unsorted")
            }
            for layout, one in found.items():
                if abs(one["grad_norm"] - found["packed"]["grad_norm"]) > 1e-4 * one["grad_norm"]:
                    raise SystemExit(f"{layout} has another gradient: {one['grad_norm']}")
                share, ratio = one["padding_share"], one["seconds"] / found["packed"]["seconds"]
                print(
                    f"{kind:12}{layout:20}{share:9.1%}{one['seconds']:9.3f}{ratio:7.2f}x{one['micro_batches']:15d}",
                    flush=True,
                )
            figures[kind] = found
    if a.json:
        a.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
