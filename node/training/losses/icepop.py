"""IcePop: tokens on which learner and sampler disagree too much are dropped, on either side.

Per token, with r = exp(logprob - sampler logprob) (arXiv 2510.18855, section on IcePop; as a single ratio against the
sampler in arXiv 2512.16144):

    loss = -r * A   if floor <= r <= cap, else 0
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, log_ratio, share


def token_loss(
    logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, floor: float = 0.5, cap: float = 5.0
) -> TokenLoss:
    """All three tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    dropped = (ratio < floor) | (ratio > cap)
    loss = torch.where(dropped, torch.zeros_like(ratio), -ratio * advantages)
    return TokenLoss(loss, {"mask_share": share(dropped, ratio)})
