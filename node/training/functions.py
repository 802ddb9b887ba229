"""What turns rewards into advantages and log-probs into a loss: ours by name, or functions that a run at a desk brings.

    loss(tokens: LossInputs, objective: Objective) -> Tensor or TokenLoss     float[n], per token, differentiable
    advantage(samples: Samples) -> array                                      float[n], per sample

A function gets one argument of ours, so that a field more in it breaks nobody's function.
What one's own functions return is checked: shape, type, finite numbers, and that the loss depends on the log-probs.
A loss that needs `proximal_logprobs` says so: `my_loss.needs_proximal = True`. One that pulls at tokens of advantage
zero is found by trying it, or says so: `my_loss.pulls_at_zero_advantage = True`. Nothing that such a loss returns is
masked or normalised yet; the recipe's normalisation follows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.own_code import Function, calling, load_function, unusable
from node.training.advantages import group_advantages
from node.training.formulas import formula_loss, is_per_token
from node.training.losses import (
    NEEDS_PROXIMAL,
    OF_WHOLE_SAMPLES,
    LossInputs,
    TokenLoss,
    evaluate,
    masked,
    pulls_at_zero_advantage,
)
from protocol.expression import is_formula
from protocol.own_code import is_import_path
from protocol.recipe import Objective


@dataclass(frozen=True, slots=True)
class AdvantageSamples:
    """Per sample. groups: int64[n], any labels; rewards: float32[n], shaped by length where the recipe shapes them;
    lengths: int64[n], sampled tokens."""

    groups: NDArray[np.int64]
    rewards: NDArray[np.float32]
    lengths: NDArray[np.int64]


Loss = Callable[[LossInputs, Objective], TokenLoss]
Advantage = Callable[[AdvantageSamples], NDArray[np.float32]]
_LOSS = "a float tensor of one loss per token, or TokenLoss(loss, metrics), computed from tokens.logprobs"
_ADVANTAGE = "an array of one finite number per sample"


@dataclass(frozen=True, slots=True)
class Functions:
    """needs_proximal: whether the loss is to be given the proximal policy's log-probs; pulls_at_zero_advantage: whether
    tokens of groups without signal have a gradient; per_token: whether a token's loss is known to depend on no other
    token's log-prob; within_groups: whether advantages compare the answers of a group, so that equal rewards say
    nothing; metrics: names of what one's own loss measures of each token."""

    loss: Loss
    advantage: Advantage
    needs_proximal: bool
    pulls_at_zero_advantage: bool
    metrics: tuple[str, ...] = ()
    per_token: bool = False
    within_groups: bool = True


def functions_of(objective: Objective, assets: Path | None = None) -> Functions:
    """Those that the objective names, its own ones loaded from below `assets` and tried on a few numbers.

    Raises OwnCodeError.
    """
    advantage = _advantage(objective, assets)
    within = assets is None or not is_import_path(objective.advantage)
    name = objective.loss
    if is_formula(name):
        return _of_formula(objective, advantage, within)
    if assets is None or not is_import_path(name):
        pulls = pulls_at_zero_advantage(objective)
        return Functions(
            loss=lambda tokens, o: evaluate(o, tokens),
            advantage=advantage,
            needs_proximal=name in NEEDS_PROXIMAL,
            pulls_at_zero_advantage=pulls,
            per_token=name not in OF_WHOLE_SAMPLES and objective.sample_mask == "none",
            within_groups=within,
        )
    function = load_function(name, assets)

    def loss(tokens: LossInputs, objective: Objective) -> TokenLoss:
        return _checked_loss(name, calling(name, function, tokens, objective, wanted=_LOSS), tokens)

    metrics = tuple(sorted(loss(_a_few_tokens(), objective).metrics))
    pulls = bool(getattr(function, "pulls_at_zero_advantage", False)) or _pulls(loss, objective)
    # Not `per_token`: whether an own loss looks at other tokens is not known, so its gradient is not told ahead.
    return Functions(
        loss, advantage, bool(getattr(function, "needs_proximal", False)), pulls, metrics, within_groups=within
    )


def _of_formula(objective: Objective, advantage: Advantage, within: bool) -> Functions:
    """A loss that stands in the recipe: what it can do is known, so its gradient is told ahead where it may be."""
    name = objective.loss

    def loss(tokens: LossInputs, objective: Objective) -> TokenLoss:
        return masked(objective, tokens, formula_loss(name, tokens))

    per_token = is_per_token(name) and objective.sample_mask == "none"
    pulls = _pulls(loss, objective)
    return Functions(loss, advantage, False, pulls, per_token=per_token, within_groups=within)


def _pulls(loss: Loss, objective: Objective) -> bool:
    """Whether a few tokens without advantage are given a gradient."""
    tokens = replace(_a_few_tokens(), advantages=torch.zeros(6))
    # The loss of such tokens may not depend on their log-probabilities at all.
    (gradient,) = torch.autograd.grad(loss(tokens, objective).loss.sum(), tokens.logprobs, allow_unused=True)
    return gradient is not None and bool((gradient != 0).any())


def _checked_loss(name: str, returned: object, tokens: LossInputs) -> TokenLoss:
    found = TokenLoss(returned) if isinstance(returned, Tensor) else returned
    if not isinstance(found, TokenLoss):
        raise unusable(name, f"a {type(returned).__name__}", _LOSS)
    _check_shape(name, "the loss", found.loss, tokens.logprobs)
    for metric, values in found.metrics.items():
        _check_shape(name, f"the metric {metric!r}", values, tokens.logprobs)
    if tokens.logprobs.requires_grad and not found.loss.requires_grad:
        raise unusable(name, "a loss that carries no gradient: it does not depend on tokens.logprobs", _LOSS)
    if not bool(torch.isfinite(found.loss.detach()).all()):
        bad = int(torch.isfinite(found.loss.detach()).logical_not().sum())
        raise unusable(name, f"a loss that is not finite for {bad} of {len(found.loss)} tokens", _LOSS)
    return found


def _check_shape(name: str, what: str, found: object, like: Tensor) -> None:
    if not isinstance(found, Tensor):
        raise unusable(name, f"{what} is a {type(found).__name__}", _LOSS)
    if found.shape != like.shape or not found.is_floating_point():
        said = f"{what} is {str(found.dtype).removeprefix('torch.')}{list(found.shape)}"
        raise unusable(name, f"{said} for {len(like)} tokens", _LOSS)


def _a_few_tokens() -> LossInputs:
    """Two samples of three tokens, one better and one worse than the other."""
    logprobs = torch.tensor([-0.5, -1.0, -2.0, -0.1, -3.0, -0.7], requires_grad=True)
    sampler = torch.tensor([-0.6, -0.9, -2.0, -0.2, -2.5, -0.7])
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    return LossInputs(logprobs, sampler, advantages, torch.tensor([0, 0, 0, 1, 1, 1]), sampler.clone())


def _advantage(objective: Objective, assets: Path | None) -> Advantage:
    name = objective.advantage
    if assets is None or not is_import_path(name):
        return lambda samples: group_advantages(samples.groups, samples.rewards, samples.lengths, name)
    function = load_function(name, assets)

    def advantage(samples: AdvantageSamples) -> NDArray[np.float32]:
        return _checked_advantage(name, function, samples)

    rewards = np.array([0, 1, 1, 1], dtype=np.float32)
    advantage(AdvantageSamples(np.array([0, 0, 1, 1]), rewards, np.array([3, 4, 5, 6])))
    return advantage


def _checked_advantage(name: str, function: Function, samples: AdvantageSamples) -> NDArray[np.float32]:
    returned = calling(name, function, samples, wanted=_ADVANTAGE)
    count = len(samples.rewards)
    try:
        found = np.asarray(returned, dtype=np.float64)
    except (TypeError, ValueError):
        raise unusable(name, f"a {type(returned).__name__}", _ADVANTAGE) from None
    if found.shape != (count,):
        raise unusable(name, f"an array of shape {list(found.shape)} for {count} samples", _ADVANTAGE)
    if not np.isfinite(found).all():
        raise unusable(name, f"numbers that are not finite for {int((~np.isfinite(found)).sum())} samples", _ADVANTAGE)
    return found.astype(np.float32)
