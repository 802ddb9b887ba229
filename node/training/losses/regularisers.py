"""Terms beside the policy gradient: the distance to a reference model, and the entropy. Both have their gradient.

KL(pi || ref) is estimated per token by r * k3, with r = pi / sampler and k3 = ref/pi - log(ref/pi) - 1 (k3:
Schulman, "Approximating KL divergence"; with the importance weight: DeepSeek-V3.2, arXiv 2512.02556, section 3.1).
Over tokens of the sampler its mean is the KL and, because the weight is differentiated too, its gradient is the KL's
gradient. Without the weight the gradient of k3 is that of another divergence; on detached log-probs there is none.
"""

import torch
from torch import Tensor

from node.training.losses.base import log_ratio


def reference_kl(logprobs: Tensor, sampler_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """float[n] per token; gradient through `logprobs`."""
    weight = torch.exp(log_ratio(logprobs, sampler_logprobs))
    away = log_ratio(reference_logprobs, logprobs)
    return weight * (torch.exp(away) - away - 1)


def mismatch_kl(logprobs: Tensor, sampler_logprobs: Tensor) -> Tensor:
    """k3 of KL(sampler || policy), float[n], no gradient: how far learner and (stale) sampler are apart."""
    away = log_ratio(logprobs.detach(), sampler_logprobs)
    return torch.exp(away) - away - 1
