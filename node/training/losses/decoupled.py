"""Decoupled PPO: the policy that is kept close and the policy that sampled are two (arXiv 2505.24298, equation 5).

Per token, with u = pi / pi_prox, w = pi_prox / pi_sampler:

    loss = -sg(w) * min( u * A, clip(u, 1 - low, 1 + high) * A ),   dropped where w > cap

pi_prox is recomputed, or interpolated between sampler and learner: node.training.objective.
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
    cap: float = 5.0,
) -> TokenLoss:
    """All tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs, proximal_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    weight = torch.exp(log_ratio(proximal_logprobs, sampler_logprobs))
    dropped = weight > cap
    metrics = {"clip_share": share(flat, ratio), "mask_share": share(dropped, ratio)}
    return TokenLoss(torch.where(dropped, torch.zeros_like(loss), weight * loss), metrics)
