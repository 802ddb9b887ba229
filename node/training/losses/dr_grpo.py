"""Dr. GRPO: PPO's symmetric clip without the biases around it (arXiv 2503.20783, section 3.2).

Per token, with r = exp(logprob - sampler logprob):

    loss = -min( r * A, clip(r, 1 - clip, 1 + clip) * A ),   A = reward - mean of the group

The sum over a sample is divided by a constant, not by its length, and A is not divided by the group's deviation: both
belong to the preset `dr_grpo`, not to this function.
"""

import torch
from torch import Tensor

from node.training.losses.base import TokenLoss, clipped_surrogate, log_ratio, share


def token_loss(logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, clip: float = 0.2) -> TokenLoss:
    """All three tensors have the same shape; only `logprobs` carries a gradient."""
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, clip, clip)
    return TokenLoss(loss, {"clip_share": share(flat, ratio)})
