"""Compiled layers, here as captured, which needs no compiler; inductor costs minutes (`benchmarks.compiling`)."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from node.inference.torch_engine import build_model
from node.training import compiling
from node.training.arithmetic import arithmetic_of, processor, versions
from node.training.compiling import CannotCompile
from node.training.inner import InnerLearner
from node.training.learner import Learner
from node.training.memory import OutOfMemory
from node.training.replay import alone_in_its_world, settings_for
from node.training.settings import TrainerSettings
from node.training.sharding import whole, without_memory
from node.training.world import World
from protocol.lora import Lora
from protocol.recipe import Recipe
from tests.node.training import texts
from tests.node.training.conftest import LIMIT, made_up_rows
from tests.node.training.test_experts import model as model_of_experts

CPU = torch.device("cpu")
Made = Callable[..., Learner]


class Graphs:
    """A backend that counts how many graphs it was given, how often one ran, and notes where code would be kept."""

    def __init__(self) -> None:
        self.made = self.runs = 0
        self.folders = set[tuple[str, int]]()

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.made += 1
        for name in compiling.FOLDERS:
            folder = os.environ[name]
            self.folders.add((folder, stat.S_IMODE(Path(folder).stat().st_mode)))

        def run(*args: Any) -> Any:
            self.runs += 1
            return module(*args)

        return run


@pytest.fixture(scope="module")
def backend() -> Iterator[Graphs]:
    """One for all, so that a graph is made once."""
    yield Graphs()
    torch._dynamo.reset()
    torch.compiler.set_stance("default")


@pytest.fixture
def graphs(backend: Graphs, monkeypatch: pytest.MonkeyPatch) -> Graphs:
    monkeypatch.setattr(compiling, "BACKEND", backend)
    monkeypatch.setattr(compiling, "compiler", lambda device: "one for tests")
    return backend


def gradients(learner: Learner, count: int = 8) -> dict[str, torch.Tensor]:
    found = dict[str, torch.Tensor]()
    for _, parts in learner.group_gradients(made_up_rows(count), 0):
        for name, part in parts.items():
            found[name] = found.get(name, 0) + part.clone()
    return found


WAYS: dict[str, dict[str, Any]] = {
    "packed": {},
    "padded": {"packing": False},
    "recomputed, activations on the CPU": {"activation_checkpointing": True, "offload_activations": True},
    "an adapter": {"recipe": Recipe(lora=Lora(rank=2))},
}


@pytest.mark.parametrize("how", WAYS)
def test_compiled_layers_compute_what_eager_ones_do(make_learner: Made, graphs: Graphs, how: str) -> None:
    eager, compiled = (make_learner(**WAYS[how], compile=on) for on in (False, True))
    before = graphs.runs
    one, other = gradients(eager), gradients(compiled)
    assert graphs.runs > before
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-6)


def test_all_layers_share_graphs_that_are_made_once(make_learner: Made, graphs: Graphs) -> None:
    torch._dynamo.reset()
    before = graphs.made
    learner = make_learner(compile=True)
    made = graphs.made
    assert 0 < made - before <= 8
    for count in (4, 24):
        before = graphs.runs
        learner.step(made_up_rows(count), 0)
        assert graphs.runs > before
    # What they do not cover runs eagerly: one token, and a pass without gradient.
    before = graphs.runs
    with torch.no_grad():
        learner.logprobs(made_up_rows(4))
    learner.policy(learner._micro_batch([]))
    assert (graphs.made, graphs.runs) == (made, before)


def test_sharded_layers_are_compiled_too(tiny_assets: Path, graphs: Graphs) -> None:
    weights, found = load_file(tiny_assets / "model" / "model.safetensors"), list[dict[str, torch.Tensor]]()
    for on in (False, True):
        settings = TrainerSettings(
            device="cpu", dtype="bfloat16", activation_checkpointing=True, offload_parameters=True, compile=on
        )
        with alone_in_its_world(settings) as world:
            with without_memory(world):
                model = build_model(tiny_assets / "model")
            learner = Learner(model, Recipe(), 1.0, settings, world, LIMIT)
            learner.load_weights(weights)
            before = graphs.runs
            found.append({name: whole(one, torch.float32) for name, one in gradients(learner).items()})
            assert (graphs.runs > before) == on
    for name, gradient in found[0].items():
        # Layers in bfloat16, fused, round less often.
        assert (found[1][name] - gradient).norm() <= 0.05 * gradient.norm() + 1e-6


def test_text_is_learnt_from_by_compiled_layers_too(graphs: Graphs, tmp_path: Path) -> None:
    run = texts.compiled(tmp_path).spec
    rows = np.arange(4 * 17).reshape(4, 17) % 200 + 3
    model = tmp_path / "model"
    eager, compiled = (InnerLearner(build_model(model), run, 1, TrainerSettings(compile=on)) for on in (False, True))
    for learner in (eager, compiled):
        learner.model.load_state_dict(load_file(model / "model.safetensors"), strict=False)
    before = graphs.runs
    losses = [learner.step(rows, 0)[0] for learner in (eager, compiled)]
    assert graphs.runs > before
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_code_is_kept_in_a_folder_of_ones_own_and_only_while_it_is_made(
    make_learner: Made, graphs: Graphs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shared = tmp_path / "anybody's"
    for name in compiling.FOLDERS:
        monkeypatch.setenv(name, str(shared))
    torch._dynamo.reset()
    graphs.folders.clear()
    make_learner(compile=True)
    assert {mode for _, mode in graphs.folders} == {0o700}
    assert not any(Path(folder).exists() for folder, _ in graphs.folders)
    assert not shared.exists()
    assert {os.environ[name] for name in compiling.FOLDERS} == {str(shared)}


def test_memory_that_runs_out_in_a_compiled_layer_is_told_by_phase(
    make_learner: Made, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(compile=True)

    def full(*args: Any, **others: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("node.training.attention._attend", full)
    with pytest.raises(OutOfMemory) as raised:
        learner.step(made_up_rows(4), 0)
    assert raised.value.phase == "forward"


# What cannot be compiled


def test_a_machine_without_a_compiler_says_so_where_compiling_is_asked_for(
    make_learner: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CannotCompile, match="a C\\+\\+ compiler is not here"):
        make_learner(compile=True)


def test_layers_with_experts_are_refused_by_name(graphs: Graphs) -> None:
    with pytest.raises(CannotCompile, match="its layers have experts"):
        Learner(model_of_experts(), Recipe(), 1.0, TrainerSettings(compile=True), max_output_tokens=40)


def test_auto_stays_eager_on_a_cpu(make_learner: Made, graphs: Graphs) -> None:
    before = graphs.made
    assert make_learner(compile="auto").compiled == ""
    assert graphs.made == before


def test_auto_stays_eager_on_a_gpu_without_triton(capsys: pytest.CaptureFixture[str], make_learner: Made) -> None:
    model, settings = make_learner().model, TrainerSettings(compile="auto")
    assert compiling.compiled_by(model, settings, World(device=torch.device("cuda"))) == ""
    assert "Triton and a C compiler is not here" in capsys.readouterr().err


def test_a_compiler_that_fails_ends_the_start_with_a_remedy(
    make_learner: Made, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(module: Any, inputs: Any) -> None:
        raise ValueError("an internal compiler error")

    monkeypatch.setattr(compiling, "BACKEND", broken)
    with pytest.raises(CannotCompile, match="an internal compiler error") as raised:
        make_learner(compile=True)
    assert "trainer.compile" in raised.value.remedy


# An alarm may leave whatever it interrupts open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_compiler_that_does_not_end_is_not_waited_for(
    make_learner: Made, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(module: Any, inputs: Any) -> None:
        subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)

    monkeypatch.setattr(compiling, "BACKEND", endless)
    with pytest.raises(CannotCompile, match="compiling took more than 1 seconds"):
        make_learner(compile=True, compile_seconds=1.0)


# Classes of arithmetic


def test_compiled_layers_are_another_class(make_learner: Made, graphs: Graphs) -> None:
    classes = [
        arithmetic_of(learner, settings, World(), 1)
        for settings in (TrainerSettings(), TrainerSettings(compile=True))
        for learner in [make_learner(compile=settings.compile)]
    ]
    assert classes[0].differences(classes[1]) == ["compiled:  instead of one for tests"]


def test_an_auditor_compiles_only_to_be_of_the_claimed_class(
    make_learner: Made, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.training.replay.compiler", lambda device: "one for tests")
    own = arithmetic_of(make_learner(compile=True), TrainerSettings(), World(), 1)
    assert (own.processor, own.versions) == (processor(CPU), versions())
    assert settings_for(own).compile is True
    for other in (
        {"compiled": "another"},
        {"compiled": ""},
        {"processor": "another"},
        {"versions": "others"},
        {"ranks": 2},
    ):
        assert settings_for(msgspec.structs.replace(own, **other)).compile is False
