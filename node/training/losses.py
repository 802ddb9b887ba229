"""What a recipe's objective makes of each token: the losses by name, what they are made of, and what is added to them.

Each is pure: it knows nothing of batches, padding or normalisation. Here r = exp(logprob - sampler logprob), A is the
token's advantage and sg the stop-gradient. `logprobs`, `sampler_logprobs`, `advantages` and `proximal_logprobs` are
float[n], one number per token, and only `logprobs` carries a gradient.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from protocol.recipe import Objective

LONGEST_LOG_RATIO = 20.0
"""Beyond it a log ratio is a numerical accident; exp(20) is finite in every float type, so no NaN can come of it."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """loss: float[n], per token, differentiable, before any mask or normalisation.

    metrics: float[n] each, detached; the mean over a batch's tokens is what is reported.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


def log_ratio(logprobs: Tensor, other: Tensor) -> Tensor:
    """log(policy / other policy) of each token, within +-20; outside of that it has no gradient."""
    return torch.clamp(logprobs - other, -LONGEST_LOG_RATIO, LONGEST_LOG_RATIO)


def share(condition: Tensor, like: Tensor) -> Tensor:
    """A condition per token as zeros and ones."""
    return condition.detach().to(like.dtype)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO's -min(r A, clip(r, 1 - low, 1 + high) A) and where it has no gradient (arXiv 1707.06347, equation 7)."""
    loss = torch.maximum(-ratio * advantages, -torch.clamp(ratio, 1 - low, 1 + high) * advantages)
    flat = torch.where(advantages < 0, ratio < 1 - low, ratio > 1 + high)
    return loss, flat


def intellect2(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    cap: float = 4.0,
) -> TokenLoss:
    """The two-sided clipped GRPO loss of INTELLECT-2 (arXiv 2505.07291, section 3.4).

        loss = -min( min(r, cap) * A, clip(r, 1 - low, 1 + high) * A )

    The cap bounds the loss of a token with A < 0 whose ratio explodes; beyond it the gradient is zero, as in
    the published code. Unlike the published run, r is taken against the *sampling* policy, so it also corrects
    for staleness.
    """
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    capped = -torch.clamp(ratio, max=cap) * advantages
    clipped = -torch.clamp(ratio, 1 - low, 1 + high) * advantages
    flat = torch.where(advantages < 0, (ratio < 1 - low) | (ratio > cap), ratio > 1 + high)
    return TokenLoss(torch.maximum(capped, clipped), {"clip_share": share(flat, ratio)})


def dppo(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    sampler_kl: float = 1e-3,
) -> TokenLoss:
    """DPPO with the binary total-variation mask (arXiv 2602.04879), and a quadratic pull towards the sampler.

    With p and q the probabilities of the sampled token under learner and sampler, so that r = p / q:

        dropped = (A > 0 and p - q > high) or (A <= 0 and q - p > low)
        loss    = -(0 if dropped else r * A) + sampler_kl * (log r)^2

    |p - q| is the total variation of the two policies seen as "this token or another". It lets rare tokens move by
    large ratios, which hardly change the policy, and stops common ones early; a clip on r does the opposite. The
    quadratic term has weight 1e-3 in the trainers that made this their default, and holds for dropped tokens too.
    """
    logs = log_ratio(logprobs, sampler_logprobs)
    ratio = torch.exp(logs)
    moved = torch.exp(logprobs.detach()) - torch.exp(sampler_logprobs)
    dropped = torch.where(advantages > 0, moved > high, moved < -low)
    policy = torch.where(dropped, torch.zeros_like(ratio), -ratio * advantages)
    return TokenLoss(policy + sampler_kl * logs.square(), {"mask_share": share(dropped, ratio)})


def cispo(logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, cap: float = 5.0) -> TokenLoss:
    """CISPO: the importance weight is clipped, not the token (arXiv 2506.13585, equations 4 and 5).

        loss = -sg(min(r, cap)) * A * logprob

    No token loses its gradient, whatever its ratio; only the weight is bounded, and only from above. ScaleRL
    (arXiv 2510.13786) uses this loss with other advantages and another normalisation: see the preset `scalerl`.
    """
    ratio = torch.exp(log_ratio(logprobs.detach(), sampler_logprobs))
    weight = torch.clamp(ratio, max=cap)
    return TokenLoss(-weight * advantages * logprobs, {"clip_share": share(ratio > cap, ratio)})


def icepop(
    logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, floor: float = 0.5, cap: float = 5.0
) -> TokenLoss:
    """IcePop: tokens on which learner and sampler disagree too much are dropped, on either side.

        loss = -r * A   if floor <= r <= cap, else 0

    Source: arXiv 2510.18855, section on IcePop; as a single ratio against the sampler in arXiv 2512.16144.
    """
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    dropped = (ratio < floor) | (ratio > cap)
    loss = torch.where(dropped, torch.zeros_like(ratio), -ratio * advantages)
    return TokenLoss(loss, {"mask_share": share(dropped, ratio)})


def aipo(logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, cap: float = 8.0) -> TokenLoss:
    """AIPO: one ratio, capped from above (arXiv 2505.24034).

        loss = -min(r, cap) * A

    Taken as an objective, as the trainer of INTELLECT-2's makers took it from June 2025: beyond the cap there is no
    gradient. Read as a weight on the gradient of log pi instead, the same formula is CISPO.
    """
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    return TokenLoss(-torch.clamp(ratio, max=cap) * advantages, {"clip_share": share(ratio > cap, ratio)})


def dapo(
    logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.28
) -> TokenLoss:
    """DAPO: PPO's clip with a higher upper bound (arXiv 2503.14476, equation 8).

        loss = -min( r * A, clip(r, 1 - low, 1 + high) * A ),   low 0.2, high 0.28

    What else DAPO consists of lies around it: the token mean (normalisation), masked unfinished samples and the soft
    penalty of long ones (node.training.advantages), and refilled batches (the daemon's filter).
    """
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    return TokenLoss(loss, {"clip_share": share(flat, ratio)})


def dr_grpo(logprobs: Tensor, sampler_logprobs: Tensor, advantages: Tensor, *, clip: float = 0.2) -> TokenLoss:
    """Dr. GRPO: PPO's symmetric clip without the biases around it (arXiv 2503.20783, section 3.2).

        loss = -min( r * A, clip(r, 1 - clip, 1 + clip) * A ),   A = reward - mean of the group

    The sum over a sample is divided by a constant, not by its length, and A is not divided by the group's deviation:
    both belong to the preset `dr_grpo`, not to this function.
    """
    ratio = torch.exp(log_ratio(logprobs, sampler_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, clip, clip)
    return TokenLoss(loss, {"clip_share": share(flat, ratio)})


def gspo(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    samples: Tensor,
    low: float = 3e-4,
    high: float = 4e-4,
) -> TokenLoss:
    """GSPO: one ratio per sequence (arXiv 2507.18071, equations 5 to 7).

    With s = exp(mean over a sample's tokens of (logprob - sampler logprob)):

        loss = -min( s * A, clip(s, 1 - low, 1 + high) * A ),   low 3e-4, high 4e-4

    Every token is given its sample's loss, so the mean over a sample's tokens, then over samples (normalisation
    "samples") is the paper's objective. The gradient flows through the mean log ratio to every token of the sample.

    samples: int64[n], which sample each token belongs to, from 0; all tokens of a sample must be present.
    """
    logs = log_ratio(logprobs, sampler_logprobs)
    sums, lengths = of_samples(logs, samples)
    ratio = torch.exp(sums / lengths)
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    return TokenLoss(loss, {"clip_share": share(flat, ratio)})


def tis(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    proximal_logprobs: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    floor: float = 0.0,
    cap: float = 2.0,
) -> TokenLoss:
    """Truncated importance sampling: PPO against the step's own first policy, weighted for what lies before it.

    With u = pi / pi_prox and w = pi_prox / pi_sampler (Yao et al. 2025, "Your efficient RL framework secretly
    brings you off-policy RL training"; also arXiv 2510.13786, appendix):

        loss = -sg(clip(w, floor, cap)) * min( u * A, clip(u, 1 - low, 1 + high) * A ),   cap 2

    pi_prox is the policy that the learner had before its first update on this batch: node.training.objective.
    """
    ratio = torch.exp(log_ratio(logprobs, proximal_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    weight = torch.exp(log_ratio(proximal_logprobs, sampler_logprobs))
    metrics = {"clip_share": share(flat, ratio), "truncated_weight_share": share(weight > cap, ratio)}
    return TokenLoss(torch.clamp(weight, floor, cap) * loss, metrics)


def decoupled(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    advantages: Tensor,
    *,
    proximal_logprobs: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    cap: float = 5.0,
) -> TokenLoss:
    """Decoupled PPO: the policy that is kept close and the policy that sampled are two (arXiv 2505.24298, equation 5).

    With u = pi / pi_prox and w = pi_prox / pi_sampler:

        loss = -sg(w) * min( u * A, clip(u, 1 - low, 1 + high) * A ),   dropped where w > cap

    pi_prox is recomputed, or interpolated between sampler and learner: node.training.objective.
    """
    ratio = torch.exp(log_ratio(logprobs, proximal_logprobs))
    loss, flat = clipped_surrogate(ratio, advantages, low, high)
    weight = torch.exp(log_ratio(proximal_logprobs, sampler_logprobs))
    dropped = weight > cap
    metrics = {"clip_share": share(flat, ratio), "mask_share": share(dropped, ratio)}
    return TokenLoss(torch.where(dropped, torch.zeros_like(loss), weight * loss), metrics)


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Per token, all float[n] but samples: int64[n]. proximal_logprobs: only for the losses in NEEDS_PROXIMAL.

    sampler_logprobs: of the policy that made the token, recomputed by validators; never what the worker said.
    """

    logprobs: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    samples: Tensor
    proximal_logprobs: Tensor | None = None


_CLIP = {"low": "clip_low", "high": "clip_high"}
_LOSSES: dict[str, tuple[Callable[..., TokenLoss], dict[str, str]]] = {
    "intellect2": (intellect2, {**_CLIP, "cap": "ratio_cap"}),
    "dppo": (dppo, {**_CLIP, "sampler_kl": "sampler_kl"}),
    "cispo": (cispo, {"cap": "ratio_cap"}),
    "icepop": (icepop, {"floor": "ratio_floor", "cap": "ratio_cap"}),
    "aipo": (aipo, {"cap": "ratio_cap"}),
    "dapo": (dapo, _CLIP),
    "dr_grpo": (dr_grpo, {"clip": "clip_low"}),
    "gspo": (gspo, _CLIP),
    "tis": (tis, {**_CLIP, "floor": "ratio_floor", "cap": "ratio_cap"}),
    "decoupled": (decoupled, {**_CLIP, "cap": "ratio_cap"}),
}
"""Each loss, and which number of the objective each of its own is."""
NAMES = tuple(sorted(_LOSSES))
NEEDS_PROXIMAL = frozenset({"tis", "decoupled"})
OF_WHOLE_SAMPLES = frozenset({"gspo"})
"""Losses in which a token's depends on others of its sample."""
# dppo's pull towards the sampler holds for groups without signal, too. Without their rows its loss was 6.6e-4 off its
# reference.
_PULLS: dict[str, Callable[[Objective], bool]] = {"dppo": lambda o: o.sampler_kl > 0}


def pulls_at_zero_advantage(objective: Objective) -> bool:
    """Whether the loss of a token with advantage zero has a gradient: then no row may be left out of a batch."""
    return _PULLS.get(objective.loss, lambda _: False)(objective)


def evaluate(objective: Objective, inputs: LossInputs) -> TokenLoss:
    """The objective's loss of each token. Raises KeyError for an unknown name (protocol.recipe refuses it earlier)."""
    loss, numbers = _LOSSES[objective.loss]
    given: dict[str, Any] = {own: getattr(objective, name) for own, name in numbers.items()}
    if objective.loss in OF_WHOLE_SAMPLES:
        given["samples"] = inputs.samples
    if objective.loss in NEEDS_PROXIMAL:
        if inputs.proximal_logprobs is None:
            raise ValueError("this loss needs proximal log-probs")
        given["proximal_logprobs"] = inputs.proximal_logprobs
    return masked(objective, inputs, loss(inputs.logprobs, inputs.sampler_logprobs, inputs.advantages, **given))


def masked(objective: Objective, inputs: LossInputs, found: TokenLoss) -> TokenLoss:
    """A loss without the samples that the objective drops whole."""
    if objective.sample_mask == "none":
        return found
    dropped = outside(objective, inputs)
    left = torch.where(dropped, torch.zeros_like(found.loss), found.loss)
    return TokenLoss(left, {**found.metrics, "sample_mask_share": share(dropped, found.loss)})


def outside(objective: Objective, inputs: LossInputs) -> Tensor:
    """bool[n]: whether a token's sample is dropped whole, by the ratios of all its tokens.

        mean: exp(mean of log r) is not within [mask_low, mask_high]      any: some r is not

    The first tells of a policy that has moved away, evenly; its value is GSPO's ratio (arXiv 2507.18071, equation 7),
    and 0.99 to 1.01 is what SkyRL's notes on stale samples advise. The second tells of one token that the learner's
    arithmetic finds next to impossible: that sample is another model's. No gradient flows through either.
    """
    logs = log_ratio(inputs.logprobs.detach(), inputs.sampler_logprobs)
    # A lower bound of ratios below which there is none.
    low, high = math.log(max(objective.mask_low, 1e-30)), math.log(objective.mask_high)
    if objective.sample_mask == "any":
        away = ((logs < low) | (logs > high)).to(logs.dtype)
        return of_samples(away, inputs.samples)[0] > 0
    sums, lengths = of_samples(logs, inputs.samples)
    mean = sums / lengths
    return (mean < low) | (mean > high)


def of_samples(values: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
    """(sum of a sample's values, how many it has), of each token's sample. values: float[n]."""
    count = int(samples.max()) + 1 if samples.numel() else 0
    none = torch.zeros(count, dtype=values.dtype, device=values.device)
    sums, lengths = none.index_add(0, samples, values), none.index_add(0, samples, torch.ones_like(values))
    return sums[samples], lengths[samples]


def reference_kl(logprobs: Tensor, sampler_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """KL(policy || reference), estimated per token by r * k3; float[n], with a gradient through `logprobs`.

    k3 = ref/pi - log(ref/pi) - 1 (Schulman, "Approximating KL divergence"; with the importance weight r: DeepSeek-V3.2,
    arXiv 2512.02556, section 3.1). Over tokens of the sampler its mean is the KL and, because the weight is
    differentiated too, its gradient is the KL's gradient. Without the weight the gradient of k3 is that of another
    divergence; on detached log-probs there is none.
    """
    weight = torch.exp(log_ratio(logprobs, sampler_logprobs))
    away = log_ratio(reference_logprobs, logprobs)
    return weight * (torch.exp(away) - away - 1)


def mismatch_kl(logprobs: Tensor, sampler_logprobs: Tensor) -> Tensor:
    """k3 of KL(sampler || policy), float[n], no gradient: how far learner and (stale) sampler are apart."""
    away = log_ratio(logprobs.detach(), sampler_logprobs)
    return torch.exp(away) - away - 1
