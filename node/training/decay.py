"""An optimiser's groups: weights that decay, and those that do not (`protocol.recipe.decays`)."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from protocol.recipe import decays


def decay_groups(parameters: Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """An optimiser's groups of parameters, in their order; none is empty."""
    every = list(parameters)
    groups = [
        {"params": [one for one in every if decays(one.ndim)], "weight_decay": weight_decay},
        {"params": [one for one in every if not decays(one.ndim)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
