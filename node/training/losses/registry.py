"""Losses by name: what a recipe's objective calls, and with which of its numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


_CLIP = {"low": "clip_low", "high": "clip_high"}
_LOSSES: dict[str, tuple[Callable[..., TokenLoss], dict[str, str]]] = {
    "intellect2": (intellect2.token_loss, {**_CLIP, "cap": "ratio_cap"}),
    "dppo": (dppo.token_loss, {**_CLIP, "sampler_kl": "sampler_kl"}),
    "cispo": (cispo.token_loss, {"cap": "ratio_cap"}),
    "icepop": (icepop.token_loss, {"floor": "ratio_floor", "cap": "ratio_cap"}),
    "aipo": (aipo.token_loss, {"cap": "ratio_cap"}),
    "dapo": (dapo.token_loss, _CLIP),
    "dr_grpo": (dr_grpo.token_loss, {"clip": "clip_low"}),
    "gspo": (gspo.token_loss, _CLIP),
    "tis": (tis.token_loss, {**_CLIP, "floor": "ratio_floor", "cap": "ratio_cap"}),
    "decoupled": (decoupled.token_loss, {**_CLIP, "cap": "ratio_cap"}),
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
    return loss(inputs.logprobs, inputs.sampler_logprobs, inputs.advantages, **given)
