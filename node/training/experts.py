"""Learning with the experts that made a rollout: a router that is given its choice only says how much each counts.

Learner and engine round differently, so a learner's own routers would now and then choose others than the rollout had,
and the policy that is learnt from would not be the one that sampled (Ma et al. 2025, arXiv 2510.11370). The gradient
goes to the router by the shares of the experts on record, as it does by those of its own choice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from node.inference.architectures import ARCHITECTURES, CORRECTION, expert_layers, routing_of
from node.training.batch import BatchRow
from protocol.routing import Routing, load_of, table_of


class Routers:
    """Those of a model of transformers, in the order of its layers. routing: None of a model without."""

    def __init__(self, model: Any) -> None:
        self.routing: Routing | None = routing_of(model.config)
        self._given: Tensor | None = None
        parts = ARCHITECTURES[model.config.model_type].experts
        for number, layer in enumerate(expert_layers(model.config)):
            self._replay(getattr(model.base_model.layers[layer].mlp, parts.router if parts else ""), number)

    def give(self, experts: Tensor | None) -> None:
        """What the next pass computes with, and whoever recomputes it for a gradient: int16[tokens, width], -1 where
        routers choose; None: everywhere."""
        self._given = experts

    def _replay(self, router: nn.Module, number: int) -> None:
        # gpt_oss has no such switch: its shares are the softmax of the chosen experts' logits,
        # which is what normed shares are.
        own, normed = router.forward, bool(getattr(router, "norm_topk_prob", True))
        factor, corrected = float(getattr(router, "routed_scaling_factor", 1.0)), hasattr(router, CORRECTION)
        assert self.routing is not None  # it has this router
        part = slice(number * self.routing.chosen, (number + 1) * self.routing.chosen)

        def forward(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits, scores, chosen = own(hidden)
            if self._given is None:
                return logits, scores, chosen
            given = self._given[:, part].long()
            chosen = torch.where(given < 0, chosen, given)
            likely = logits.sigmoid() if corrected else logits.softmax(-1, dtype=torch.float32)
            shares = likely.gather(1, chosen)
            if normed:
                shares = shares / shares.sum(-1, keepdim=True)
            return logits, (shares * factor).to(logits.dtype), chosen

        router.forward = forward


def given(rows: Sequence[BatchRow], places: Sequence[int], tokens: int, routing: Routing) -> NDArray[np.int16] | None:
    """int16[tokens, width]: the experts of rows whose first tokens stand at `places` of a micro-batch; None if no row
    has any."""
    if not any(row.experts for row in rows):
        return None
    whole = np.full((tokens, routing.width), -1, dtype=np.int16)
    for row, place in zip(rows, places, strict=True):
        if row.experts:
            whole[place : place + row.fed] = table_of(row.experts, routing)
    return whole


def describe_experts(rows: Sequence[BatchRow], routing: Routing | None) -> dict[str, float]:
    """How the tokens of a batch were spread: the share that the busiest expert of a layer computed, and of experts that
    computed none. Nothing where no row says it."""
    told = [row for row in rows if row.experts]
    if routing is None or not told:
        return {}
    shares = load_of(b"".join(row.experts for row in told), routing) / sum(row.fed for row in told)
    return {"busiest_expert": float(shares.max()), "idle_experts": float((shares == 0).mean())}
