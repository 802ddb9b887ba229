"""Direction: the gradient that was applied, as a sum of the groups' own gradients, each of which counts once.

The auditor computes the gradient of every group by itself, in whatever arithmetic it has, and solves for the weights
a_j in g = sum a_j g_j. Clipping scales all alike, so c_j = a_j / median - 1: 0 for a group that was learnt from,
-1 for one that was left out. What no weights explain is another batch. Rounding is spread over all groups, and a group
left out is not: this convicts a trainer in bfloat16 from float32, where the length of the difference proves nothing.

The gradients are those of the dtype that the trainer states. Rounding decides, too, which tokens a loss clips. So in
bfloat16 the auditor computes each group's gradient as well with log-probabilities that are a little off on either side:
as far as it moves by that, it tells nothing. Where there are gradients in float32, too, they say what rounding does to
this step: in which directions, and how much of it no weights explain. What is left of the applied gradient says how
near the trainer's rounding was to the auditor's own.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from node.audit.findings import (
    BFLOAT16_LIMIT,
    DEVIATIONS,
    FEWEST_GROUPS,
    FLOAT32_LIMIT,
    FLOORS,
    SCALE_LIMITS,
    AuditFinding,
    Says,
)
from node.audit.identity import applied, noise
from node.training.state import F32, State
from protocol.recipe import Recipe

EDGE = 0.1
"""Nats by which log-probabilities in bfloat16 may be off: tokens so near to where a loss clips may be clipped or not.
More would take in all tokens under a clip of 0.2, and the test would tell nothing."""
MEASURED_EDGE = 0.02
"""Likewise, where gradients in float32 say what rounding does. Two ways to compute in bfloat16 were far nearer."""

Gradients = Iterable[tuple[int, Mapping[str, Tensor]]]


def check_direction(
    before: State,
    after: State,
    recipe: Recipe,
    gradients: Gradients,
    groups: int,
    *,
    float32: bool,
    beside: Sequence[Gradients] = (),
    edge: float = EDGE,
    measured: Gradients | None = None,
) -> AuditFinding:
    """before, after: as claimed; gradients: of each group, at `before`, in the trainer's dtype; groups: about how many;
    float32: whether that is its dtype; beside: the gradients where log-probabilities are `edge` off; measured: the
    gradients in float32, of a trainer in bfloat16."""
    if recipe.updates_per_step != 1 or after.updates != before.updates + 1:
        return _finding(Says.UNDECIDED, "the test needs exactly one update in the step", {})
    size = sum(values.size for values in before.tensors["weight"].values())
    # Numbers of the groups' gradients that are kept: of larger models every n-th coordinate of each tensor.
    stride = max(1, math.ceil(size * groups * (1 + bool(beside) + (measured is not None)) / (1 << 27)))
    labels, rows, total = _gathered(gradients, before, stride)
    if len(labels) < FEWEST_GROUPS:
        return _finding(Says.UNDECIDED, f"only {len(labels)} groups have a gradient, too few to compare", {})
    edges = _edges(labels, rows, (_gathered(one, before, stride)[:2] for one in beside), edge)
    whole = np.stack(rows).astype(np.float64)
    moves = None if measured is None else _aligned(labels, whole, *_gathered(measured, before, stride)[:2]) - whole
    target = np.concatenate([g.reshape(-1)[::stride] for _, g in applied(before, after, recipe)]).astype(np.float64)
    # 1e-6 as torch's clip_grad_norm_ has it: without it small gradients would seem scaled.
    clip, room = min(1.0, recipe.grad_clip / (total + 1e-6)), noise(before, after, recipe)
    return _judge(labels, whole, target, clip, room, edges, moves, float32=float32)


def _aligned(labels: Sequence[int], like: np.ndarray, names: Sequence[int], rows: Sequence[F32]) -> np.ndarray:
    """The rows of these labels, zeros where there is none."""
    there = dict(zip(names, rows, strict=True))
    return np.stack([there.get(label, np.zeros(like.shape[1])) for label in labels])


def _edges(
    labels: Sequence[int], rows: Sequence[F32], beside: Iterable[tuple[list[int], list[F32]]], edge: float
) -> np.ndarray:
    """float64[groups]: how far each group's gradient moves, in its own lengths, by more than what a ratio that is
    `edge` off scales."""
    found = np.zeros(len(rows))
    for names, moved in beside:
        there = dict(zip(names, moved, strict=True))
        for place, (label, row) in enumerate(zip(labels, rows, strict=True)):
            other, size = there.get(label, np.zeros_like(row)).astype(np.float64), float(np.vdot(row, row))
            scale = min(max(float(np.vdot(other, row)) / size, math.exp(-2 * edge)), math.exp(2 * edge))
            found[place] = max(found[place], float(np.linalg.norm(other - scale * row)) / math.sqrt(size))
    return found


def _judge(
    labels: list[int],
    rows: np.ndarray,
    target: np.ndarray,
    clip: float,
    room: float,
    edges: np.ndarray,
    moves: np.ndarray | None,
    *,
    float32: bool,
) -> AuditFinding:
    """rows: float64[groups, coordinates]; target: what was applied there; clip: the scale of an own clipped one; room:
    how far rounding alone may have moved the target, relative to it; edges: how far each row, likewise; moves: of each
    row to what it is in float32."""
    weights, errors, left, dual = _fitted(rows, target, room)
    sizes = np.square(rows).sum(1)
    # Groups that move by more have no say in what a group's weight is.
    middle, error = _middle(weights, errors, np.where(edges > 0.05, 1e-12 * sizes, sizes))
    if not (math.isfinite(left) and middle > 0):
        return _finding(Says.BROKEN, "the applied gradient is not that of this batch", {"unexplained": left})
    # One part in so many of what that moves is a deviation: six of them are twice as far as it can.
    c, deviations = weights / middle - 1, np.maximum(errors / middle, FLOORS[not float32]) + edges / 3.0
    apart, limit = 0.0, FLOAT32_LIMIT if float32 else BFLOAT16_LIMIT
    if moves is not None:
        spans = moves @ dual.T
        apart = middle * float(np.linalg.norm(moves - spans @ rows)) / max(float(np.linalg.norm(target)), 1e-30)
        # So many times what is left, compared with what float32 leaves, is how near the trainer's rounding was.
        nearer = min(1.0, 3.0 * (left + room) / max(apart, 1e-30))
        deviations = np.maximum(deviations, nearer * np.linalg.norm(spans, axis=0))
        # no other way to round is further from the auditor's own than float32 is
        limit = min(limit, SCALE_LIMITS[1] + apart)
    moved = math.sqrt(float(np.vdot(edges, edges * sizes))) * middle / max(float(np.linalg.norm(target)), 1e-30)
    # A group tells something where six of its deviations are less than half of what it counts.
    telling = deviations < 1 / 12
    if np.count_nonzero(telling) >= FEWEST_GROUPS:
        # 1.4826 times the median deviation is the standard deviation of normal noise, and a few cheated groups cannot
        # widen it.
        spread = 1.4826 * float(np.median(np.abs(c[telling] - np.median(c[telling]))))
        deviations = np.maximum(deviations, spread)
    worst, scale = int(np.argmax(np.abs(c) / deviations)), middle / clip - 1
    figures = {
        "groups": float(len(labels)),
        "telling": float(np.count_nonzero(telling)),
        "unexplained": left,
        "limit": limit + room + moved,
        "scale": scale,
        "coefficient": float(c[worst]),
        "deviation": float(deviations[worst]),
    }
    if left > limit + room + moved:
        # Rounding alone may have done this: it moves the step further than what is left.
        if left < apart:
            text = f"{left:.2f} of the gradient is unexplained; float32 is {apart:.2f} from bfloat16 in this step"
            return _finding(Says.UNDECIDED, text, figures)
        return _finding(Says.BROKEN, "a part of the applied gradient is of none of this batch's groups", figures)
    out = [place for place in np.argsort(c) if abs(c[place]) > DEVIATIONS * deviations[place]]
    if out:
        named = ", ".join(f"{labels[place]} by {c[place]:+.2f}" for place in out[:5])
        text = f"{len(out)} of {len(labels)} groups count otherwise than the rest: {named} (-1: left out)"
        return _finding(Says.BROKEN, text, figures)
    if abs(scale) > SCALE_LIMITS[not float32] + room + moved + DEVIATIONS * error / middle:
        return _finding(Says.BROKEN, f"the gradient was scaled by {1 + scale:.4g}", figures)
    return _finding(Says.HOLDS, f"{int(figures['telling'])} of {len(labels)} groups are large enough to tell", figures)


def _fitted(rows: np.ndarray, target: np.ndarray, room: float) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """(weight of each group, its standard error, share of the target that no weights explain, the dual rows).

    Six errors are as far as noise of the unexplained length can move a weight at the worst (Cauchy-Schwarz): a group
    whose gradient is a millionth of the whole tells nothing.
    """
    norms = np.linalg.norm(rows, axis=1)
    # On unit vectors, or large groups would drown the small ones in the inverse.
    units = rows / norms[:, None]
    # Keeps the inverse finite where two groups have the same gradient; far below what rounding does.
    inverse = np.linalg.inv(units @ units.T + 1e-10 * np.eye(len(rows)))
    dual = inverse @ units / norms[:, None]
    weights = dual @ target
    size = max(float(np.linalg.norm(target)), 1e-30)
    left = float(np.linalg.norm(target - weights @ rows)) / size
    return weights, (left + room) * size * np.sqrt(np.diag(inverse)) / norms / DEVIATIONS, left, dual


def _middle(weights: np.ndarray, errors: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """The weight that most of the gradient has, and its error: a median in which large groups count more."""
    order = np.argsort(weights)
    place = order[int(np.searchsorted(np.cumsum(sizes[order]), sizes.sum() / 2))]
    return float(weights[place]), float(errors[place])


def _finding(says: Says, text: str, figures: dict[str, float]) -> AuditFinding:
    return AuditFinding("direction", says, text, figures)


def _gathered(
    gradients: Iterable[tuple[int, Mapping[str, Tensor]]], before: State, stride: int
) -> tuple[list[int], list[F32], float]:
    """(groups, a sample of the gradient of each, the norm of their whole sum)."""
    labels, rows = list[int](), list[F32]()
    whole = {name: np.zeros(values.shape, np.float32) for name, values in before.tensors["weight"].items()}
    for label, parts in gradients:
        for name, tensor in parts.items():
            # Of all coordinates, unlike the rows: the trainer clipped by the norm of the whole.
            whole[name] += tensor.float().cpu().numpy()
        row = [
            parts[name].float().cpu().numpy().reshape(-1)[::stride]
            if name in parts
            else values.reshape(-1)[::stride] * 0
            for name, values in before.tensors["weight"].items()
        ]
        if any(map(np.any, row)):
            labels.append(label)
            rows.append(np.concatenate(row))
    return labels, rows, math.sqrt(sum(float(np.vdot(part, part)) for part in whole.values()))
