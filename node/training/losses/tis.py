"""Truncated importance sampling: PPO against the step's own first policy, weighted for what lies before it.

Per token, with u = pi / pi_prox, w = pi_prox / pi_sampler (Yao et al. 2025, "Your efficient RL framework secretly
brings you off-policy RL training"; also arXiv 2510.13786, appendix):

    loss = -sg(clip(w, floor, cap)) * min( u * A, clip(u, 1 - low, 1 + high) * A ),   cap 2

pi_prox is the policy that the learner had before its first update on this batch: node.training.objective.
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, clipped_surrogate, log_ratio, share


def token_loss(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    proximal_logprobs: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    floor: float = 0.0,
    cap: float = 2.0,
) -> TokenLoss:
    """All tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs, proximal_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    weight = torch.exp(log_ratio(proximal_logprobs, sampler_logprobs))
    metrics = {"clip_share": share(flat, ratio), "truncated_weight_share": share(weight > cap, ratio)}
    return TokenLoss(torch.clamp(weight, floor, cap) * loss, metrics)
