"""One rank beside two on gloo: the same batches must give the same losses.

`python -m benchmarks.world_size [--quick] [--json FILE]` trains some steps with world size 1 (plain), 1 (sharded,
bf16) and 2 (sharded, float32 and bf16), each under torchrun, and prints the greatest difference of the loss to the
plain one, and seconds per step of each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS = (
    ("1, plain", 1, "float32"),
    ("2, float32", 2, "float32"),
    ("1, bf16", 1, "bfloat16"),
    ("2, bf16", 2, "bfloat16"),
)
TOLERANCE = 1e-5


def one_rank(job: dict[str, Any]) -> None:
    """What each rank runs; the first writes the figures."""
    import torch
    from safetensors.torch import load_file

    from benchmarks.packing import make_rows
    from node.inference.torch_engine import build_model
    from node.training.learner import Learner
    from node.training.settings import TrainerSettings
    from node.training.world import join_world, leave_world
    from protocol.recipe import preset

    torch.set_num_threads(1)
    settings = TrainerSettings(world_size=job["ranks"], dtype=job["dtype"], micro_batch_tokens=2048)
    world = join_world(settings)
    recipe = preset("dppo", learning_rate=1e-3, decay_steps=0)
    model = Path(job["model"])
    learner = Learner(build_model(model), recipe, 1.0, settings, world)
    learner.load_weights(load_file(model / "model.safetensors"))
    rows = make_rows("long tail", job["rows"], 256)
    steps = []
    for step in range(job["steps"]):
        started = time.perf_counter()
        told = learner.step(rows, step)
        kept = {name: told[name] for name in ("loss", "grad_norm", "micro_batches")}
        steps.append({"seconds": time.perf_counter() - started, **kept})
    leave_world(world)
    if world.first:
        Path(job["out"]).write_text(json.dumps(steps))


def run(job: dict[str, Any], scratch: Path) -> list[dict[str, Any]]:
    path = scratch / "job.json"
    path.write_text(json.dumps(job))
    module = ["--module", "benchmarks.world_size", "--job", str(path)]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={job['ranks']}",
        *module,
    ]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    return json.loads(Path(job["out"]).read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three steps of a small batch, float32 only")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.job:
        one_rank(json.loads(a.job.read_text()))
        return
    import torch

    from node.training.warmstart import create_model

    torch.set_num_threads(1)
    figures: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        create_model(scratch / "model", "".join(chr(0x4E00 + i) for i in range(1022)), seed=0, hidden=256, layers=4)
        job = {"model": str(scratch / "model"), "out": str(scratch / "out.json")}
        job |= {"rows": 16, "steps": 3} if a.quick else {"rows": 48, "steps": 6}
        for label, ranks, dtype in KINDS[:2] if a.quick else KINDS:
            figures[label] = run({**job, "ranks": ranks, "dtype": dtype}, scratch)
    plain = figures["1, plain"]
    print(f"{'world size':14}{'loss off by':>14}{'norm off by':>14}{'s/step':>9}{'rounds':>8}")
    for label, steps in figures.items():
        loss, norm = (
            max(abs(mine[key] - other[key]) for mine, other in zip(steps, plain, strict=True))
            for key in ("loss", "grad_norm")
        )
        seconds = sorted(step["seconds"] for step in steps[1:])[len(steps[1:]) // 2]
        print(f"{label:14}{loss:14.2e}{norm:14.2e}{seconds:9.3f}{steps[0]['micro_batches']:8d}")
        if "float32" in label and loss > TOLERANCE:
            raise SystemExit(f"world size {label}: the loss differs by {loss:.2e}, more than {TOLERANCE}")
    if a.json:
        a.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
