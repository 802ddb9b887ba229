"""Every loss against numbers worked out by hand, and its gradient against finite differences."""

import math

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from node.training import losses
from node.training.losses import (
    NAMES,
    NEEDS_PROXIMAL,
    LossInputs,
    TokenLoss,
    evaluate,
    mismatch_kl,
    pulls_at_zero_advantage,
    reference_kl,
)
from node.training.objective import loglinear
from protocol.recipe import LOSSES, PRESETS, Objective

RATIOS = torch.tensor([0.3, 0.7, 0.9, 1.0, 1.15, 1.5, 3.0, 7.0], dtype=torch.float64)
SAMPLER = torch.tensor([-0.9, -0.3, -2.0, -4.0, -1.5, -0.8, -2.2, -2.5], dtype=torch.float64)
SAMPLES = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
HELD_STILL = {
    "cispo": lambda ratio, objective: min(ratio, objective.ratio_cap),
}
"""Losses with a stop-gradient: the weight of a token's log-probability, which has no gradient of its own."""
PROXIMAL = SAMPLER + torch.tensor([0.1, -0.2, 0.0, 0.3, -0.4, 0.2, 1.0, 0.6], dtype=torch.float64)


def run(objective: Objective, logprobs: Tensor, advantages: Tensor) -> TokenLoss:
    return evaluate(objective, LossInputs(logprobs, SAMPLER, advantages, SAMPLES, PROXIMAL))


def signed(sign: float) -> Tensor:
    return sign * torch.tensor([1.0, 1.0, 1.0, 0.5, 0.5, 2.0, 2.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("mode", "low", "high", "dropped"),
    [
        # Samples have the ratios .3 .7 .9, 1 1.15, and 1.5 3 7; their geometric means are .574, 1.072 and 3.159.
        ("mean", 0.5, 3.0, {2}),
        ("mean", 0.6, 4.0, {0}),
        ("mean", 0.99, 1.01, {0, 1, 2}),
        ("any", 0.25, 6.0, {2}),
        ("any", 0.4, 8.0, {0}),
        ("any", 0.0, 8.0, set()),
    ],
)
def test_a_sample_mask_drops_whole_samples_from_any_loss(mode: str, low: float, high: float, dropped: set[int]) -> None:
    for name, preset in PRESETS.items():
        plain = msgspec.structs.replace(preset, sample_mask="none")
        masked = msgspec.structs.replace(plain, sample_mask=mode, mask_low=low, mask_high=high)
        logprobs = (SAMPLER + RATIOS.log()).requires_grad_()
        before, after = run(plain, logprobs, signed(1.0)), run(masked, logprobs, signed(1.0))
        gone = torch.tensor([int(sample) in dropped for sample in SAMPLES])
        assert torch.equal(after.loss, torch.where(gone, torch.zeros_like(before.loss), before.loss)), name
        assert torch.equal(after.metrics["sample_mask_share"] > 0, gone)
        if not gone.all():
            after.loss.sum().backward()
            assert not logprobs.grad[gone].any(), "no gradient flows through a mask"
    nothing = LossInputs(SAMPLER[:0], SAMPLER[:0], SAMPLER[:0], SAMPLES[:0])
    assert evaluate(PRESETS["mean_mask"], nothing).loss.shape == (0,)


def test_every_preset_has_its_loss() -> None:
    assert set(NAMES) == set(LOSSES)
    assert {"intellect2", "dppo", "cispo", "scalerl", "icepop", "tis", "gspo"} <= set(PRESETS)
    assert {"decoupled", "aipo", "dapo", "dr_grpo", "max_rl"} <= set(PRESETS)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_loss_by_itself_is_that_of_its_preset(name: str) -> None:
    """Called with (logprobs, sampler_logprobs, advantages) it needs no numbers, and has the preset's."""
    extra = {"samples": SAMPLES} if name == "gspo" else {}
    extra |= {"proximal_logprobs": PROXIMAL} if name in NEEDS_PROXIMAL else {}
    logprobs = SAMPLER + RATIOS.log()
    for sign in (1.0, -1.0):
        alone = getattr(losses, name)(logprobs, SAMPLER, signed(sign), **extra)
        assert torch.equal(alone.loss, run(PRESETS[name], logprobs, signed(sign)).loss)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_the_gradient_is_that_of_the_loss(name: str, sign: float) -> None:
    """Central differences of the summed loss; of one with a stop-gradient, which is no potential, the weight itself."""
    objective = PRESETS[name]
    logprobs = (SAMPLER + RATIOS.log()).requires_grad_()
    advantages = signed(sign)
    run(objective, logprobs, advantages).loss.sum().backward()
    step = 1e-6
    for i in range(len(RATIOS)):
        ahead, behind = logprobs.detach().clone(), logprobs.detach().clone()
        ahead[i] += step
        behind[i] -= step
        slope = (
            float((run(objective, ahead, advantages).loss - run(objective, behind, advantages).loss).sum()) / step / 2
        )
        if weight := HELD_STILL.get(objective.loss):
            slope = -weight(float(RATIOS[i]), objective) * float(advantages[i])
        assert float(logprobs.grad[i]) == pytest.approx(slope, abs=1e-5), f"token {i}"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_loss_says_whether_tokens_without_advantage_have_a_gradient(name: str) -> None:
    logprobs = (SAMPLER + RATIOS.log()).requires_grad_()
    run(PRESETS[name], logprobs, signed(0.0)).loss.sum().backward()
    assert bool((logprobs.grad != 0).any()) == pulls_at_zero_advantage(PRESETS[name])
    assert not pulls_at_zero_advantage(msgspec.structs.replace(PRESETS[name], sampler_kl=0.0))


def table(objective: Objective, ratio: float, advantage: float, sampler: float = -1.0, **extra: float) -> float:
    """The loss of one token."""
    one = torch.tensor([sampler], dtype=torch.float64)
    proximal = one + math.log(extra.get("proximal", 1.0))
    inputs = LossInputs(
        one + math.log(ratio),
        one,
        torch.tensor([advantage], dtype=torch.float64),
        torch.zeros(1, dtype=torch.long),
        proximal,
    )
    return float(evaluate(objective, inputs).loss)


def test_dppo_drops_tokens_that_moved_by_more_than_their_bound_of_probability() -> None:
    objective = msgspec.structs.replace(PRESETS["dppo"], sampler_kl=0.0)
    assert table(objective, 1.5, 1.0, math.log(0.5)) == 0.0, "0.50 -> 0.75 is more than 0.2"
    assert table(objective, 1.5, 1.0, math.log(0.01)) == pytest.approx(-1.5), "a rare token may move by a large ratio"
    assert table(objective, 0.5, -1.0, math.log(0.6)) == 0.0
    assert table(objective, 1.5, -1.0, math.log(0.5)) == pytest.approx(1.5), "a bad token that grew is pushed back"
    pulled = msgspec.structs.replace(objective, sampler_kl=0.1)
    assert table(pulled, 1.5, 1.0, math.log(0.5)) == pytest.approx(0.1 * math.log(1.5) ** 2), "dropped ones are pulled"


def test_bounds_of_the_other_losses() -> None:
    assert table(PRESETS["aipo"], 9.0, 1.0) == pytest.approx(-8.0)
    assert table(PRESETS["aipo"], 2.0, -1.0) == pytest.approx(2.0)
    assert table(PRESETS["cispo"], 7.0, 1.0, -3.0) == pytest.approx(-5.0 * (math.log(7) - 3.0))
    assert table(PRESETS["icepop"], 0.4, 1.0) == 0.0
    assert table(PRESETS["icepop"], 5.1, -1.0) == 0.0
    assert table(PRESETS["icepop"], 2.0, -1.0) == pytest.approx(2.0)
    assert table(PRESETS["dapo"], 1.5, 1.0) == pytest.approx(-1.28)
    assert table(PRESETS["dr_grpo"], 1.5, 1.0) == pytest.approx(-1.2)
    assert table(PRESETS["tis"], 3.0, 1.0, proximal=3.0) == pytest.approx(-2.0), "weight 3 is truncated to 2"
    assert table(PRESETS["tis"], 3.0, 1.0, proximal=1.5) == pytest.approx(-1.5 * 1.2)
    assert table(PRESETS["decoupled"], 3.0, 1.0, proximal=2.0) == pytest.approx(-2.0 * 1.2)
    assert table(PRESETS["decoupled"], 6.0, 1.0, proximal=6.0) == 0.0, "behind the cap nothing is learnt"


def test_gspo_has_one_ratio_per_sample() -> None:
    advantages = torch.ones(8, dtype=torch.float64)
    objective = msgspec.structs.replace(PRESETS["gspo"], clip_low=0.9, clip_high=3.0)
    found = run(objective, SAMPLER + RATIOS.log(), advantages).loss
    for members in ([0, 1, 2], [3, 4], [5, 6, 7]):
        mean = math.exp(float(RATIOS[members].log().mean()))
        assert found[members].tolist() == pytest.approx([-mean] * len(members))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_extreme_ratios_stay_finite(name: str) -> None:
    for far in (-300.0, 300.0):
        logprobs = (SAMPLER + far).requires_grad_()
        loss = run(PRESETS[name], logprobs, signed(-1.0)).loss.sum()
        loss.backward()
        assert torch.isfinite(loss) and torch.isfinite(logprobs.grad).all()


def test_a_loss_without_its_proximal_policy_is_an_error() -> None:
    assert NEEDS_PROXIMAL == {"tis", "decoupled"}
    with pytest.raises(ValueError, match="proximal"):
        evaluate(PRESETS["tis"], LossInputs(SAMPLER, SAMPLER, signed(1.0), SAMPLES))


def test_the_interpolated_proximal_policy_is_one_version_old() -> None:
    sampler, now = torch.full((4,), -2.0), torch.full((4,), -1.0)
    found = loglinear(now.requires_grad_(), sampler, torch.tensor([0.0, 1.0, 2.0, 4.0]))
    assert found.tolist() == pytest.approx([-2.0, -2.0, -1.5, -1.25]) and not found.requires_grad


def test_the_reference_term_has_the_gradient_of_the_kl_divergence() -> None:
    """Summed over a whole vocabulary with the sampler's probabilities, nothing is left to chance."""
    random = np.random.default_rng(3)
    scores = torch.tensor(random.normal(size=6), requires_grad=True)
    sampler = torch.log_softmax(torch.tensor(random.normal(size=6)), 0)
    reference = torch.log_softmax(torch.tensor(random.normal(size=6)), 0)
    policy = torch.log_softmax(scores, 0)
    exact = (policy.exp() * (policy - reference)).sum()
    (wanted,) = torch.autograd.grad(exact, scores, retain_graph=True)
    estimate = (sampler.exp() * reference_kl(policy, sampler, reference)).sum()
    (found,) = torch.autograd.grad(estimate, scores)
    assert float(estimate.detach()) == pytest.approx(float(exact.detach()), rel=1e-9)
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=1e-12)
    apart = float((sampler.exp() * mismatch_kl(policy, sampler)).sum())
    assert apart == pytest.approx(float((sampler.exp() * (sampler - policy.detach())).sum()), rel=1e-9)
