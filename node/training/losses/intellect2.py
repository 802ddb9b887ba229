"""The two-sided clipped GRPO loss of INTELLECT-2 (arXiv 2505.07291, section 3.4).

Per token, with r = exp(logprob - sampler logprob) and advantage A:

    loss = -min( min(r, cap) * A, clip(r, 1 - low, 1 + high) * A )

The cap bounds the loss of a token with A < 0 whose ratio explodes; beyond it the gradient is zero, as in
the published code. Unlike the published run, r is taken against the *sampling* policy, so it also corrects
for staleness. Pure: knows nothing of batches, padding or normalisation.
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, log_ratio, share


def token_loss(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    cap: float = 4.0,
) -> TokenLoss:
    """All three tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    capped = -torch.clamp(ratio, max=cap) * advantages
    clipped = -torch.clamp(ratio, 1 - low, 1 + high) * advantages
    flat = torch.where(advantages < 0, (ratio < 1 - low) | (ratio > cap), ratio > 1 + high)
    return TokenLoss(torch.maximum(capped, clipped), {"clip_share": share(flat, ratio)})
