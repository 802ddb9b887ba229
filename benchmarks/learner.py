"""The learner at a real vocabulary, and images at size: memory, tokens per second, bytes written.

    python -m benchmarks.learner [--quick] [--json] [--gigabytes 4] [--parts step,sizes,publish,load,trl] [--venv DIR]

  step     one optimiser step at 151,936 tokens of vocabulary: the head in chunks, beside full logits through autograd
  trl      the same rows and formula in TRL (its own environment, made once: see benchmarks.trainer_vs_trl), with one
           row and with all rows in a micro-batch
  sizes    measured peaks beside what node.training.sizing counts, for small models and several settings
  publish  an image of --gigabytes gathered, hashed and written tensor by tensor
  load     the same image read and loaded by the torch engine, in bfloat16

Each figure comes from a process of its own, one thread. Memory is the peak of the process above what it has after its
imports, in MiB. The machine matters: read rates as ratios.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

VOCABULARY = 151_936
PARTS = ("step", "sizes", "publish", "load", "trl")
SIZED: list[dict[str, Any]] = [
    {"hidden": 256, "layers": 4, "vocabulary": 8192, "settings": {}},
    {"hidden": 512, "layers": 8, "vocabulary": 8192, "settings": {}},
    {"hidden": 512, "layers": 8, "vocabulary": 8192, "settings": {"activation_checkpointing": True}},
    {"hidden": 512, "layers": 8, "vocabulary": 8192, "settings": {"dtype": "bfloat16"}},
    {"hidden": 256, "layers": 4, "vocabulary": VOCABULARY, "settings": {"logit_cells": 1 << 26}},
]


# In a process of its own


class Peak:
    """Bytes of this process above what it has now, at most, from now on."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far (proc(5)), the parent's among it
        self._began = _status("VmRSS")

    @property
    def so_far(self) -> int:
        return max(_status("VmHWM") - self._began, 0)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def written() -> int:
    """Bytes that this process had written to disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def learner_of(job: dict[str, Any]) -> Any:
    from safetensors.torch import load_file

    from node.inference.torch_engine import build_model
    from node.training.learner import Learner
    from node.training.settings import TrainerSettings
    from node.training.sharding import without_memory
    from node.training.world import join_world
    from protocol.recipe import preset

    settings = TrainerSettings(micro_batch_tokens=job["budget"], device="cpu", **job["settings"])
    recipe = preset("intellect2", learning_rate=1e-30, decay_steps=0, **job["clip"])
    world = join_world(settings)
    with without_memory(world):
        model = build_model(Path(job["model"]))
    learner = Learner(model, recipe, 1.0, settings, world)
    learner.load_weights(load_file(Path(job["model"]) / "model.safetensors"))
    return learner


def step(job: dict[str, Any]) -> dict[str, Any]:
    """Median seconds of a step (of the clock and of the processor), its loss, and the peak. job["full"]: logits of all
    tokens, differentiated by torch."""
    import node.training.learner  # its libraries are no part of what a step takes
    import node.training.policy_model
    from node.training.batch import BatchRow

    if job.get("full"):
        node.training.policy_model.sampled_logprobs = full_logits  # type: ignore[assignment] - what it replaces
    peak = Peak()
    learner = learner_of(job)
    rows = [
        BatchRow(i // job["group"], row["prompt"], row["output"], row["sampler_logprobs"], row["reward"], 0)
        for i, row in enumerate(job["rows"])
    ]
    seconds, busy, told = [], [], {}
    for _ in range(job["repeats"] + 1):
        started, at_work = time.perf_counter(), time.process_time()
        told = learner.step(rows, 0)
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - at_work)
    # The first makes the optimiser's moments, as TRL's, left out too.
    median, cpu = (sorted(values[1:])[job["repeats"] // 2] for values in (seconds, busy))
    kept = {name: told[name] for name in ("loss", "grad_norm", "fed_tokens")}
    rates = {"tokens_per_second": told["fed_tokens"] / median, "tokens_per_cpu_second": told["fed_tokens"] / cpu}
    return {**kept, "seconds": median, "cpu_seconds": cpu, **rates, "peak": peak.so_far}


def full_logits(hidden: Any, weight: Any, bias: Any, drawn: Any, *, temperature: float, **_: Any) -> tuple[Any, Any]:
    """What node.training.head replaces."""
    import torch

    logs = torch.log_softmax(torch.nn.functional.linear(hidden, weight, bias).float() / temperature, -1)
    with torch.no_grad():
        entropy = -(logs.exp() * logs).sum(-1)
    return logs.gather(1, drawn[:, None])[:, 0], entropy


def publish(job: dict[str, Any]) -> dict[str, Any]:
    """Tensors as `Learner.tensors` gives them, of float32 masters of which there is one for each shape here."""
    import torch

    from node.state.files import whole_file
    from node.training.image import stream_image

    shapes = dict(_image_shapes(job["bytes"]))
    masters = {shape: torch.randn(shape) * 0.02 for shape in set(shapes.values())}

    def tensors() -> Iterator[tuple[str, Any]]:
        for name in sorted(shapes):
            yield name, masters[shapes[name]].to(torch.bfloat16)

    peak, before, started = Peak(), written(), time.perf_counter()
    with whole_file(Path(job["image"])) as file:
        image = stream_image(shapes, tensors(), file)
    largest = max(2 * _count(shape) for shape in shapes.values())
    took = time.perf_counter() - started
    return {
        "seconds": took,
        "peak": peak.so_far,
        "bytes": image.size,
        "written": written() - before,
        "largest_tensor": largest,
    }


def load(job: dict[str, Any]) -> dict[str, Any]:
    """The engine has its own copy of the weights before; the peak is what reading and loading add."""
    from node.inference.settings import EngineSettings
    from node.inference.torch_engine import TorchEngine

    engine = TorchEngine(Path(job["model"]), EngineSettings(dtype="bfloat16"))
    peak, started = Peak(), time.perf_counter()
    weights = engine.read(job["image"])
    read = time.perf_counter() - started
    engine.load(weights)
    return {
        "seconds": time.perf_counter() - started,
        "read_seconds": read,
        "peak": peak.so_far,
        "bytes": Path(job["image"]).stat().st_size,
    }


TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"step": step, "publish": publish, "load": load}


# What is measured


def make_model(directory: Path, hidden: int, layers: int, vocabulary: int, *, weights: bool = True) -> Path:
    """A Qwen3 directory of this width, with a vocabulary far larger than its tokenizer's."""
    import torch

    from node.inference.torch_engine import build_model
    from node.training.warmstart import SORT_ALPHABET, write_config, write_tokenizer, write_weights

    directory.mkdir(parents=True)
    write_tokenizer(directory, SORT_ALPHABET)
    write_config(directory, vocabulary, hidden, layers)
    if weights:
        torch.manual_seed(0)
        write_weights(directory, build_model(directory))
    return directory


def job_of(model: Path, rows: list[dict[str, Any]], *, budget: int, repeats: int = 2, **more: Any) -> dict[str, Any]:
    from benchmarks.trainer_vs_trl import CLIP, GROUP

    shared = {"model": str(model), "rows": rows, "group": GROUP, "clip": CLIP, "budget": budget, "repeats": repeats}
    return {**shared, "settings": {}, **more}


def in_a_process(task: str, job: dict[str, Any], scratch: Path) -> dict[str, Any]:
    path = scratch / "job.json"
    path.write_text(json.dumps(job))
    command = [sys.executable, "-m", "benchmarks.learner", "--task", task, "--job", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def even_rows(count: int, length: int, vocabulary: int) -> list[dict[str, Any]]:
    """Rollouts of one length, all with signal."""
    import numpy as np

    random = np.random.default_rng(0)
    return [
        {
            "prompt": random.integers(2, 12, size=16).tolist(),
            "output": random.integers(2, vocabulary, size=length).tolist(),
            "sampler_logprobs": (-np.log(vocabulary) + random.normal(size=length) * 0.1).tolist(),
            "reward": float(i % 2),
        }
        for i in range(count)
    ]


def measure_step(scratch: Path, quick: bool) -> dict[str, Any]:
    model = make_model(scratch / "wide", 128 if quick else 256, 2 if quick else 4, VOCABULARY)
    rows = even_rows(8, 48 if quick else 256, VOCABULARY)
    found: dict[str, Any] = {"tokens": sum(len(row["output"]) + 15 for row in rows)}
    for name, full in (("chunked", False), ("full", True)):
        found[name] = in_a_process("step", job_of(model, rows, budget=1 << 20, full=full), scratch)
    if abs(found["chunked"]["loss"] - found["full"]["loss"]) > 1e-5:
        raise SystemExit(f"not the same computation: {found}")
    return found


def measure_trl(scratch: Path, quick: bool, environment: Path) -> dict[str, Any]:
    """TRL on the model and the rows of `measure_step`."""
    from benchmarks import trainer_vs_trl as other

    python = other.make_environment(environment)
    rows = even_rows(8, 48 if quick else 256, VOCABULARY)
    for i, row in enumerate(rows):
        row["advantage"] = (i % 2 - 0.5) / (0.5 * (8 / 7) ** 0.5 + 1e-6)
    found: dict[str, Any] = {"versions": other.TRL}
    for size in (1, len(rows)):
        job = {**job_of(scratch / "wide", rows, budget=0), **other.CLIP, "micro_batches": [size]}
        path = scratch / "trl.json"
        path.write_text(json.dumps({**job, "scratch": str(scratch / "trl")}))
        told = other.run([str(python), str(Path(other.__file__).with_name("trl_step.py")), str(path)])
        tokens = sum(len(row["prompt"]) + len(row["output"]) - 1 for row in rows)
        rates = {"tokens_per_second": tokens / told["seconds"], "tokens_per_cpu_second": tokens / told["cpu_seconds"]}
        found[f"rows_{size}"] = {**told, **rates}
    return found


def measure_sizes(scratch: Path, quick: bool) -> list[dict[str, Any]]:
    from node.training.settings import TrainerSettings
    from node.training.sizing import memory_of_a_rank, shape_of

    found = []
    for number, case in enumerate(SIZED[:2] if quick else SIZED):
        model = make_model(scratch / f"sized-{number}", case["hidden"], case["layers"], case["vocabulary"])
        tokens = 1024 if quick or case["vocabulary"] == VOCABULARY else 4096
        rows = even_rows(tokens // 128, 128 - 15, case["vocabulary"])
        job = job_of(model, rows, budget=tokens, settings=case["settings"])
        measured = in_a_process("step", job, scratch)["peak"]
        settings = TrainerSettings(micro_batch_tokens=tokens, device="cpu", **case["settings"])
        counted = memory_of_a_rank(shape_of(model), settings, ranks=1, gpu=False)
        found.append({**case, "tokens": tokens, "measured": measured, "counted": counted.device - counted.reserve})
    return found


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def _layers_for(size: int) -> int:
    """Of a Qwen3 of width 1024 with this vocabulary, untied, so that its image has about `size` bytes."""
    hidden = 1024
    layer = 3 * hidden * 3 * hidden + 3 * hidden * hidden
    return max(1, (size // 2 - 2 * VOCABULARY * hidden) // layer)


def _image_shapes(size: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the image of such a model."""
    import torch

    from node.inference.torch_engine import build_model, image_names

    with tempfile.TemporaryDirectory() as name:
        model = make_model(Path(name) / "m", 1024, _layers_for(size), VOCABULARY, weights=False)
        with torch.device("meta"):
            for tensor, parameter in image_names(build_model(model, device="meta")).items():
                yield tensor, tuple(parameter.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small batches, 0.7 GB, without TRL")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the image")
    parser.add_argument("--parts", default="", help=f"some of {', '.join(PARTS)}; default: all")
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "intellect-node-trl")
    parser.add_argument("--task", choices=list(TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.task:
        import torch

        torch.set_num_threads(1)
        print(json.dumps(TASKS[a.task](json.loads(a.job.read_text()))))
        return
    parts = a.parts.split(",") if a.parts else [part for part in PARTS if not (a.quick and part == "trl")]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        measure(found, Path(name), parts, a)
    if a.json:
        print(json.dumps(found))


def measure(found: dict[str, Any], scratch: Path, parts: list[str], a: argparse.Namespace) -> None:
    if "step" in parts or "trl" in parts:
        found["step"] = measure_step(scratch, a.quick)
        tell("step", found["step"])
    if "trl" in parts:
        found["trl"] = measure_trl(scratch, a.quick, a.venv)
        tell("trl", found["trl"])
    if "sizes" in parts:
        found["sizes"] = measure_sizes(scratch, a.quick)
        tell("sizes", found["sizes"])
    if "publish" in parts or "load" in parts:
        size = int(0.7e9 if a.quick else a.gigabytes * 1e9)
        image = scratch / "image.safetensors"
        found["publish"] = in_a_process("publish", {"bytes": size, "image": str(image)}, scratch)
        tell("publish", found["publish"])
        if "load" in parts:
            model = make_model(scratch / "large", 1024, _layers_for(size), VOCABULARY, weights=False)
            found["load"] = in_a_process("load", {"model": str(model), "image": str(image)}, scratch)
            tell("load", found["load"])


def tell(part: str, figures: Any) -> None:
    """Bytes as MiB, for people."""
    rows = figures if isinstance(figures, list) else [figures]
    for row in rows:
        print(f"{part:8}", json.dumps(_readable(row)), flush=True)


def _readable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _readable(one) for name, one in value.items()}
    if isinstance(value, float):
        return round(value, 4)
    return f"{value / 2**20:,.0f} MiB" if isinstance(value, int) and value > 1 << 20 else value


if __name__ == "__main__":
    main()
