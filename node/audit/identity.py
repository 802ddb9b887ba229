"""Identity: two consecutive states must obey AdamW's own equations with the run's numbers.

Element-wise arithmetic, the same on every machine; no model is run. The gradient that was applied is solved for from
the first moments: g = (m' - b1 m) / (1 - b1). The second moment follows from it, and the weights from both.
"""

import math
from collections.abc import Iterator

import numpy as np

from node.audit.findings import IDENTITY_LIMIT, AuditFinding, Says
from node.training.state import F32, State
from protocol.recipe import Recipe, decays

ROUNDING = 2.0**-23
"""Of one float32 operation, twice over. Where an update is smaller than the rounding of the weights, as with a gradient
that vanishes, nothing follows from what is left: an honest step was 1.5e-2 off before this was allowed for."""


def check_identity(before: State, after: State, recipe: Recipe, learning_rate: float) -> AuditFinding:
    """before, after: of two consecutive steps, as claimed."""
    if recipe.updates_per_step != 1:
        text = f"the run makes {recipe.updates_per_step} updates a step; the test needs one"
        return _finding(Says.UNDECIDED, text, {})
    # A step in which nothing has a gradient makes no update, honestly.
    if after.updates == before.updates:
        return _unchanged(before, after)
    if after.updates != before.updates + 1:
        return _finding(Says.BROKEN, f"AdamW made {after.updates - before.updates} updates instead of one", {})
    second, weights = _residuals(before, after, recipe, learning_rate)
    norm = applied_norm(before, after, recipe)
    figures = {"second_moment": second, "weights": weights, "gradient_norm": norm}
    # Asked first: NaN is above no limit, so it would pass all that follow.
    if not all(map(math.isfinite, figures.values())):
        return _finding(Says.BROKEN, "a state holds numbers that are not finite", {})
    clip_room = 1e-3
    if norm > recipe.grad_clip * (1 + clip_room):
        return _finding(
            Says.BROKEN, f"the applied gradient has norm {norm:.4g}, clipped is at {recipe.grad_clip:g}", figures
        )
    if max(second, weights) > IDENTITY_LIMIT:
        return _finding(
            Says.BROKEN, "the two states do not follow from each other by AdamW with the run's numbers", figures
        )
    return _finding(Says.HOLDS, "AdamW's equations hold", figures)


def applied(before: State, after: State, recipe: Recipe) -> Iterator[tuple[str, F32]]:
    """(parameter, the clipped gradient that was applied to it)."""
    for name, new in after.tensors["exp_avg"].items():
        old = before.tensors["exp_avg"][name].astype(np.float64)
        yield name, ((new - recipe.beta1 * old) / (1 - recipe.beta1)).astype(np.float32)


def applied_norm(before: State, after: State, recipe: Recipe) -> float:
    return math.sqrt(sum(float(np.vdot(g, g)) for _, g in applied(before, after, recipe)))


def noise(before: State, after: State, recipe: Recipe) -> float:
    """How far the gradient that is solved for may be off, relative to it: it is a difference of two moments, which are
    rounded, and may be much smaller than they are."""
    moments = math.sqrt(sum(_square(m, np.zeros(())) for s in (before, after) for m in s.tensors["exp_avg"].values()))
    return ROUNDING / (1 - recipe.beta1) * moments / max(applied_norm(before, after, recipe), 1e-30)


def distance(one: State, other: State, before: State) -> float:
    """How far apart two results of one step are, in lengths of the update: float32 masters."""
    apart = update = 0.0
    for name, weights in one.tensors["weight"].items():
        theirs, started = other.tensors["weight"][name], before.tensors["weight"][name]
        apart += _square(weights, theirs)
        update += _square(theirs, started)
    return math.sqrt(apart / update) if update else float(apart > 0)


def _residuals(before: State, after: State, recipe: Recipe, rate: float) -> tuple[float, float]:
    """(of the second moments relative to them, of the weights relative to the update)."""
    wrong_second = all_second = wrong_weights = all_weights = 0.0
    first, second = 1 - recipe.beta1**after.updates, math.sqrt(1 - recipe.beta2**after.updates)
    for name, g in applied(before, after, recipe):
        v0, v1 = (state.tensors["exp_avg_sq"][name].astype(np.float64) for state in (before, after))
        w0, w1 = (state.tensors["weight"][name].astype(np.float64) for state in (before, after))
        expected = recipe.beta2 * v0 + (1 - recipe.beta2) * np.square(g.astype(np.float64))
        wrong_second += _square(v1, expected)
        all_second += _square(v1, np.zeros(()))
        moved = rate / first * after.tensors["exp_avg"][name] / (np.sqrt(v1) / second + 1e-8)  # of torch's AdamW
        kept = 1 - rate * recipe.weight_decay * decays(w0.ndim)
        apart = np.abs(w1 - w0 * kept + moved)
        wrong_weights += _square(np.maximum(apart - ROUNDING * np.abs(w0), 0), np.zeros(()))
        all_weights += _square(w1, w0)
    return _share(wrong_second, all_second), _share(wrong_weights, all_weights)


def _unchanged(before: State, after: State) -> AuditFinding:
    same = all(
        np.array_equal(values, after.tensors[part][name])
        for part, tensors in before.tensors.items()
        for name, values in tensors.items()
    )
    text = "no update was made, and nothing changed" if same else "no update was counted, but the state changed"
    return _finding(Says.HOLDS if same else Says.BROKEN, text, {})


def _share(wrong: float, of: float) -> float:
    return math.sqrt(wrong / of) if of else float(wrong > 0)


def _square(one: np.ndarray, other: np.ndarray) -> float:
    apart = np.subtract(one, other, dtype=np.float64)
    return float(np.vdot(apart, apart))


def _finding(says: Says, text: str, figures: dict[str, float]) -> AuditFinding:
    return AuditFinding("identity", says, text, figures)
