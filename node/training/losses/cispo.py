"""CISPO: the importance weight is clipped, not the token (arXiv 2506.13585, equations 4 and 5).

Per token, with r = exp(logprob - sampler logprob) and sg the stop-gradient:

    loss = -sg(min(r, cap)) * A * logprob

No token loses its gradient, whatever its ratio; only the weight is bounded, and only from above. ScaleRL
(arXiv 2510.13786) uses this loss with other advantages and another normalisation: see the preset `scalerl`.
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, log_ratio, share


def token_loss(logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, cap: float = 5.0) -> TokenLoss:
    """All three tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs.detach(), sampler_logprobs))
    weight = torch.clamp(ratio, max=cap)
    return TokenLoss(-weight * advantages * logprobs, {"clip_share": share(ratio > cap, ratio)})
