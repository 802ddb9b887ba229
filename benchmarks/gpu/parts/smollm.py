"""A small real model learns sums (examples/smollm.toml): reward on problems that are held back, before and after.

One process takes all roles by turns, with benchmarks.proof_models: answers are drawn, checked by a prefill and learnt.
Where the model is not there a rehearsal takes the demo's tiny one, which is taught a little first.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.command import peak, reset_peak
from benchmarks.gpu.job import Job, Rows, Skipped
from benchmarks.gpu.result import REPOSITORY
from benchmarks.proof_models import rollouts
from node.environments.base import Environment
from node.environments.registry import load_environment
from node.inference.settings import EngineSettings
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import TorchEngine, build_model
from node.training.learner import Learner
from node.training.settings import TrainerSettings
from node.training.sharding import without_memory
from node.training.warmstart import SORT_ALPHABET, create_model, mean_reward, warm_start
from node.training.world import World, join_world, leave_world
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec

FILES = REPOSITORY / "examples" / "smollm"
"""The rows of examples/smollm.toml. Its model is the hub's, in this user's cache where there is no network."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """steps: of the optimiser; prompts: of a step; tries: sampled answers to each problem that is held back; problems:
    most of those."""

    name: str
    run: RunSpec
    assets: Path
    environment: Environment
    steps: int
    prompts: int
    tries: int
    problems: int

    @property
    def model(self) -> Path:
        return self.assets / "model"


def measure(job: Job) -> Rows:
    lesson = _lesson(job)
    settings = TrainerSettings(device="cuda" if job.device == "cuda" else "cpu")
    world = join_world(settings)
    try:
        yield from _learn(lesson, job, settings, world)
    finally:
        leave_world(world)


def _lesson(job: Job) -> Lesson:
    try:
        run, assets, environment = smollm(job.scratch)
    except (Skipped, ModuleNotFoundError):
        if not job.quick:
            raise
        return _sorting(job.scratch / "sort")
    sizes = (1, 1, 1, 8) if job.quick else (40, 32, 4, environment.held_back)
    return Lesson("SmolLM2-135M-Instruct", run, assets, environment, *sizes)


def _sorting(assets: Path) -> Lesson:
    """As the demo begins, and only so far that it solves one in ten."""
    run = RunSpec(
        name="sort",
        environment=EnvironmentSpec(name="sort", args={"digits": 4}),
        rollout=RolloutSpec(group_size=8, max_output_tokens=8),
        recipe=Recipe(name="intellect2", learning_rate=3e-4),
    )
    model = create_model(assets / "model", SORT_ALPHABET, 0)
    environment = load_environment(run.environment, assets, LocalTokenizer(assets / "model"))
    warm_start(assets / "model", model, environment, seed=0, target=0.1)
    return Lesson("the demo's model", run, assets, environment, steps=4, prompts=16, tries=1, problems=128)


def _learn(lesson: Lesson, job: Job, settings: TrainerSettings, world: World) -> Rows:
    dtype = "float32" if job.device == "cpu" else job.dtype
    engine = TorchEngine(lesson.model, EngineSettings(job.device, dtype))
    with without_memory(world):
        shell = build_model(lesson.model)
    rollout = msgspec.structs.replace(lesson.run.rollout, prompts_per_step=lesson.prompts)
    learner = Learner(shell, lesson.run.recipe, rollout.temperature, settings, world, rollout.max_output_tokens)
    learner.load_weights(engine.read(str(lesson.model / "model.safetensors")))
    random, before = np.random.default_rng(0), reset_peak(job.device)
    engine.load(learner.image())
    first = _held_back(lesson, engine)
    yield "held back", {"model": lesson.name, "step": 0, "reward": first}
    for step in range(lesson.steps):
        row = _step(lesson, rollout, engine, learner, random, step)
        if (step + 1) % 5 == 0 or step + 1 == lesson.steps:
            yield "steps", {"step": step + 1, **row}
        if (step + 1) % 20 == 0 or step + 1 == lesson.steps:
            yield "held back", {"model": lesson.name, "step": step + 1, "reward": _held_back(lesson, engine)}
    yield "memory", {"engine and learner, MiB on top": peak(job.device) - before}


def _step(
    lesson: Lesson, rollout: RolloutSpec, engine: TorchEngine, learner: Learner, random: np.random.Generator, step: int
) -> dict[str, Any]:
    moments = [time.perf_counter()]
    rows = rollouts(engine, lesson.environment, rollout, random, step)
    moments.append(time.perf_counter())
    told = learner.step(rows, step)
    moments.append(time.perf_counter())
    engine.load(learner.image())
    moments.append(time.perf_counter())
    seconds = dict(zip(("rollouts and checks s", "learning s", "swap s"), np.diff(moments).tolist(), strict=True))
    kept = {name: told[name] for name in ("loss", "grad_norm", "fed_tokens") if name in told}
    return {"reward": float(np.mean([row.reward for row in rows])), **kept, **seconds}


def _held_back(lesson: Lesson, engine: TorchEngine) -> float:
    """The same problems with the same random numbers each time."""
    count = min(lesson.problems, lesson.environment.held_back)
    problems = [lesson.environment.held_back_problem(i) for i in range(count)] * lesson.tries
    seed, most = bytes([1]) * 32, lesson.run.rollout.max_output_tokens
    return mean_reward(engine, lesson.environment, problems, seed, most)


def smollm(scratch: Path) -> tuple[RunSpec, Path, Environment]:
    """The run, its assets, its problems. Raises Skipped, with what brings the model."""
    from examples.make_sums import write_rows
    from node.hub import HubError
    from node.run.file import compile_run
    from node.run.problems import place_files

    if not (FILES / "sums.jsonl").exists():
        FILES.mkdir(parents=True, exist_ok=True)
        write_rows(FILES)
    try:
        compiled = compile_run(FILES.with_suffix(".toml"), reach="whole")
    except HubError as error:
        raise Skipped(f"{error.what}: {error.why}; carry the hub's cache along (HF_HOME)") from None
    assets = scratch / "smollm"
    if not assets.exists():
        place_files(compiled, assets)
    environment = load_environment(compiled.spec.environment, assets, LocalTokenizer(assets / "model"))
    return compiled.spec, assets, environment
