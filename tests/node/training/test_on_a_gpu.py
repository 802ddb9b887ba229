"""The learner and the evaluator on a pretended GPU: what they compute, what they wait for, what a checkpoint keeps."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from blake3 import blake3
from safetensors.torch import load_file

from node.inference import transfer
from node.inference.settings import EngineSettings
from node.inference.torch_engine import build_model
from node.training.arithmetic import digest
from node.training.batch import Batch, BatchHeader, encode_batch
from node.training.checkpoint import Checkpoints
from node.training.determinism import as_deterministic_as_set
from node.training.evaluator import Evaluator, evaluation_engine
from node.training.learner import Learner
from node.training.lora import StartAdapter
from node.training.memory import OutOfMemory
from node.training.planner import GpuCard, PlannedMachine
from node.training.planning import plan_here
from node.training.settings import TrainerSettings
from node.training.sharding import without_memory
from node.training.sizing import GIB
from node.training.spool import Spool
from node.training.trainer import SpoolTrainer
from node.training.warmstart import SORT_ALPHABET, create_model
from node.training.world import World, join_world, leave_world
from protocol.lora import Lora
from protocol.recipe import Recipe
from protocol.run import EvaluationSpec, RunSpec, decode_run, encode_run
from tests.node.training.conftest import made_up_rows
from tests.pretended_cuda import MEMORY_SEEN, PretendedGPU, pretended_cuda

ROWS = made_up_rows()


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer: here every operation is Python's."""
    made = tmp_path_factory.mktemp("gpu") / "assets"
    create_model(made / "model", SORT_ALPHABET, seed=7, hidden=64, layers=1)
    return made


@contextmanager
def joined(settings: TrainerSettings) -> Iterator[tuple[World, PretendedGPU]]:
    """A world of one GPU, as the trainer computes in it."""
    with pretended_cuda() as gpu:
        world = join_world(settings)
        try:
            with as_deterministic_as_set(settings, world.device):
                yield world, gpu
        finally:
            leave_world(world)


def learner(assets: Path, recipe: Recipe, settings: TrainerSettings, world: World) -> Learner:
    with without_memory(world):
        model = build_model(assets / "model")
    made = Learner(model, recipe, 1.0, settings, world, max_output_tokens=40)
    weights = load_file(assets / "model" / "model.safetensors")
    made.load_frozen(weights)
    made.load_weights(StartAdapter(made.parameters, 1) if recipe.lora else weights)
    return made


WAYS: dict[str, tuple[Recipe, dict[str, Any]]] = {
    "plain": (Recipe(), {"dtype": "float32", "offload_activations": True}),
    "bfloat16, offloaded": (
        Recipe(entropy_bonus=0.01),
        {"activation_checkpointing": True, "offload_activations": True, "offload_parameters": True},
    ),
    "adapter": (Recipe(lora=Lora(rank=4, targets=("q_proj", "down_proj"))), {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_learner_on_a_gpu_learns_what_one_on_a_cpu_does_and_goes_on_from_a_checkpoint(
    way: str, assets: Path, tmp_path: Path
) -> None:
    recipe, chosen = WAYS[way]
    here = learner(assets, recipe, TrainerSettings(device="cpu"), World())
    wanted = [here.step(ROWS, step) for step in range(2)]
    settings = TrainerSettings(**chosen)
    with joined(settings) as (world, gpu):
        assert world.device == torch.device("cuda", 0)
        there = learner(assets, recipe, settings, world)
        found = [there.step(ROWS, 0)]
        checkpoints = Checkpoints(tmp_path, there, "model", world, keep=1)
        checkpoints.save(1, {})
        found.append(there.step(ROWS, 1))  # while it is being written
        checkpoints.wait()
        again = learner(assets, recipe, settings, world)
        state = Checkpoints(tmp_path, again, "model", world, keep=1).load_newest()
        assert state is not None and state.step == 1
        assert again.step(ROWS, 1) == found[1]
        assert all(torch.equal(tensor, again.image()[name]) for name, tensor in there.image().items())
        assert all(not tensor.is_cuda for tensor in again.image().values())
    for one, other in zip(found, wanted, strict=True):
        rough = way != "plain"
        for name in ("loss", "entropy", "grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=0.05 if rough else 1e-4, abs=2e-3 if rough else 1e-6)
    assert gpu.score_tables == 0


def test_a_learner_waits_for_the_gpu_once_a_pass_once_an_update_and_once_a_step(assets: Path) -> None:
    settings = TrainerSettings(offload_activations=True, micro_batch_tokens=64)
    with joined(settings) as (world, gpu):
        made = learner(assets, Recipe(updates_per_step=2), settings, world)
        gpu.waits.clear()
        metrics = made.step(ROWS[:16], 0)
        assert metrics["micro_batches"] > 2 and metrics["updates"] == 2
        assert gpu.waits.total() == metrics["micro_batches"] + metrics["updates"] + 1


def test_a_digest_of_what_a_gpu_holds_is_that_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "STRETCH", 1000)
    values = torch.randn(7, 333).t()
    with pretended_cuda() as gpu:
        found = digest(values.to("cuda"))
        assert gpu.waits["a copy to the CPU"] == 10, "part by part, each complete before it is read"
    assert found == digest(values) == blake3(values.contiguous().numpy().tobytes()).digest()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")]
)
def test_memory_of_a_gpu_that_runs_out_says_what_to_lower(error: RuntimeError, assets: Path) -> None:
    def run_out(name: str) -> None:
        if name == "aten.exp":
            raise error

    with joined(TrainerSettings(dtype="float32")) as (world, gpu):
        made = learner(assets, Recipe(), TrainerSettings(dtype="float32"), world)
        gpu.before_memory = run_out
        with pytest.raises(OutOfMemory, match="pass of step 0"):
            made.step(ROWS, 0)


def test_a_trainer_on_a_gpu_publishes_and_goes_on_where_it_ended(
    tiny_run: RunSpec, assets: Path, tmp_path: Path
) -> None:
    recipe = msgspec.structs.replace(tiny_run.recipe, steps=2, reference_kl=0.1)
    spool = Spool(tmp_path)
    spool.prepare(encode_run(msgspec.structs.replace(tiny_run, recipe=recipe)), assets)
    for step in range(2):
        rows = tuple(msgspec.structs.replace(row, policy_step=step) for row in ROWS)
        spool.write_batch(step, encode_batch(Batch(BatchHeader(step, (f"file {step}",)), rows)))
    machine = PlannedMachine((GpuCard("0", "Pretended", 24 * GIB),), 64 * GIB)
    run = decode_run(spool.run_path.read_bytes())
    settings = plan_here(run, assets, {"checkpoint_every": 1}, machine, samples=True).settings
    assert settings.activation_checkpointing and settings.micro_batch_tokens < 1 << 14, "no more than a step has"
    with joined(settings) as (world, _):
        SpoolTrainer(spool, settings, world).train()
        told = [json.loads(spool.metrics_path(step).read_bytes()) for step in range(3)]
        how = told[2]["arithmetic"]
        assert how["micro_batch_tokens"] == settings.micro_batch_tokens
        assert "NVIDIA Pretended" in how["processor"] and (how["dtype"], how["sharded"]) == ("bfloat16", True)
        assert told[2]["performance"]["peak_memory_bytes"] == MEMORY_SEEN
        shutil.rmtree(spool.checkpoints / "step-000002")
        SpoolTrainer(spool, settings, world).train()  # raises if step 2 comes out differently
    assert len({one["image"] for one in told}) == 3


def test_an_evaluator_takes_the_gpu_that_no_learner_has(tiny_run: RunSpec, assets: Path) -> None:
    few = msgspec.structs.replace(tiny_run.rollout, max_output_tokens=4)
    run = msgspec.structs.replace(tiny_run, rollout=few, evaluation=EvaluationSpec(problems=3))
    with pretended_cuda(count=2):
        settings = evaluation_engine(TrainerSettings())
        assert settings == EngineSettings("cuda:1", "bfloat16")
        evaluator = Evaluator(run, assets, settings)
        figures = evaluator.evaluate(evaluator.read(assets / "model" / "model.safetensors"), 0)
        assert figures["eval_problems"] == 3
        evaluator.close()
