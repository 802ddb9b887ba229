"""Length budgets: which target a problem gets, what the model is told, where an answer is cut, what it is worth.

The target of a group follows from (policy root, node, index, group) and the capacity class that the file states,
so a validator computes the same. Rewards (INTELLECT-2, arXiv 2505.07291, section 3.1), with n output tokens:

    exact   task - alpha * |n - target|
    max     task * clip(alpha * (target - n) + 0.5, 0, 1)
    clip    task if n <= target else 0
"""

import math

from blake3 import blake3

from protocol.identity import Address, address_bytes
from protocol.run import RunSpec
from protocol.sections import LengthBudget

_TARGET = "intellect-node length target v1"


def highest_capacity(run: RunSpec) -> int:
    """The largest capacity class of a run; 0 where there are no budgets."""
    return max(len(run.length_budget.targets) - 1, 0)


def draw_targets(run: RunSpec, policy_root: bytes, node: Address, index: int, capacity: int) -> tuple[int, ...]:
    """One target per group of a file, from the first `capacity` + 1; empty where there are no budgets.

    Raises ValueError for a capacity class that the run does not have.
    """
    if not 0 <= capacity <= highest_capacity(run):
        raise ValueError(f"capacity class {capacity} of {highest_capacity(run)}")
    targets = run.length_budget.targets[: capacity + 1]
    if not targets:
        return ()
    place = policy_root + address_bytes(node) + index.to_bytes(8, "little")
    stream = blake3(place, derive_key_context=_TARGET).digest(8 * run.rollout.prompts_per_file)
    words = (int.from_bytes(stream[at : at + 8], "little") for at in range(0, len(stream), 8))
    return tuple(targets[word % len(targets)] for word in words)


def told(budget: LengthBudget, prompt: str, target: int) -> str:
    """The prompt with the budget's text."""
    text = budget.text.replace("{target}", str(target))
    return f"{text} {prompt}" if budget.place == "before" else f"{prompt} {text}"


def target_in_evaluation(run: RunSpec, number: int) -> int | None:
    """Of held-back problem `number`: the targets in turns, so that it looks as in training; None without budgets."""
    targets = run.length_budget.targets
    return targets[number % len(targets)] if targets else None


def output_limit(run: RunSpec, target: int | None) -> int:
    """Most output tokens of an answer with this target."""
    most = run.rollout.max_output_tokens
    if target is None or not run.length_budget.cut:
        return most
    return max(2, min(most, math.ceil(run.length_budget.cut * target)))


def limits(run: RunSpec, targets: tuple[int, ...]) -> list[int]:
    """Most output tokens of each group of a file."""
    count = run.rollout.prompts_per_file
    return [output_limit(run, target) for target in targets] or [run.rollout.max_output_tokens] * count


def shaped(budget: LengthBudget, task: float, length: int, target: int) -> float:
    """The reward of an answer of `length` tokens whose task reward is `task`."""
    match budget.mode:
        case "exact":
            return task - budget.alpha * abs(length - target)
        case "max":
            return task * min(max(budget.alpha * (target - length) + 0.5, 0.0), 1.0)
        case "clip":
            return task if length <= target else 0.0


def task_reward(budget: LengthBudget, reward: float, length: int, target: int | None) -> float:
    """What `shaped` was given, as far as it can be told: exactly for "exact", whether it was positive otherwise."""
    if target is None:
        return reward
    if budget.mode == "exact":
        return round(reward + budget.alpha * abs(length - target), 6)
    return float(reward > 0)
