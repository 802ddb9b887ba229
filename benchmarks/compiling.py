"""Compiled layers beside eager ones: kernels of a layer, and seconds of a step and of the start.

`python -m benchmarks.compiling [--quick]` trains a Qwen3 with random weights on a CPU, which needs a C++ compiler.
Kernels are operations of torch that are no views, and what inductor makes of them, forward and backward. Attention over
the samples of a pack is the same in both, and counted in both. Steps are made in turns; their seconds are the
processor's. At the end two processes make the same step, one of them after another one: they must come to equal bits.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from blake3 import blake3
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.trainer_gpu import make_rows
from node.training.attention import packed_attention
from node.training.learner import Learner
from node.training.settings import TrainerSettings
from protocol.recipe import preset

LONGEST = 256


class Launches(TorchDispatchMode):
    """Counts operations whose results are not views of what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and "empty" not in str(func) and "detach" not in str(func)
        return func(*args, **(kwargs or {}))


def make_learner(width: int, layers: int, tokens: int, *, compiles: bool) -> Learner:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=width // 8,
        vocab_size=1024,
        tie_word_embeddings=True,
    )
    settings = TrainerSettings(micro_batch_tokens=tokens, compile=compiles)
    return Learner(AutoModelForCausalLM.from_config(config), preset("dppo"), 1.0, settings, max_output_tokens=LONGEST)


def launches_of_a_layer(width: int, tokens: int) -> dict[str, float]:
    """Eager operations of a layer in one pass and its gradient, and those of its attention over the pack alone."""
    counted = list[int]()
    for layers in (1, 2):
        learner = make_learner(width, layers, 1 << 14, compiles=False)
        batch = learner._micro_batch(sorted(make_rows(tokens, LONGEST, 1024, 0), key=lambda row: row.fed))
        with Launches() as mode:
            learner.policy(batch)[0].sum().backward()
        counted.append(mode.count)
    shapes = [(1, heads, batch.real, width // 8) for heads in (8, 4, 4)]
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    with Launches() as mode:
        packed_attention(torch.nn.Module(), q, k, v, None, pack=batch.pack)[0].sum().backward()
    return {"eager": counted[1] - counted[0], "of these in attention over the pack": mode.count}


@contextmanager
def kernels() -> Iterator[dict[str, int]]:
    """Of what is compiled inside: its own, and calls of torch's (products)."""
    from torch._inductor import metrics
    from torch._inductor.graph import GraphLowering

    found = {"fused": 0, "of torch": 0, "graphs": 0}
    metrics.reset()
    real = GraphLowering.codegen

    def codegen(self: Any) -> Any:
        code, *rest = real(self)
        found["of torch"] += code.value.count("extern_kernels.") + code.value.count("torch.ops.aten.")
        found["graphs"] += 1
        return code, *rest

    GraphLowering.codegen = codegen
    try:
        yield found
    finally:
        GraphLowering.codegen = real
        found["fused"] = metrics.generated_kernel_count


def bits_after(sizes: list[int]) -> str:
    """Of the weights after a step of the last size, from the same start whatever was computed before."""
    learner = make_learner(64, 2, max(sizes), compiles=True)
    start = {name: value.detach().clone() for name, value in learner.parameters.items()}
    for tokens in sizes:
        for name, value in learner.parameters.items():
            value.data.copy_(start[name])
        learner.optimizer.state.clear()
        learner.step(make_rows(tokens, LONGEST, 1024, tokens), 0)
    return " ".join(blake3(one.detach().numpy().tobytes()).hexdigest(8) for one in learner.parameters.values())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--bits", type=int, nargs="+", metavar="TOKENS", help="print those after steps of these sizes")
    a = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if a.bits:
        print(bits_after(a.bits))
        return
    width, layers, tokens, steps = (64, 2, 512, 2) if a.quick else (512, 4, 4096, a.steps)
    print(json.dumps({"launches of a layer": launches_of_a_layer(width, tokens)}), flush=True)
    eager = make_learner(width, layers, tokens, compiles=False)
    before, children = time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with kernels() as found:
        compiled = make_learner(width, layers, tokens, compiles=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    inside = time.process_time() - before
    outside = spent.ru_utime + spent.ru_stime - children.ru_utime - children.ru_stime
    start = {"CPU s in the process": round(inside, 1), "CPU s of compilers": round(outside, 1)}
    print(json.dumps({"kernels of a layer, compiled": found, "start": start}), flush=True)
    seconds: dict[str, list[float]] = {"eager": [], "compiled": []}
    for step in range(steps):
        rows = make_rows(tokens, LONGEST, 1024, step)
        for name, learner in (("eager", eager), ("compiled", compiled)):
            began = time.process_time()
            learner.step(rows, step)
            seconds[name].append(round(time.process_time() - began, 3))
    for name, found_seconds in seconds.items():
        middle, least, most = median(found_seconds), min(found_seconds), max(found_seconds)
        print(json.dumps({name: {"CPU s of a step": middle, "least": least, "most": most}}))
    apart = [
        float((one.detach() - other.detach()).norm() / one.detach().norm())
        for one, other in zip(eager.parameters.values(), compiled.parameters.values(), strict=True)
    ]
    print(json.dumps({"weights apart after these steps, relative": float(np.max(apart))}), flush=True)
    command = [sys.executable, "-m", "benchmarks.compiling", "--bits"]
    found_bits = {subprocess.check_output([*command, *sizes], text=True) for sizes in (["512"], ["256", "512"])}
    print(json.dumps({"equal bits from two processes": len(found_bits) == 1}))


if __name__ == "__main__":
    main()
