"""The loss of sampled tokens, and its gradient before the pass is over.

What a token's loss depends on is known beforehand, all but its log-probability. Where no token's loss depends on
another token's (`Functions.per_token`), the gradient of a few can be had as soon as their log-probabilities are there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from node.training.functions import Functions
from node.training.head import Slopes
from node.training.losses import LossInputs, TokenLoss, reference_kl
from protocol.recipe import Objective


def loglinear(logprobs: Tensor, sampler_logprobs: Tensor, ages: Tensor) -> Tensor:
    """log pi_prox = log mu + a (log pi - log mu), a = max(0, (age - 1) / age): the policy one version ago.

    ages: float[n] >= 0, versions between sampler and learner, fractions for updates within a step. The log-probs of
    versions between two known ones are taken to lie on a line (A-3PO, arXiv 2512.06547), which saves a forward
    pass; for samples at most one version old it is the sampler itself. No gradient.
    """
    towards = ((ages - 1) / ages.clamp(min=1)).clamp(min=0)
    return sampler_logprobs + towards * (logprobs.detach() - sampler_logprobs)


@dataclass(frozen=True, slots=True)
class TokenSignals:
    """Per token, [n]. weights: of each loss in the total; ages: for losses that take the proximal policy to lie between
    sampler and learner; proximal: for those that have it computed; reference: where there is a pull to it; teacher_kl:
    log sampler - log teacher, where there is one: it is in the advantages already, and only told."""

    sampler_logprobs: Tensor
    advantages: Tensor
    samples: Tensor
    weights: Tensor
    ages: Tensor | None = None
    proximal: Tensor | None = None
    reference: Tensor | None = None
    teacher_kl: Tensor | None = None

    def cut(self, cut: slice) -> "TokenSignals":
        parts: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            parts[field.name] = None if value is None else value[cut]
        return TokenSignals(**parts)


@dataclass(frozen=True, slots=True)
class Loss:
    """total: what is differentiated; found: of each token; extra: what else is reported of each."""

    total: Tensor
    inputs: LossInputs
    found: TokenLoss
    extra: Mapping[str, Tensor]


def loss_of(functions: Functions, objective: Objective, known: TokenSignals, logprobs: Tensor, entropy: Tensor) -> Loss:
    inputs = LossInputs(
        logprobs, known.sampler_logprobs, known.advantages, known.samples, _proximal(functions, known, logprobs)
    )
    found = functions.loss(inputs, objective)
    per_token, extra = found.loss - objective.entropy_bonus * entropy, {}
    if known.reference is not None:
        extra["kl"] = reference_kl(logprobs, known.sampler_logprobs, known.reference)
        per_token = per_token + objective.reference_kl * extra["kl"]
    if known.teacher_kl is not None:
        extra["teacher_kl"] = known.teacher_kl
    return Loss((known.weights.to(logprobs.dtype) * per_token).sum(), inputs, found, extra)


def _proximal(functions: Functions, known: TokenSignals, logprobs: Tensor) -> Tensor | None:
    if not functions.needs_proximal:
        return None
    if known.ages is not None:
        return loglinear(logprobs, known.sampler_logprobs, known.ages)
    return logprobs.detach() if known.proximal is None else known.proximal


def slopes_of(functions: Functions, objective: Objective, known: TokenSignals, scale: float) -> Slopes | None:
    """The gradient of `scale` times the loss, some tokens at a time; None where those do not determine it."""

    def slopes(cut: slice, logprobs: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
        # The head asks in its forward pass, in which autograd records nothing by itself.
        with torch.enable_grad():
            leaves = logprobs.detach().requires_grad_(), entropy.detach().requires_grad_()
            total = loss_of(functions, objective, known.cut(cut), *leaves).total * scale
            by_logprobs, by_entropy = torch.autograd.grad(total, leaves)
        return by_logprobs, by_entropy

    return slopes if functions.per_token else None
