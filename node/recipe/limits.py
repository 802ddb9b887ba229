"""When a run ends before its last step: its goal is reached, or what it may cost is spent. Pure."""

from collections.abc import Sequence
from statistics import fmean

from protocol.run import RunSpec

EVALUATIONS = 10
"""The goal is reached when the mean of so many evaluations is."""


def reached_target(run: RunSpec, evaluations: Sequence[float]) -> bool:
    """evaluations: held-back rewards, oldest first."""
    target = run.recipe.target_reward
    recent = evaluations[-EVALUATIONS:]
    return target is not None and len(recent) == EVALUATIONS and fmean(recent) >= target


def spent(run: RunSpec, seconds: float, tokens: int) -> str | None:
    """Which limit of [budget] is reached, in words; None while none is."""
    budget = run.budget
    if budget.hours and seconds >= 3600 * budget.hours:
        return f"budget.hours = {budget.hours:g} is used up"
    if budget.tokens and tokens >= budget.tokens:
        return f"budget.tokens = {budget.tokens} is used up"
    return None
