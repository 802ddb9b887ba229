"""The proximal policy: what `tis` and `decoupled` keep the learner close to. Pure."""

from torch import Tensor


def loglinear(logprobs: Tensor, sampler_logprobs: Tensor, ages: Tensor) -> Tensor:
    """log pi_prox = log mu + a (log pi - log mu), a = max(0, (age - 1) / age): the policy one version ago.

    ages: float[n] >= 0, versions between sampler and learner, fractions for updates within a step. The log-probs of
    versions between two known ones are taken to lie on a line (A-3PO, arXiv 2512.06547), which saves a forward
    pass; for samples at most one version old it is the sampler itself. No gradient.
    """
    towards = ((ages - 1) / ages.clamp(min=1)).clamp(min=0)
    return sampler_logprobs + towards * (logprobs.detach() - sampler_logprobs)
