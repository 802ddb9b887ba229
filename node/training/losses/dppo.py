"""DPPO with the binary total-variation mask (arXiv 2602.04879), and a quadratic pull towards the sampler.

Per token, with p and q the probabilities of the sampled token under learner and sampler, r = p / q:

    dropped = (A > 0 and p - q > high) or (A <= 0 and q - p > low)
    loss    = -(0 if dropped else r * A) + sampler_kl * (log r)^2

|p - q| is the total variation of the two policies seen as "this token or another". It lets rare tokens move by large
ratios, which hardly change the policy, and stops common ones early; a clip on r does the opposite. The quadratic
term has weight 1e-3 in the trainers that made this their default, and holds for dropped tokens too.
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
    sampler_kl: float = 1e-3,
) -> TokenLoss:
    """All three tensors have the same shape; only `logprobs` carries a gradient."""
    logs = log_ratio(logprobs, sampler_logprobs)
    ratio = torch.exp(logs)
    moved = torch.exp(logprobs.detach()) - torch.exp(sampler_logprobs)
    dropped = torch.where(advantages > 0, moved > high, moved < -low)
    policy = torch.where(dropped, torch.zeros_like(ratio), -ratio * advantages)
    return TokenLoss(policy + sampler_kl * logs.square(), {"mask_share": share(dropped, ratio)})
