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


@pytest.mark.parametrize("hidden", [0.0, 0.2], ids=["honest", "a part is of no group"])
@pytest.mark.parametrize("rounding", [0.01, 0.5], ids=["rounds little", "rounds much"])
def test_what_float32_shows_of_rounding_is_how_sharply_a_trainer_in_bfloat16_is_judged(
    hidden: float, rounding: float
) -> None:
    """The trainer's rounding is not the auditor's. The controls: without the look in float32 a part of no group is not
    seen where rounding is little, and is a fault where rounding explains as much."""
    random = np.random.default_rng(2)
    rows = random.normal(size=(GROUPS, CELLS)).astype(np.float32)
    exact = rows + rounding * random.normal(size=rows.shape).astype(np.float32)
    whole = rows.sum(0)
    own = rounding / 3 * random.normal(size=(GROUPS, CELLS)).sum(0)
    added = random.normal(size=CELLS)
    before, after = states(whole + own + hidden * np.linalg.norm(whole) / np.linalg.norm(added) * added)
    found = [
        check_direction(before, after, RECIPE, gradients(rows), GROUPS, float32=False, measured=measured)
        for measured in (gradients(exact), None)
    ]
    says = (Says.BROKEN, Says.HOLDS) if rounding < 0.1 else (Says.UNDECIDED, Says.BROKEN)
    assert tuple(one.says for one in found) == (says if hidden else (Says.HOLDS, Says.HOLDS)), found


@pytest.mark.parametrize("left_out", [None, 7])
def test_a_group_that_was_left_out_is_found_where_float32_is_far_from_the_trainers_dtype(left_out: int | None) -> None:
    random = np.random.default_rng(3)
    rows = random.normal(size=(GROUPS, CELLS)).astype(np.float32)
    exact = rows + 0.5 * random.normal(size=rows.shape).astype(np.float32)
    before, after = states(rows[[group for group in range(GROUPS) if group != left_out]].sum(0))
    look = {"measured": gradients(exact), "float32": False}
    found = check_direction(before, after, RECIPE, gradients(rows), GROUPS, **look)
    assert found.says is (Says.HOLDS if left_out is None else Says.BROKEN)
    assert left_out is None or f"{left_out} by -1.00" in found.text
    blind = check_direction(before, after, RECIPE, gradients(exact), GROUPS, float32=True)
    assert blind.says is Says.BROKEN, "the control: float32 alone takes rounding for a fault"
