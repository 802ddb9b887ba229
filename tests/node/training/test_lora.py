"""Adapters: they alone learn, as PEFT's would, and what engines make of their policy is what the learner computes."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from node.inference.engine import FinishedSequence
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import TorchEngine, build_model
from node.run.problems import check_architecture
from node.training.errors import TrainingError
from node.training.learner import Learner
from node.training.lora import StartAdapter, adapted_layers
from node.training.micro_batch import padded
from node.training.settings import TrainerSettings
from node.training.sharding import without_memory
from node.training.world import World, join_world, leave_world
from protocol.lora import Lora
from protocol.recipe import Recipe
from tests.node.training.conftest import LIMIT, made_up_rows

LORA = Lora(rank=4, alpha=12, targets=("q_proj", "down_proj"))
RECIPE = Recipe(name="dppo", lora=LORA, learning_rate=1e-2, decay_steps=0, seed=5)
Make = Callable[..., Learner]


@pytest.fixture
def make(tiny_assets: Path) -> Make:
    def made(recipe: Recipe = RECIPE, world: World | None = None, **settings: Any) -> Learner:
        world, chosen = world or World(), TrainerSettings(device="cpu", **settings)
        with without_memory(world):
            model = build_model(tiny_assets / "model")
        learner = Learner(model, recipe, 1.0, chosen, world, LIMIT)
        start = StartWeights(tiny_assets / "model")
        learner.load_frozen(start)
        learner.load_weights(StartAdapter(learner.parameters, recipe.seed) if recipe.lora else start)
        return learner

    return made


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "adapter"])
def test_passes_take_the_published_weights_and_updates_go_to_the_unrounded_ones(lora: Lora | None, make: Make) -> None:
    """A learner whose weights lie between two numbers of bf16, and one that has what the first would publish."""
    recipe, rows, gradients = msgspec.structs.replace(RECIPE, lora=lora, grad_clip=1e9), made_up_rows(), []
    between, rounded = make(recipe), make(recipe)
    with torch.no_grad():
        for name, weights in between.parameters.items():
            weights.add_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)), alpha=1e-2)
            scale = LORA.scale if name.endswith("lora_b") else 1.0
            rounded.parameters[name].copy_((weights * scale).bfloat16().float() / scale)
    before = {name: weights.detach().clone() for name, weights in between.parameters.items()}
    for learner in (between, rounded):
        learner.step(rows, 3)
        gradients.append([parameter.grad for parameter in learner.parameters.values()])
    for one, other in zip(*gradients, strict=True):
        assert one is not None and other is not None and torch.equal(one, other)
    moved = max(float((weights.detach() - before[name]).abs().max()) for name, weights in between.parameters.items())
    assert 0 < moved < 2 * between.learning_rate(3), "by the update, and by no rounding"


class PeftLike(nn.Module):
    """The layer as PEFT builds it: two linear layers without bias beside the frozen one."""

    def __init__(self, base: nn.Linear, a: Tensor, b: Tensor, scaling: float) -> None:
        super().__init__()
        self.base_layer, self.scaling = base, scaling
        self.lora_A = nn.Linear(base.in_features, len(a), bias=False)
        self.lora_B = nn.Linear(len(a), base.out_features, bias=False)
        self.lora_A.weight.data, self.lora_B.weight.data = a.clone(), b.clone()

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + self.lora_B(self.lora_A(x)) * self.scaling


def peft_gradients(model_dir: Path, weights: Mapping[str, Tensor], rows: Any) -> dict[str, Tensor]:
    """Of the sum of log-probabilities, by our tensors' names."""
    model = build_model(model_dir)
    model.load_state_dict({name: StartWeights(model_dir)[name].float() for name in StartWeights(model_dir)})
    model.requires_grad_(False)
    for name in adapted_layers(model, LORA):
        a, b = weights[f"{name}.lora_a"], weights[f"{name}.lora_b"]
        model.set_submodule(name, PeftLike(model.get_submodule(name), a, b, LORA.scale))
    batch = padded(rows, torch.device("cpu"))
    logits = model(input_ids=batch.tokens, position_ids=batch.positions, use_cache=False).logits
    logs = torch.log_softmax(logits.flatten(0, 1)[batch.places].float(), dim=-1)
    logs.gather(1, batch.drawn[:, None]).sum().backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name.replace("A.weight", "a").replace("B.weight", "b"): grad for name, grad in grads.items()}


def test_the_gradient_is_that_of_peft(make: Make, tiny_assets: Path) -> None:
    learner, rows = make(), made_up_rows(8)
    learner.step(made_up_rows(), 0)
    now = {name: tensor.detach().clone() for name, tensor in learner.parameters.items()}
    assert any(bool(tensor.any()) for name, tensor in now.items() if name.endswith("lora_b"))
    learner.optimizer.zero_grad()
    learner.logprobs(rows)[0].sum().backward()
    theirs = peft_gradients(tiny_assets / "model", now, rows)
    assert set(theirs) == set(now)
    for name, parameter in learner.parameters.items():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, theirs[name], atol=1e-5), name


def test_an_engine_with_the_policy_computes_what_the_learner_does(make: Make, tiny_assets: Path) -> None:
    learner, rows = make(), made_up_rows(8)
    engine = TorchEngine(tiny_assets / "model")
    seen = [FinishedSequence(row.prompt, row.output) for row in rows]

    def theirs() -> Tensor:
        engine.load(learner.image())
        return torch.cat([torch.as_tensor(found.logprobs) for found in engine.prefill(seen, 1.0)])

    start = learner.logprobs(rows)[0].detach()
    assert torch.allclose(theirs().float(), start, atol=1e-5)
    learner.step(made_up_rows(), 0)
    with torch.no_grad():
        for tensor in learner.parameters.values():  # as bf16 has them; alpha / rank = 3 rounds the product once more
            tensor.copy_(tensor.to(torch.bfloat16))
        learned = learner.logprobs(rows)[0]
    assert float((learned - start).abs().max()) > 0.01
    assert torch.allclose(theirs().float(), learned, atol=3e-3)


def test_only_the_adapter_learns_and_is_published(make: Make, tiny_assets: Path) -> None:
    learner = make()
    before = {name: tensor.clone() for name, tensor in learner.frozen.items()}
    learner.step(made_up_rows(), 0)
    layers = adapted_layers(build_model(tiny_assets / "model"), LORA)
    assert set(learner.image()) == {f"{name}.{part}" for name in layers for part in ("lora_a", "lora_b")}
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.frozen.items())


def test_its_reference_is_the_model_without_it(make: Make) -> None:
    recipe = Recipe(name="dppo", lora=LORA, reference_kl=0.1, learning_rate=1e-2, decay_steps=0)
    learner = make(recipe)
    assert not learner.beside.needs_reference
    assert learner.step(made_up_rows(), 0)["kl"] == pytest.approx(0, abs=1e-6)
    assert learner.step(made_up_rows(), 1)["kl"] > 1e-5


def test_a_seed_gives_the_same_start_everywhere(make: Make) -> None:
    learner = make()
    one, same, other = (StartAdapter(learner.parameters, seed) for seed in (5, 5, 6))
    a = next(name for name in one if name.endswith("lora_a"))
    assert torch.equal(one[a], same[a]) and not torch.equal(one[a], other[a])
    assert not one[a.replace("lora_a", "lora_b")].any()
    assert float(one[a].float().std()) * one[a].shape[1] ** 0.5 == pytest.approx(1, rel=0.2)


def test_a_sharded_bf16_learner_keeps_the_frozen_weights_in_bf16_and_learns_about_the_same(make: Make) -> None:
    plain = make()
    told = plain.step(made_up_rows(), 0)
    world = join_world(TrainerSettings(device="cpu", dtype="bfloat16"))
    try:
        learner = make(world=world, dtype="bfloat16", activation_checkpointing=True)
        found = learner.step(made_up_rows(), 0)
        kinds = {tensor.dtype for tensor in learner.frozen.values()}
        ours = {tensor.dtype for tensor in learner.parameters.values()}
    finally:
        leave_world(world)
    assert kinds == {torch.bfloat16} and ours == {torch.float32}
    assert found["loss"] == pytest.approx(told["loss"], abs=0.01)
    assert found["grad_norm"] == pytest.approx(told["grad_norm"], rel=0.05)


def test_a_target_that_the_model_does_not_have_is_named(tiny_assets: Path) -> None:
    with pytest.raises(TrainingError) as caught:
        adapted_layers(build_model(tiny_assets / "model"), Lora(targets=("q_proj", "query")))
    assert "'query'" in caught.value.why and "q_proj" in caught.value.remedy


@pytest.mark.parametrize("targets", [("q_proj",), ("query",)])
def test_a_run_file_is_checked_for_it(tiny_assets: Path, targets: tuple[str, ...]) -> None:
    recipe = Recipe(lora=Lora(targets=targets))
    files = {"model/config.json": tiny_assets / "model" / "config.json"}
    run: Any = SimpleNamespace(files=files, spec=SimpleNamespace(recipe=recipe, distill=None))
    with nullcontext() if targets == ("q_proj",) else pytest.raises(TrainingError, match="does not fit the model"):
        check_architecture(run)
