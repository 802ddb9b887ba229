"""What a batch was made of, as numbers for metrics. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from node.recipe.pool import Group, PoolSample, Selection


def describe(selection: Selection, *, waiting: int, stale: int) -> dict[str, Any]:
    """Means over all groups that were looked at (chosen and without signal), so that the online filter does not
    flatter a reward. waiting: surplus rollouts kept; stale: rollouts dropped so far as too old.

    Ages are steps from the policy that produced the tokens to the step that trains on them, counted in rollouts.
    """
    seen = [*selection.groups, *selection.flat]
    samples = [sample for group in seen for sample in group.samples]
    ages: Counter[int] = Counter()
    for group in selection.groups:
        ages[selection.step - group.policy_step] += len(group.rows)
    lengths = [sample.length for sample in samples]
    return {
        "reward_mean": _mean(sample.reward for sample in samples),
        "task_reward": _mean(sample.task for sample in samples),
        "pass_rate": _mean(float(sample.task > 0.5) for sample in samples),  # a task reward above this counts as solved
        "reward_by_environment": _by_label(seen),
        "length_mean": _mean(map(float, lengths)),
        "length_max": max(lengths, default=0),
        "finished_share": _mean(float(sample.finished) for sample in samples),
        "length_error": _length_error(samples),
        "staleness": {str(age): ages[age] for age in sorted(ages)},
        "rollouts": sum(len(group.rows) for group in selection.groups),
        "groups_seen": len(seen),
        "groups_flat": sum(not group.informative for group in seen),
        "groups_filtered": len(selection.flat),
        "barren_batches": selection.barren,
        "surplus_rollouts": waiting,
        "stale_rollouts": stale,
        "output_tokens": sum(lengths),
    }


def _by_label(groups: Iterable[Group]) -> dict[str, float]:
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for group in groups:
        rewards[group.label] += [sample.reward for sample in group.samples]
    return {label: _mean(values) for label, values in sorted(rewards.items())}


def _length_error(samples: Iterable[PoolSample]) -> float | None:
    """Mean distance from the target, tokens; None where there are no budgets."""
    errors = [abs(sample.length - sample.target) for sample in samples if sample.target is not None]
    return _mean(map(float, errors)) if errors else None


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return round(sum(listed) / len(listed), 6) if listed else 0.0
