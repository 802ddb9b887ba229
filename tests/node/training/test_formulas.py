"""Losses and advantages as formulas: beside the same ones by name, and in a run that strangers join."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch

from node.training.advantages import group_advantages
from node.training.functions import functions_of
from node.training.learner import Learner
from node.training.losses import LossInputs
from protocol.recipe import PRESETS, Recipe, preset
from protocol.run import RunSpec, decode_run, encode_run
from tests.node.training.conftest import made_up_rows

LOSSES = {
    "intellect2": "= -min(min(r, 4) * A, clip(r, 0.8, 1.2) * A)",
    "dppo": "= where(A > 0 and p - q > 0.2 or A <= 0 and p - q < -0.2, 0, -r * A) + 0.001 * log_r * log_r",
    "cispo": "= -stop(min(r, 5)) * A * logp",
    "icepop": "= where(r < 0.5 or r > 5, 0, -r * A)",
    "aipo": "= -min(r, 8) * A",
    "dapo": "= -min(r * A, clip(r, 0.8, 1.28) * A)",
    "gspo": "= -min(exp(sample_mean(log_r)) * A, clip(exp(sample_mean(log_r)), 0.1, 4) * A)",
}
ADVANTAGES = {
    "grpo": "= (reward - mean) / (std + 1e-6)",
    "mean": "= reward - mean",
    "max_rl": "= where(mean > 1e-6, (reward - mean) / mean, 0)",
}


def tokens() -> LossInputs:
    random = torch.Generator().manual_seed(0)
    sampler = -3 * torch.rand(40, generator=random) - 0.05
    logprobs = (sampler + torch.randn(40, generator=random)).clamp(max=-0.01).requires_grad_()
    samples = torch.arange(5).repeat_interleave(8)
    return LossInputs(logprobs, sampler, torch.tensor([1.0, -0.7, 0.0, 2.0, -1.5])[samples], samples)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_by_formula_is_the_one_that_it_writes_down(name: str) -> None:
    wide = {"clip_low": 0.9, "clip_high": 3.0} if name == "gspo" else {}  # else none of these samples has a gradient
    named = msgspec.structs.replace(PRESETS[name], **wide)
    written = msgspec.structs.replace(named, loss=LOSSES[name])
    ours, theirs = functions_of(named), functions_of(written)
    assert (theirs.per_token, theirs.pulls_at_zero_advantage) == (ours.per_token, ours.pulls_at_zero_advantage)
    given = tokens()
    wanted, found = (one.loss(given, objective).loss for one, objective in ((ours, named), (theirs, written)))
    assert torch.allclose(found, wanted, atol=1e-6)
    slopes = [torch.autograd.grad(loss.sum(), given.logprobs, retain_graph=True)[0] for loss in (wanted, found)]
    assert torch.allclose(*slopes, atol=1e-5) and slopes[0].any()


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_advantage_by_formula_is_the_one_that_it_writes_down(name: str) -> None:
    groups = np.array([7, 7, 7, 3, 3, 5, 5])
    rewards, lengths = np.array([0, 1, 0.5, 1, 1, -1, 2], dtype=np.float32), np.array([1, 2, 3, 4, 5, 6, 7])
    wanted, found = (group_advantages(groups, rewards, lengths, kind) for kind in (name, ADVANTAGES[name]))
    assert np.allclose(found, wanted, atol=1e-6) and found.any() and not found[3:5].any(), "equal rewards say nothing"
    assert not group_advantages(groups, rewards, lengths, "= 1 / (mean - mean)").any(), "what is no number is zero"
    spread = group_advantages(groups, rewards, lengths, "= length - length + count * 0 + most - least")
    assert spread.tolist() == [1, 1, 1, 0, 0, 3, 3]


def test_a_learner_learns_by_formulas_as_by_names(make_learner: Callable[..., Learner]) -> None:
    rows, recipe = made_up_rows(), preset("intellect2")
    written = msgspec.structs.replace(recipe, loss=LOSSES["intellect2"], advantage=ADVANTAGES["grpo"])
    named, own = make_learner(recipe), make_learner(written)
    for learner in (named, own):
        assert learner.step(rows, 0)["updates"] == 1
    for name, one in named.parameters.items():
        assert torch.allclose(one, own.parameters[name], atol=1e-5), name


def test_a_swarm_takes_a_run_with_formulas_and_names_what_is_none(tiny_run: RunSpec) -> None:
    recipe = msgspec.structs.replace(tiny_run.recipe, loss=LOSSES["dppo"], advantage=ADVANTAGES["mean"])
    run = msgspec.structs.replace(tiny_run, recipe=recipe)
    assert decode_run(encode_run(run)) == run and not run.own_code(), "no code of anybody's is run"
    for changed, why in (({"loss": "= r * A + z"}, "there is no 'z'"), ({"advantage": "= exp(reward)"}, "'exp'")):
        (told,) = [rule for _, good, rule in Recipe(**changed).rules() if not good]
        assert "must be a formula that can be read" in told and why in told
