"""The learner computes with the experts on record, as the engine that reads them does."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from node.inference.architectures import CORRECTION
from node.inference.engine import FinishedSequence
from node.inference.prefilling import Prefiller
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import build_model
from node.training.batch import Batch, BatchHeader, BatchRow, decode_batch, encode_batch
from node.training.learner import Learner
from node.training.micro_batch import packed, padded
from node.training.policy_model import PolicyModel
from node.training.rows import usable_rows
from node.training.settings import TrainerSettings
from node.training.warmstart import SORT_ALPHABET, create_model
from protocol.recipe import Recipe
from protocol.routing import Routing, table_of
from tests.node.inference.models import CONFIGURATIONS, VOCABULARY, engine_model, kernel_of, transformers_model

CPU = torch.device("cpu")
LENGTHS = (9, 17, 17, 24)


def rows(width: int, chosen: int, experts: int) -> list[BatchRow]:
    """Experts that no router has chosen: any, ascending."""
    random = np.random.default_rng(3)
    made = []
    for i, length in enumerate(LENGTHS):
        tokens = random.integers(1, VOCABULARY, length).tolist()
        lines = [np.sort(random.choice(experts, chosen, replace=False)) for _ in range((length - 1) * width // chosen)]
        record = np.concatenate(lines).astype("u1" if experts <= 256 else "<u2").tobytes()
        made.append(BatchRow(i // 2, tokens[:4], tokens[4:], [-4.5] * (length - 4), float(i % 2), 0, experts=record))
    return made


def model(name: str = "qwen3_moe") -> Any:
    """Experts that have something to say."""
    made = transformers_model(CONFIGURATIONS[name], torch.float32, kernel_of(name))
    with torch.no_grad():
        for key, parameter in made.named_parameters():
            if key.endswith("experts.down_proj"):
                parameter.mul_(20)
    return made


@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe, in part", "gpt_oss", "glm4_moe", "qwen3_next", "flex_olmo"])
def test_log_probabilities_are_the_engines_with_the_experts_on_record(name: str) -> None:
    theirs = model(name)
    engine, policy = engine_model(theirs), PolicyModel(theirs, 1.0, logit_cells=7 * VOCABULARY)
    routing = engine.routing
    assert routing is not None and policy.routers.routing == routing
    told = rows(routing.width, routing.chosen, routing.experts)
    sequences = [FinishedSequence(row.prompt, row.output, experts=table_of(row.experts, routing)) for row in told]
    expected = np.concatenate([one.logprobs for one in Prefiller(engine, 64).prefill(sequences, 1.0)])
    free = np.concatenate(
        [o.logprobs for o in Prefiller(engine, 64).prefill([FinishedSequence(r.prompt, r.output) for r in told], 1.0)]
    )
    for make in (packed, padded):
        theirs.zero_grad()
        found, _ = policy(make(told, CPU, routing))
        assert found.detach().numpy() == pytest.approx(expected, abs=2e-5)
        found.sum().backward()
        mlp = theirs.model.layers[-1].mlp
        gate = (mlp.router if name == "gpt_oss" else mlp.gate).weight.grad
        assert gate is not None and torch.isfinite(gate).all()
        moved = int((gate.abs().sum(1) > 0).sum())
        assert moved == routing.experts or (routing.experts == 300 and moved > 50)
        unsaid = [msgspec.structs.replace(row, experts=b"") for row in told]
        assert policy(make(unsaid, CPU, routing))[0].detach().numpy() == pytest.approx(free, abs=2e-5)
        some = [told[0], *unsaid[1:]]
        mixed = policy(make(some, CPU, routing))[0].detach().numpy()
        own = len(told[0].output)
        assert mixed == pytest.approx(np.concatenate((expected[:own], free[own:])), abs=2e-5)
    assert np.abs(free - expected).max() > 0.01, "else this could not fail"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_learns_with_them_and_tells_how_they_were_spread(checkpointing: bool) -> None:
    def learner() -> Learner:
        theirs = model()
        settings = TrainerSettings(activation_checkpointing=checkpointing)
        return Learner(theirs, Recipe(learning_rate=1e-3), 1.0, settings, max_output_tokens=40)

    told = rows(4, 2, 6)
    batch = decode_batch(encode_batch(Batch(BatchHeader(0), tuple(told))))
    assert list(batch.rows) == [msgspec.structs.replace(row, task_reward=row.reward) for row in told]
    with_them, without = learner(), learner()
    metrics = with_them.step(told, 0)
    other = without.step([msgspec.structs.replace(row, experts=b"") for row in told], 0)
    assert 2 / 6 < metrics["busiest_expert"] < 1 and metrics["idle_experts"] == 0
    assert "busiest_expert" not in other and other["grad_norm"] != pytest.approx(metrics["grad_norm"], rel=1e-5)
    again = learner()
    assert again.step(told, 0)["grad_norm"] == metrics["grad_norm"]
    assert all(torch.equal(again.parameters[name], one) for name, one in with_them.parameters.items())


def test_what_corrects_a_choice_is_published_and_stays(tmp_path: Path) -> None:
    theirs = model("glm4_moe")
    name = f"model.layers.1.mlp.gate.{CORRECTION}"
    before = theirs.get_parameter(name).detach().clone()
    learner = Learner(
        theirs, Recipe(learning_rate=1e-2, weight_decay=0.1), 1.0, TrainerSettings(), max_output_tokens=40
    )
    other = learner.parameters["model.layers.1.mlp.gate.weight"].detach().clone()
    for step in range(2):
        assert learner.step(rows(3, 3, 6), step)["grad_norm"] > 0
    assert name in learner.shapes and torch.equal(learner.parameters[name].detach(), before)
    assert not torch.equal(learner.parameters["model.layers.1.mlp.gate.weight"], other)
    # What all have in common chooses nothing, and in bf16 it would take the rest of them along.
    far = 13.0 + torch.arange(6) / 1000
    save_file({name: far}, tmp_path / "model.safetensors")
    read = StartWeights(tmp_path)[name].float()
    assert torch.allclose(read, far - far.mean(), atol=1e-5) and len(set(far.bfloat16().tolist())) == 1


def test_rows_whose_experts_do_not_fit_are_left_out() -> None:
    routing = engine_model(model()).routing
    good, *others = rows(4, 2, 6)
    short = msgspec.structs.replace(others[0], experts=others[0].experts[:-1])
    kept, refused = usable_rows([good, short], VOCABULARY, routing)
    assert kept == [good] and refused == {"experts": 1}
    assert usable_rows([msgspec.structs.replace(good, experts=b""), good], VOCABULARY, None)[1] == {"experts": 1}


def test_a_start_model_with_experts_is_made_for_demos(tmp_path: Path) -> None:
    create_model(tmp_path, SORT_ALPHABET, seed=1, hidden=32, layers=2, experts=4)
    made = build_model(tmp_path, "meta")
    StartWeights(tmp_path).check(dict(made.named_parameters()))
    assert PolicyModel(made, 1.0, 1).routers.routing == Routing(layers=2, experts=4, chosen=2)
