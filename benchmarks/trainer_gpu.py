"""The trainer on a GPU: tokens per second, MFU, memory, and where the time goes, on a model of 0.5 to 1.5 B parameters.

`torchrun --standalone --nproc-per-node=N -m benchmarks.trainer_gpu [--size 0.6b|1.5b] [--json FILE]` (or plain
`python -m` for one GPU) builds a Qwen3 from a config, with random weights, and learns from random rollouts with bf16
layers, float32 master weights and activation checkpointing. A JSON line for each step, then a summary. `--tiny` is the
same on a CPU, to see that it runs.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from node import limits
from node.training.batch import BatchRow
from node.training.checkpoint import Checkpoints
from node.training.determinism import as_deterministic_as_set
from node.training.learner import Learner
from node.training.performance import measured, peak_flops
from node.training.planner import GpuCard, PlannedMachine, TrainingWork, plan
from node.training.settings import TrainerSettings
from node.training.sizing import DecoderShape
from node.training.trainer import Stopwatch
from node.training.world import join_world, leave_world
from node.units import GIB
from protocol.recipe import preset

SHAPES = {  # hidden, layers, heads, key heads, intermediate, vocabulary
    "tiny": (128, 2, 4, 2, 256, 512),
    "0.6b": (1024, 28, 16, 8, 3072, 151_936),
    "1.5b": (1536, 28, 12, 2, 8960, 151_936),
}


def make_model(size: str, device: torch.device) -> Any:
    hidden, layers, heads, key_heads, intermediate, vocabulary = SHAPES[size]
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        max_position_embeddings=1 << 16,
    )
    torch.manual_seed(0)
    with device:  # which makes a billion random numbers at once
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.eval()
    return model


def make_rows(tokens: int, longest: int, vocabulary: int, seed: int) -> list[BatchRow]:
    """Groups of 8 until about `tokens` are reached; lengths between a quarter and all of `longest`."""
    random = np.random.default_rng(seed)
    rows: list[BatchRow] = []
    total = 0
    while total < tokens or len(rows) % 8:
        size = int(random.integers(longest // 4, longest))
        output = random.integers(0, vocabulary, size=size).tolist()
        logprobs = np.full(size, -np.log(vocabulary)).tolist()
        rows.append(BatchRow(len(rows) // 8, output[:64], output, logprobs, float(len(rows) % 2), 0))
        total += size + 63
    return rows


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["0.6b", "1.5b"], default="0.6b")
    parser.add_argument("--tiny", "--quick", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=1 << 18, help="of one step")
    parser.add_argument("--no-checkpoint", action="store_true", help="none after the last step: 12 bytes a parameter")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--default", action="store_true", help="as a run has it that says nothing: planned, exact")
    parser.add_argument("--compile", action="store_true", help="layers by torch.compile, beside a run without")
    parser.add_argument("--gib", type=float, default=0.0, help="of the device's memory, at most (default: all)")
    a = parser.parse_args(arguments)
    tokens, longest, steps = (1024, 64, 2) if a.tiny else (a.tokens, 8192, a.steps)
    settings = planned(a.size, longest, a.gib, tiny=a.tiny) if a.default else tuned(tiny=a.tiny)
    settings = msgspec.structs.replace(settings, compile=a.compile)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as the trainer has it
    world = join_world(settings)
    if a.gib and world.device.type == "cuda":
        _, total = torch.cuda.mem_get_info(world.device)
        torch.cuda.set_per_process_memory_fraction(min(a.gib * 2**30 / total, 1.0), world.device)
    print(json.dumps({"settings": msgspec.to_builtins(settings)}), flush=True)
    model = make_model("tiny" if a.tiny else a.size, world.device)
    learner = Learner(model, preset("dppo", learning_rate=1e-6), 1.0, settings, world, longest)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, as_deterministic_as_set(settings, world.device):
        shared = Path(scratch) if world.size == 1 else Path(tempfile.gettempdir()) / "intellect-node-trainer-gpu"
        shared.mkdir(exist_ok=True)
        checkpoints = Checkpoints(shared, learner, "benchmark", world, keep=1)
        for step in range(steps):
            watch = Stopwatch(world.device)
            with watch("step"):
                told = learner.step(make_rows(tokens, longest, learner.vocabulary, step), step, watch)
            with watch("publish"):
                learner.image()
            if step == steps - 1 and not a.no_checkpoint:
                with watch("checkpoint, until training goes on"):
                    checkpoints.save(step, {})
                started = time.monotonic()
                checkpoints.wait()
                watch.seconds["checkpoint, in the background"] = round(time.monotonic() - started, 3)
            busy = watch.seconds["forward_backward"] + watch.seconds["optimizer"]
            mean = told["fed_tokens"] / max(told["tokens"], 1) * told["length_mean"]
            speed = measured(model, told["fed_tokens"], mean, busy, world.device, world.size, 0.0)
            kept = {name: told[name] for name in ("padding_share", "loss", "fed_tokens")}
            runs.append({**speed, **kept, "seconds": watch.seconds})
            if world.first:
                print(json.dumps({"step": step, **runs[-1]}), flush=True)  # for whoever ends this early
    leave_world(world)
    if world.first:
        report(runs, model, world.size, world.device, settings, a.json)


def tuned(*, tiny: bool) -> TrainerSettings:
    """The fastest that are known."""
    return TrainerSettings(
        device="cpu" if tiny else "cuda",
        dtype="bfloat16",
        micro_batch_tokens=512 if tiny else 1 << 15,
        activation_checkpointing=True,
        logit_cells=1 << 20 if tiny else 1 << 29,
        deterministic=False,
    )


def planned(size: str, longest: int, gib: float, *, tiny: bool) -> TrainerSettings:
    """The planner's, for a learner alone on this card. gib: of its memory, 0 for all that is free. Raises
    NothingFits."""
    if tiny:
        cards: tuple[GpuCard, ...] = ()
    else:
        free, total = torch.cuda.mem_get_info()
        cards = (GpuCard("0", torch.cuda.get_device_name(), total, min(free, int(gib * GIB) or free)),)
    work = TrainingWork(shape_of_size("tiny" if tiny else size), longest=longest, samples=False, evaluates=False)
    found = plan(PlannedMachine(cards, limits.memory().total), work, {"dtype": "bfloat16"})
    print(f"plan: {found.line}", file=sys.stderr)
    return found.settings


def shape_of_size(size: str) -> DecoderShape:
    hidden, layers, heads, key_heads, intermediate, vocabulary = SHAPES[size]
    return DecoderShape(
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        key_heads=key_heads,
        head=hidden // heads,
        vocabulary=vocabulary,
        tied=True,
        norms=True,
    )


def median_step(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """By speed; the first one warms up."""
    return sorted(runs[1:], key=lambda run: run["tokens_per_second"])[len(runs[1:]) // 2]


def report(
    runs: list[dict[str, Any]],
    model: Any,
    ranks: int,
    device: torch.device,
    settings: TrainerSettings,
    target: Path | None,
) -> None:
    best = median_step(runs)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    mfu = f"{best['mfu']:.1%}" if "mfu" in best else f"unknown (peak of {name}: {peak_flops(device, 0.0)})"
    print(f"{parameters / 1e9:.3f} B parameters on {ranks} x {name}, bf16, fp32 logits {settings.fp32_logits}")
    peak = best["peak_memory_bytes"] / 2**30
    print(f"tokens/s {best['tokens_per_second']:.0f}   MFU {mfu}   peak memory {peak:.2f} GiB")
    print(f"attention padding {best['padding_share']:.1%}")
    for part, seconds in {**best["seconds"], **runs[-1]["seconds"]}.items():
        print(f"  {part:36}{seconds:9.3f} s")
    if target:
        target.write_text(
            json.dumps({"device": name, "ranks": ranks, "parameters": parameters, "steps": runs}, indent=1)
        )


if __name__ == "__main__":
    main()
