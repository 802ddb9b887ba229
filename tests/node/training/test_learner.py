"""The learner: its gradient does not depend on how a batch is laid out, and it says what is wrong with one."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from node.inference.engine import FinishedSequence
from node.inference.torch_engine import TorchEngine
from node.training.batch import BatchRow
from node.training.learner import Learner
from node.training.memory import OutOfMemory, during
from node.training.micro_batch import packed, padded
from node.training.settings import TrainerSettings
from node.training.sharding import ActivationsOnCpu
from protocol.lora import Lora
from protocol.recipe import PRESETS, Recipe, preset
from tests.node.training.conftest import LIMIT, made_up_rows
from tests.node.training.two_ranks import both

CPU = torch.device("cpu")


def by_length(rows: Sequence[BatchRow]) -> list[BatchRow]:
    return sorted(rows, key=lambda row: len(row.prompt) + len(row.output))


def gradient(learner: Learner, rows: Sequence[BatchRow]) -> tuple[torch.Tensor, dict[str, Any]]:
    """The gradient of one step, before clipping, and the step's metrics."""
    held: list[torch.Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: held.append(torch.cat([p.grad.flatten().clone() for p in learner.parameters.values()]))
    )
    metrics = learner.step(rows, 3)
    return held[0], metrics


@pytest.mark.parametrize("name", ["dppo", "gspo", "scalerl", "decoupled", "dr_grpo"])
def test_the_gradient_is_the_same_however_the_batch_is_packed(name: str, make_learner: Callable[..., Learner]) -> None:
    recipe = preset(name, grad_clip=1e9, reference_kl=0.01, entropy_bonus=0.01)
    rows = made_up_rows()
    whole, told = gradient(make_learner(recipe), rows)
    assert float(whole.norm()) > 1e-3
    for layout in ({"packing": False, "micro_batch_tokens": 100}, {"micro_batch_tokens": 60, "logit_cells": 100}):
        found, other = gradient(make_learner(recipe, **layout), rows)
        assert float((found - whole).abs().max()) < 1e-6, layout
        for metric in ("loss", "entropy", "mismatch_kl", "kl"):
            assert other[metric] == pytest.approx(told[metric], abs=1e-6), metric
    assert other["micro_batches"] > told["micro_batches"] == 1 and other["trained_tokens"] == told["trained_tokens"]


def plain_dppo(model: Any, rows: Sequence[BatchRow]) -> tuple[float, torch.Tensor]:
    """The reference's loss (arXiv 2602.04879 with the quadratic pull) and its gradient, one sample at a time, from full
    logits: -r A unless the token's probability moved by over 0.2 the wrong way, + 0.001 (log r)^2, mean of tokens."""
    rewards: dict[int, list[float]] = {}
    for row in rows:
        rewards.setdefault(row.group_key, []).append(row.reward)
    terms = []
    for row in rows:
        logits = model(torch.tensor([[*row.prompt, *row.output]])).logits[0, len(row.prompt) - 1 : -1]
        logs = logits.log_softmax(-1)[torch.arange(len(row.output)), row.output]
        old = torch.tensor(row.sampler_logprobs)
        advantage = row.reward - float(np.mean(rewards[row.group_key]))
        moved = logs.detach().exp() - old.exp()
        kept = (moved <= 0.2 if advantage > 0 else moved >= -0.2).float()
        terms.append(-kept * (logs - old).exp() * advantage + 0.001 * (logs - old) ** 2)
    loss = torch.cat(terms).mean()
    gradients = torch.autograd.grad(loss, [tensor for _, tensor in sorted(model.named_parameters())])
    return float(loss.detach()), torch.cat([gradient.flatten() for gradient in gradients])


def test_dppo_pulls_at_flat_groups_too_as_its_reference_does(
    make_learner: Callable[..., Learner], tiny_assets: Path
) -> None:
    rows = [msgspec.structs.replace(row, reward=1.0) if row.group_key % 2 else row for row in made_up_rows()]
    learner = make_learner(preset("dppo", grad_clip=1e9))
    loss, expected = plain_dppo(learner.model, rows)
    found, told = gradient(learner, rows)
    assert told["informative_share"] <= 0.5 and told["trained_tokens"] == sum(len(row.output) for row in rows)
    assert told["loss"] == pytest.approx(loss, abs=1e-6)
    assert float((found - expected).abs().max()) < 1e-6


def test_recomputed_and_offloaded_activations_give_the_same_gradient(make_learner: Callable[..., Learner]) -> None:
    rows = made_up_rows()
    whole, _ = gradient(make_learner(), rows)
    found, _ = gradient(make_learner(activation_checkpointing=True, offload_activations=True), rows)
    assert torch.equal(found, whole)


def test_activations_are_offloaded_and_weights_are_not() -> None:
    weight, states = torch.nn.Parameter(torch.randn(5, 3)), torch.randn(2, 3, requires_grad=True)
    with ActivationsOnCpu(pinned=False):
        found: Any = torch.nn.functional.linear(states * 2, weight).grad_fn
    saved = [found._saved_self, found._saved_mat2]
    assert [tensor.untyped_storage().data_ptr() == weight.data_ptr() for tensor in saved] == [False, True]


def test_two_sharded_ranks_agree_with_one_plain_process_under_all_settings(
    make_learner: Callable[..., Learner], tiny_assets: Path, tmp_path: Path
) -> None:
    """Every pair of settings in all four combinations: the same loss and gradient, in bfloat16 about the same."""
    found = both(tmp_path, tiny_assets / "model")
    recipe = preset("dppo", grad_clip=1e9, entropy_bonus=0.01, learning_rate=1e-2)
    plain = make_learner(recipe).step(made_up_rows(12), 3)
    assert len(found) == 6
    for one in found:
        close = 0.02 if one["switches"]["bfloat16"] else 1e-5
        for name in ("loss", "grad_norm", "entropy"):
            assert one[name] == pytest.approx(plain[name], abs=close, rel=close), one["switches"]
        assert one["micro_batches"] > 1
    assert len({one["size"] for one in found}) == 1


def test_packed_samples_do_not_see_each_other(make_learner: Callable[..., Learner], tiny_assets: Path) -> None:
    """Log-probs of a pack are those that the engine finds for each sample alone."""
    learner = make_learner()
    rows = by_length(made_up_rows(20))
    with torch.no_grad():
        together = learner.policy(packed(rows, CPU))[0]
        other = [msgspec.structs.replace(rows[0], output=[7] * len(rows[0].output)), *rows[1:]]
        changed = learner.policy(packed(other, CPU))[0]
        assert torch.allclose(together, learner.policy(padded(rows, CPU))[0], atol=1e-5)
    own = len(rows[0].output)
    assert torch.equal(changed[own:], together[own:]), "a sample's tokens change nothing for its neighbours"
    engine = TorchEngine(tiny_assets / "model")
    engine.load({name: tensor.detach() for name, tensor in learner.parameters.items()})
    alone = np.concatenate(
        [engine.prefill([FinishedSequence(row.prompt, row.output)], 1.0)[0].logprobs for row in rows]
    )
    assert together.numpy() == pytest.approx(alone, abs=1e-5)


def in_turns(row: BatchRow) -> BatchRow:
    """The same sampled tokens, with two of an environment in the middle."""
    first = len(row.output) // 2
    if not first:
        return row
    output = [*row.output[:first], 3, 1, *row.output[first:]]
    return msgspec.structs.replace(row, output=output, segments=[first, 2, len(row.output) - first])


def test_only_sampled_tokens_are_learnt_from(make_learner: Callable[..., Learner], tiny_assets: Path) -> None:
    """Of a row in turns the learner has one log-prob per sampled token, packed or padded: the engine's."""
    learner = make_learner()
    rows = by_length([in_turns(row) for row in made_up_rows(20)])
    assert sum(bool(row.segments) for row in rows) > 10
    with torch.no_grad():
        together = learner.policy(packed(rows, CPU))[0]
        assert torch.allclose(together, learner.policy(padded(rows, CPU))[0], atol=1e-5)
    engine = TorchEngine(tiny_assets / "model")
    engine.load({name: tensor.detach() for name, tensor in learner.parameters.items()})
    sequences = [FinishedSequence(row.prompt, row.output, row.segments) for row in rows]
    assert together.numpy() == pytest.approx(
        np.concatenate([one.logprobs for one in engine.prefill(sequences, 1.0)]), abs=1e-5
    )
    plain = made_up_rows()
    alike, metrics = (make_learner().step(some, 0) for some in (plain, [in_turns(row) for row in plain]))
    for name in ("trained_tokens", "length_mean", "length_max", "tokens"):
        assert metrics[name] == alike[name], name
    assert metrics["fed_tokens"] > alike["fed_tokens"]


def test_a_sliding_window_holds_within_a_pack(make_learner: Callable[..., Learner]) -> None:
    learner = make_learner()
    rows = by_length(made_up_rows(12, longest=30))
    config = learner.model.config
    config.sliding_window, config.layer_types = 4, ["sliding_attention"] * config.num_hidden_layers
    learner.model.model.has_sliding_layers = True
    for layer in learner.model.model.layers:
        layer.self_attn.sliding_window = 4
    with torch.no_grad():
        inside = learner.policy(packed(rows, CPU))[0]
        assert torch.allclose(inside, learner.policy(padded(rows, CPU))[0], atol=1e-5)
    for layer in learner.model.model.layers:
        layer.self_attn.sliding_window = None
    with torch.no_grad():
        assert not torch.allclose(inside, learner.policy(packed(rows, CPU))[0], atol=1e-3)


def as_engines_round(learner: Learner, rows: Sequence[BatchRow], rounding: str) -> list[BatchRow]:
    """With the log-probabilities that an engine has of the learner's own policy."""
    with torch.no_grad():
        found = learner.logprobs(rows)[0]
    if rounding == "bfloat16":
        found = found.bfloat16().float()
    if rounding == "noise":
        found = found - 0.05 * torch.rand(len(found), generator=torch.Generator().manual_seed(0))
    parts = iter(torch.split(found.clamp(max=0), [row.length for row in rows]))
    return [msgspec.structs.replace(row, sampler_logprobs=next(parts).tolist()) for row in rows]


WITHOUT_SIGNAL: dict[str, Callable[[BatchRow, int], float]] = {
    "nothing is right": lambda row, i: 0.0,
    "each problem has its own": lambda row, i: float(row.group_key),
    "by rounding only": lambda row, i: 0.7 + 6e-8 * (i % 2),
}
PULLS = {"reference_kl": 0.1, "entropy_bonus": 0.1, "sampler_kl": 0.1}


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=12)])
@pytest.mark.parametrize("name", PRESETS)
def test_a_step_without_signal_changes_nothing(
    name: str, lora: Lora | None, make_learner: Callable[..., Learner]
) -> None:
    """Whatever the preset, the pulls beside it, the adapter and the engine's rounding are; also by AdamW's moments and
    its decay, of the steps before. Every weight keeps all its bits."""
    once = made_up_rows()
    for pulls in ({}, PULLS):
        learner = make_learner(preset(name, learning_rate=1e-2, weight_decay=0.1, lora=lora, **pulls))
        assert learner.step(once, 0)["updates"] == 1  # a control, and moments
        before = {n: p.detach().clone() for n, p in learner.parameters.items()}
        for rounding in ("equal", "bfloat16", "noise"):
            rows = as_engines_round(learner, once, rounding)
            for kind, rewards in WITHOUT_SIGNAL.items():
                flat = [msgspec.structs.replace(row, reward=rewards(row, i)) for i, row in enumerate(rows)]
                told = learner.step(flat, 1)
                assert (told["updates"], told["informative_share"]) == (0, 0), (kind, rounding)
                assert told["grad_norm"] is None and "entropy" not in told  # nothing was measured
            alone = [msgspec.structs.replace(row, group_key=i) for i, row in enumerate(rows)]
            assert [learner.step(some, 1)["updates"] for some in (alone, [])] == [0, 0]
        assert all(torch.equal(p, before[n]) for n, p in learner.parameters.items())
        assert learner.updates == 1


@pytest.mark.parametrize("count", [1, 3])
def test_a_pull_is_taken_beside_a_signal_only_update_by_update(
    count: int, make_learner: Callable[..., Learner]
) -> None:
    rows = [msgspec.structs.replace(row, reward=1.0) for row in made_up_rows()]
    one = [
        msgspec.structs.replace(row, reward=float(i % 2)) if row.group_key == 2 else row for i, row in enumerate(rows)
    ]
    learner = make_learner(preset("dppo", updates_per_step=count))
    told = learner.step(one, 0)
    assert told["updates"] == 1
    share = [{row.group_key for row in update.rows} for update in learner._updates.of(one, 0)]
    assert told["trained_tokens"] == sum(row.length for row in one if any({row.group_key, 2} <= keys for keys in share))


def test_one_bad_row_does_not_spoil_a_step(make_learner: Callable[..., Learner]) -> None:
    rows = made_up_rows()
    bad = msgspec.structs.replace(rows[0], group_key=99, sampler_logprobs=[float("nan")] * len(rows[0].output))
    clean, _ = gradient(make_learner(), rows)
    found, metrics = gradient(make_learner(), [*rows, bad])
    assert torch.equal(found, clean) and metrics["rejected_rows"] == 1


def test_several_updates_share_out_whole_groups(make_learner: Callable[..., Learner]) -> None:
    recipe = preset("tis", updates_per_step=3, learning_rate=1e-2)
    learner = make_learner(recipe)
    rows = made_up_rows(48)
    updates = learner._updates.of(rows, 5)
    groups = [{row.group_key for row in update.rows} for update in updates]
    assert len(groups) == 3 and not groups[0] & groups[1] and not groups[1] & groups[2] and not groups[0] & groups[2]
    again = [[row.group_key for row in update.rows] for update in learner._updates.of(rows, 5)]
    assert again == [[row.group_key for row in update.rows] for update in updates], "a replay deals alike"
    metrics = learner.step(rows, 5)
    assert metrics["updates"] == 3 and learner.updates == 3
    twin = make_learner(recipe)
    assert twin.step(rows, 5)["loss"] == metrics["loss"]


def test_the_learning_rate_warms_up_and_decays_within_steps() -> None:
    class Bare(Learner):
        def __init__(self, recipe: Recipe) -> None:
            self._recipe, self._inner_steps = recipe, 1

    plain = Bare(Recipe(learning_rate=0.1, warmup_steps=2, decay_steps=10))
    assert [plain.learning_rate(step) for step in (0, 1, 5, 10)] == pytest.approx([0.05, 0.09, 0.05, 0])
    eight = Bare(Recipe(learning_rate=0.1, warmup_steps=2, decay_steps=0, updates_per_step=8))
    assert eight.learning_rate(0, 0) == pytest.approx(0.1 / 16)
    assert eight.learning_rate(1, 7) == eight.learning_rate(9) == pytest.approx(0.1)
    assert Bare(Recipe(learning_rate=0.1, decay_steps=0, updates_per_step=8)).learning_rate(0, 0) == pytest.approx(0.1)


def test_masked_and_punished_samples(make_learner: Callable[..., Learner]) -> None:
    """DAPO: what was cut at the limit carries no loss; what is close to it is worth less."""
    rows = made_up_rows(8)
    cut = [msgspec.structs.replace(row, finished=i % 2 == 0) for i, row in enumerate(rows)]
    learner = make_learner(preset("dapo"))
    (update,) = learner._updates.of(cut, 0)
    assert all(row.finished for row in update.rows)
    long = [msgspec.structs.replace(rows[0], output=[5] * n, sampler_logprobs=[-1.0] * n) for n in (4, LIMIT)]
    long = [msgspec.structs.replace(row, reward=1.0, group_key=99) for row in long]
    assert learner._updates.of(long, 0)[0].rows == [], "length alone is no signal"
    (update,) = learner._updates.of([*rows, *long], 0)
    assert update.advantages[-2] > 0 > update.advantages[-1]


def test_matrices_decay_and_neither_norms_nor_biases(make_learner: Callable[..., Learner]) -> None:
    rows, recipe = made_up_rows(), preset("dr_grpo", learning_rate=1e-2)
    plain, decaying = (make_learner(msgspec.structs.replace(recipe, weight_decay=decay)) for decay in (0.0, 0.5))
    started = {name: one.detach().clone() for name, one in plain.parameters.items()}
    for learner in (plain, decaying):
        learner.step(rows, 0)
    rate = plain.learning_rate(0)
    for name, one in plain.parameters.items():
        shrunk = 0.5 * rate * started[name] if one.ndim > 1 else torch.zeros_like(one)
        assert torch.allclose(one - decaying.parameters[name], shrunk, atol=1e-7), name
    assert {one.ndim for one in started.values()} == {1, 2}
    moments = {
        name: {slot: one.clone() for slot, one in decaying.optimizer.state[p].items() if slot != "step"}
        for name, p in decaying.parameters.items()
    }
    decaying.restore_optimizer(1, moments)
    assert decaying.updates == 1 and len(decaying.optimizer.state) == len(started)


@pytest.mark.parametrize("kind", ["cpu", "gpu", "python"])
def test_running_out_of_memory_names_the_setting(kind: str, make_learner: Callable[..., Learner]) -> None:
    learner = make_learner()

    def starve(*_: Any) -> None:
        if kind == "gpu":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if kind == "python":
            raise MemoryError
        torch.empty(1 << 60)

    learner.policy.register_forward_pre_hook(starve)
    with pytest.raises(OutOfMemory, match="memory ran out in the forward pass of step 4") as caught:
        learner.step(made_up_rows(), 4)
    assert "trainer.micro_batch_tokens (now 16384)" in caught.value.remedy
    assert "activation_checkpointing" in caught.value.remedy


def test_running_out_of_memory_outside_a_pass_names_what_shares_the_model_out() -> None:
    with pytest.raises(OutOfMemory, match="while the model was loaded") as caught:
        with during("load", TrainerSettings(world_size=2)):
            raise MemoryError
    assert "trainer.world_size (now 2)" in caught.value.remedy and "offload_parameters" in caught.value.remedy
    assert not caught.value.of_a_pass
    with pytest.raises(RuntimeError, match="something else"):
        with during("load", TrainerSettings()):
            raise RuntimeError("something else")


def test_metrics_tell_of_the_rows(make_learner: Callable[..., Learner]) -> None:
    rows = [
        msgspec.structs.replace(row, environment="ab"[i % 2], task_reward=float(i % 2), finished=i != 0)
        for i, row in enumerate(made_up_rows(8))
    ]
    told = make_learner().step(rows, 0)
    assert told["pass_rate"] == told["task_reward_mean"] == 0.5 and told["truncated_share"] == 1 / 8
    assert set(told["reward_by_environment"]) == {"a", "b"}
    assert told["tokens"] == sum(len(row.output) for row in rows) >= told["trained_tokens"]
