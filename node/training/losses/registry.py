"""Losses by name: what a recipe's objective calls, and with which of its numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from node.training.losses import aipo, cispo, dapo, decoupled, dppo, dr_grpo, gspo, icepop, intellect2, tis
from node.training.losses.base import TokenLoss
from protocol.recipe import Objective


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


def _proximal(x: LossInputs) -> Tensor:
    if x.proximal_logprobs is None:
        raise ValueError("this loss needs proximal log-probs")
    return x.proximal_logprobs


_LOSSES: dict[str, Callable[[LossInputs, Objective], TokenLoss]] = {
    "intellect2": lambda x, o: intellect2.token_loss(
        x.logprobs, x.sampler_logprobs, x.advantages, low=o.clip_low, high=o.clip_high, cap=o.ratio_cap
    ),
    "dppo": lambda x, o: dppo.token_loss(
        x.logprobs, x.sampler_logprobs, x.advantages, low=o.clip_low, high=o.clip_high, sampler_kl=o.sampler_kl
    ),
    "cispo": lambda x, o: cispo.token_loss(x.logprobs, x.sampler_logprobs, x.advantages, cap=o.ratio_cap),
    "icepop": lambda x, o: icepop.token_loss(
        x.logprobs, x.sampler_logprobs, x.advantages, floor=o.ratio_floor, cap=o.ratio_cap
    ),
    "aipo": lambda x, o: aipo.token_loss(x.logprobs, x.sampler_logprobs, x.advantages, cap=o.ratio_cap),
    "dapo": lambda x, o: dapo.token_loss(
        x.logprobs, x.sampler_logprobs, x.advantages, low=o.clip_low, high=o.clip_high
    ),
    "dr_grpo": lambda x, o: dr_grpo.token_loss(x.logprobs, x.sampler_logprobs, x.advantages, clip=o.clip_low),
    "gspo": lambda x, o: gspo.token_loss(
        x.logprobs, x.sampler_logprobs, x.advantages, samples=x.samples, low=o.clip_low, high=o.clip_high
    ),
    "tis": lambda x, o: tis.token_loss(
        x.logprobs,
        x.sampler_logprobs,
        x.advantages,
        proximal_logprobs=_proximal(x),
        low=o.clip_low,
        high=o.clip_high,
        floor=o.ratio_floor,
        cap=o.ratio_cap,
    ),
    "decoupled": lambda x, o: decoupled.token_loss(
        x.logprobs,
        x.sampler_logprobs,
        x.advantages,
        proximal_logprobs=_proximal(x),
        low=o.clip_low,
        high=o.clip_high,
        cap=o.ratio_cap,
    ),
}
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
    return _LOSSES[objective.loss](inputs, objective)
