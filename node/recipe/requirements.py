"""Whether a machine is enough for a role of a run. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean

from node.errors import ConfigError
from node.hardware import Hardware
from node.units import GIB
from protocol.run import RunSpec


def reached_target(run: RunSpec, evaluations: Sequence[float]) -> bool:
    """evaluations: held-back rewards, oldest first."""
    target = run.recipe.target_reward
    several = 10  # evaluations whose mean reaches the goal
    recent = evaluations[-several:]
    return target is not None and len(recent) == several and fmean(recent) >= target


def spent(run: RunSpec, seconds: float, tokens: int) -> str | None:
    """Which limit of [budget] is reached, in words; None while none is."""
    budget = run.budget
    if budget.hours and seconds >= 3600 * budget.hours:
        return f"budget.hours = {budget.hours:g} is used up"
    if budget.tokens and tokens >= budget.tokens:
        return f"budget.tokens = {budget.tokens} is used up"
    return None


def hopeless(run: RunSpec, step: int, barren: int, most: float = math.inf) -> str | None:
    """Why a run is given up whose last `barren` batches had no signal, in words; None while it is not: after as many in
    a row as it has steps left. step: the newest policy; most: batches that can be made with one policy."""
    # Batches without signal that are looked at before a run is given up, however few steps it has left.
    if barren < min(max(run.recipe.steps - step, 10), most):
        return None
    return (
        f"no group of the last {barren} batches had a signal: all answers to a problem got the same reward; "
        "take easier or harder problems, larger groups, or another start model"
    )


def shortfalls(run: RunSpec, role: str, hardware: Hardware) -> list[str]:
    """What the machine lacks for `role`, one sentence each; empty if it is enough."""
    need = getattr(run.requirements, role)
    gpu = max((gpu.memory for gpu in hardware.gpus), default=0) / GIB
    found = (
        ("cores", need.cores, hardware.cores, "cores"),
        ("memory_gib", need.memory_gib, hardware.memory / GIB, "GiB of memory"),
        ("gpu_memory_gib", need.gpu_memory_gib, gpu, "GiB on its largest GPU"),
    )
    return [
        f"it has {has:.4g} {what}, the run asks for {wanted:g} (requirements.{role}.{name})"
        for name, wanted, has, what in found
        if has < wanted
    ]


def check_requirements(run: RunSpec, role: str, hardware: Hardware) -> None:
    """Raise ConfigError if this machine is less than the run asks of `role`."""
    lacking = shortfalls(run, role, hardware)
    if lacking:
        raise ConfigError(
            f"this machine is too small to be {role} in the run {run.name!r}",
            "; ".join(lacking),
            "use a larger machine, or join another pool: the limit is the run's owner's",
        )
