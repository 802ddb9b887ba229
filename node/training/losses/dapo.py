"""DAPO: PPO's clip with a higher upper bound (arXiv 2503.14476, equation 8).

Per token, with r = exp(logprob - sampler logprob):

    loss = -min( r * A, clip(r, 1 - low, 1 + high) * A ),   low 0.2, high 0.28

What else DAPO consists of lies around it: the token mean (normalisation), masked unfinished samples and the soft
penalty of long ones (node.training.advantages), and refilled batches (the daemon's filter).
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, clipped_surrogate, log_ratio, share


def token_loss(
    logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.28
) -> TokenLoss:
    """All three tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    return TokenLoss(loss, {"clip_share": share(flat, ratio)})
