"""GSPO: one ratio per sequence (arXiv 2507.18071, equations 5 to 7).

With s = exp(mean over a sample's tokens of (logprob - sampler logprob)):

    loss = -min( s * A, clip(s, 1 - low, 1 + high) * A ),   low 3e-4, high 4e-4

Every token is given its sample's loss, so the mean over a sample's tokens, then over samples (normalisation
"samples") is the paper's objective. The gradient flows through the mean log ratio to every token of the sample.
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, clipped_surrogate, log_ratio, share


def token_loss(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    samples: Tensor,
    low: float = 3e-4,
    high: float = 4e-4,
) -> TokenLoss:
    """samples: int64[n], which sample each token belongs to, from 0; all tokens of a sample must be present."""
    logs = log_ratio(logprobs, sampler_logprobs)
    count = int(samples.max()) + 1 if samples.numel() else 0
    lengths = torch.zeros(count, dtype=logs.dtype, device=logs.device).index_add(0, samples, torch.ones_like(logs))
    sums = torch.zeros(count, dtype=logs.dtype, device=logs.device).index_add(0, samples, logs)
    ratio = torch.exp(sums / lengths.clamp(min=1))[samples]
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    return TokenLoss(loss, {"clip_share": share(flat, ratio)})
