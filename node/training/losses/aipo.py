"""AIPO: one ratio, capped from above (arXiv 2505.24034).

Per token, with r = exp(logprob - sampler logprob):

    loss = -min(r, cap) * A

Taken as an objective, as the trainer of INTELLECT-2's makers took it from June 2025: beyond the cap there is no
gradient. Read as a weight on the gradient of log pi instead, the same formula is CISPO.
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, log_ratio, share


def token_loss(logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, cap: float = 8.0) -> TokenLoss:
    """All three tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    return TokenLoss(-torch.clamp(ratio, max=cap) * advantages, {"clip_share": share(ratio > cap, ratio)})
