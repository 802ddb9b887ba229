"""The fit of an applied gradient to the groups' own: what rounding may clip accuses nobody and hides no other group."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
import torch

from node.audit.direction import check_direction
from node.audit.findings import Says
from node.training.state import State
from protocol.recipe import Recipe

GROUPS, CELLS = 10, 4000
RECIPE = Recipe(name="intellect2", updates_per_step=1, grad_clip=1e9)


def gradients(rows: np.ndarray) -> list[tuple[int, Mapping[str, torch.Tensor]]]:
    return [(group, {"w": torch.from_numpy(row)}) for group, row in enumerate(rows)]


def states(applied: np.ndarray) -> tuple[State, State]:
    """Before and after a step with this gradient."""
    nothing = {name: {"w": np.zeros(CELLS, np.float32)} for name in ("weight", "exp_avg", "exp_avg_sq")}
    before = State(0, 0, {}, nothing)
    after = {**nothing, "exp_avg": {"w": ((1 - RECIPE.beta1) * applied).astype(np.float32)}}
    return before, msgspec.structs.replace(before, step=1, updates=1, tensors=after)


@pytest.mark.parametrize("left_out", [None, 7], ids=["honest", "a group left out"])
@pytest.mark.parametrize("looks", [True, False], ids=["looks beside", "the control: does not"])
def test_a_token_that_rounding_clipped_accuses_nobody_and_a_group_that_was_left_out_is_found(
    left_out: int | None, looks: bool
) -> None:
    """Group 2 is mostly one token, whose ratio is at the clip: the trainer clipped it, and the auditor does not."""
    random = np.random.default_rng(1)
    rows = random.normal(size=(GROUPS, CELLS)).astype(np.float32)
    token = 3 * random.normal(size=CELLS).astype(np.float32)
    clipped = rows.copy()
    rows[2] += token
    learnt = [group for group in range(GROUPS) if group != left_out]
    noise = 0.02 * random.normal(size=CELLS)
    before, after = states(clipped[learnt].sum(0) + noise)
    beside = [gradients(clipped), gradients(rows)] if looks else []
    found = check_direction(before, after, RECIPE, gradients(rows), GROUPS, float32=False, beside=beside)
    if not looks:
        assert found.says is Says.BROKEN
    elif left_out is None:
        assert found.says is Says.HOLDS, found.text
    else:
        assert found.says is Says.BROKEN and f"{left_out} by -" in found.text and "1 of 10" in found.text
