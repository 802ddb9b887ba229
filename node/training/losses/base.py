"""What every loss returns, and the ratio that most begin with."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

LONGEST_LOG_RATIO = 20.0
"""Beyond it a log ratio is a numerical accident; exp(20) is finite in every float type, so no NaN can come of it."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """loss: float[n], per token, differentiable, before any mask or normalisation.

    metrics: float[n] each, detached; the mean over a batch's tokens is what is reported.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


def log_ratio(logprobs: Tensor, other: Tensor) -> Tensor:
    """log(policy / other policy) of each token, within +-20; outside of that it has no gradient."""
    return torch.clamp(logprobs - other, -LONGEST_LOG_RATIO, LONGEST_LOG_RATIO)


def share(condition: Tensor, like: Tensor) -> Tensor:
    """A condition per token as zeros and ones."""
    return condition.detach().to(like.dtype)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO's -min(r A, clip(r, 1 - low, 1 + high) A) and where it has no gradient (arXiv 1707.06347, equation 7)."""
    loss = torch.maximum(-ratio * advantages, -torch.clamp(ratio, 1 - low, 1 + high) * advantages)
    flat = torch.where(advantages < 0, ratio < 1 - low, ratio > 1 + high)
    return loss, flat
