"""The curves of a training report: which numbers of metrics.jsonl stand in which picture. Draws with matplotlib."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.demo.plot import running_mean
from node.state.files import whole_file

StepRecords = Sequence[dict[str, Any]]
COLOURS = ("#08519c", "#e6550d", "#31a354", "#756bb1", "#636363", "#c51b8a", "#8c6d31", "#17becf")
FADED = 0.35
AGES = 9
LEARNER = (
    "wait", "load", "pack", "forward_backward", "optimizer", "inner", "exchange", "apply", "evaluate", "step",
    "publish", "checkpoint",
)  # fmt: skip
"""Parts of the learner's step that add up; "step" stands for those before it where they are not told apart."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One number of the record, or all of a table of them. smooth: also its mean over ten steps; error: the number that
    is its standard error, drawn as a band."""

    name: str
    label: str
    smooth: bool = False
    table: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. kind: lines, or stacked shares of a table."""

    name: str
    title: str
    unit: str
    curves: tuple[Curve, ...]
    kind: str = "lines"


PANELS = (
    Panel(
        "loss",
        "Loss",
        "nats per token",
        (Curve("loss", "training"), Curve("eval_loss", "held-back text"), Curve("eval_loss_by_data", "", table=True)),
    ),
    Panel("perplexity", "Perplexity on held-back text", "", (Curve("perplexity", ""),)),
    Panel("exchange", "What a peer sends a round", "bits per parameter", (Curve("bits_per_parameter", ""),)),
    Panel(
        "reward",
        "Reward",
        "mean reward",
        (
            Curve("reward_mean", "rollouts", smooth=True),
            Curve("eval_reward", "held-back problems", smooth=True, error="eval_error"),
        ),
    ),
    Panel(
        "environments",
        "Reward by environment",
        "mean reward",
        (
            Curve("reward_by_environment", "", table=True),
            Curve("eval_reward_by_environment", "held-back", table=True),
        ),
    ),
    Panel(
        "solved",
        "Solved, and ended by themselves",
        "share of rollouts",
        (Curve("pass_rate", "solved", smooth=True), Curve("finished_share", "ended before the limit")),
    ),
    Panel(
        "length",
        "Length",
        "output tokens",
        (
            Curve("length_mean", "mean"),
            Curve("length_max", "longest"),
            Curve("length_error", "distance from the target"),
        ),
    ),
    Panel("entropy", "Entropy", "nats per token", (Curve("entropy", "policy"),)),
    Panel(
        "mismatch",
        "Divergences",
        "nats per token",
        (Curve("mismatch_kl", "sampler and trainer"), Curve("kl", "policy and start model")),
    ),
    Panel(
        "clipped",
        "Tokens without their full gradient",
        "share of tokens",
        (Curve("clip_share", "clipped"), Curve("mask_share", "masked")),
    ),
    Panel("gradient", "Gradient before clipping", "norm", (Curve("grad_norm", "mean of the step", smooth=True),)),
    Panel("rate", "Learning rate", "", (Curve("learning_rate", ""),)),
    Panel(
        "signal",
        "Groups",
        "problems per step",
        (
            Curve("groups_seen", "looked at"),
            Curve("groups_flat", "with equal rewards"),
            Curve("groups_filtered", "left out by the filter"),
        ),
    ),
    Panel("staleness", "Age of what was learnt from", "share of rollouts", (Curve("staleness", "age"),), "shares"),
    Panel("speed", "Speed of the learner", "tokens per second", (Curve("tokens_per_second", "", smooth=True),)),
    Panel("mfu", "Model FLOPs utilisation", "share of the device's peak", (Curve("mfu", ""),)),
    Panel("time", "Where the learner's time goes", "seconds per step", (Curve("seconds", ""),), "seconds"),
    Panel(
        "engine",
        "What a batch costs the engine",
        "seconds per step",
        (Curve("seconds_generate", "sampling"), Curve("seconds_score", "checking and scoring")),
    ),
    Panel(
        "files",
        "From policy to batch, by the trainer's clock",
        "seconds, mean of a batch's files",
        (Curve("file_seconds", "", table=True),),
    ),
)


def draw_panels(runs: Sequence[tuple[str, StepRecords]], directory: Path) -> list[tuple[Panel, Path]]:
    """A PNG for every panel that has numbers, of one run or of several laid over each other."""
    os.environ.setdefault("MPLCONFIGDIR", str(directory / ".matplotlib"))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn: list[tuple[Panel, Path]] = []
    for panel in PANELS:
        figure, axes = pyplot.subplots(figsize=(7, 3.6), dpi=130)
        try:
            if not _draw(axes, panel, runs):
                continue
            axes.set(xlabel="step", ylabel=panel.unit, title=panel.title)
            axes.grid(alpha=0.25)
            handles, labels = axes.get_legend_handles_labels()
            if len(labels) > 1 or (labels and len(runs) > 1):
                axes.legend(handles[:16], labels[:16], frameon=False, fontsize=8)
            figure.tight_layout()
            path = directory / f"curve-{panel.name}.png"
            with whole_file(path) as file:
                figure.savefig(file, format="png", metadata={"Software": None})
            drawn.append((panel, path))
        finally:
            pyplot.close(figure)
    return drawn


def _draw(axes: Any, panel: Panel, runs: Sequence[tuple[str, StepRecords]]) -> bool:
    """Whether there was anything to draw."""
    if panel.kind != "lines":
        return _stack(axes, panel, runs[0][1]) if len(runs) == 1 else False
    some = False
    for number, (name, records) in enumerate(runs):
        lines = [line for curve in panel.curves for line in _lines(curve, records)]
        for place, (label, points, smooth) in enumerate(lines):
            own = COLOURS[(number if len(runs) > 1 else place) % len(COLOURS)]
            style = "-" if len(runs) == 1 or place == 0 else ("--", ":", "-.")[(place - 1) % 3]
            text = " ".join(filter(None, [name if len(runs) > 1 else "", label]))
            _line(axes, points, own, style, text, smooth=smooth)
            some = True
        for place, curve in enumerate(panel.curves):
            _band(axes, curve, records, COLOURS[(number if len(runs) > 1 else place) % len(COLOURS)])
    for curve in panel.curves:
        if curve.error and len(runs) > 1:
            _mean_of_runs(axes, curve, runs)
    return some


def _band(axes: Any, curve: Curve, records: StepRecords, colour: str) -> None:
    """One standard error to either side of what is drawn thick: what lies within is noise."""
    errors = dict(points_of(records, curve.error)) if curve.error else {}
    points = [(step, value, errors[step]) for step, value in points_of(records, curve.name) if step in errors]
    if len(points) < 2:
        return
    window = 10 if curve.smooth and len(points) >= 20 else 1
    centre = running_mean([(step, value) for step, value, _ in points], window)
    squares = running_mean([(step, error * error) for step, _, error in points], window)
    several = [min(i + 1, window) for i in range(len(points))]
    half = [math.sqrt(square / count) for (_, square), count in zip(squares, several, strict=True)]
    low = [value - one for (_, value), one in zip(centre, half, strict=True)]
    high = [value + one for (_, value), one in zip(centre, half, strict=True)]
    axes.fill_between([step for step, _ in centre], low, high, color=colour, alpha=0.18, linewidth=0)


def _mean_of_runs(axes: Any, curve: Curve, runs: Sequence[tuple[str, StepRecords]]) -> None:
    """Over the steps that all runs have: of several seeds the mean tells more than any."""
    each = [dict(points_of(records, curve.name)) for _, records in runs]
    common = sorted(set.intersection(*(set(points) for points in each)))
    if len(common) < 2:
        return
    values = [(step, sum(points[step] for points in each) / len(each)) for step in common]
    mean = running_mean(values, 10) if curve.smooth and len(values) >= 20 else values
    text = f"mean of {len(each)} runs, {curve.label}"
    axes.plot([x for x, _ in mean], [y for _, y in mean], color="black", linewidth=2.2, label=text)


def _line(axes: Any, points: list[tuple[float, float]], colour: str, style: str, label: str, *, smooth: bool) -> None:
    steps, values = [x for x, _ in points], [y for _, y in points]
    if not smooth or len(points) < 20:
        marker = "." if len(points) < 20 else ""  # few points: what lies between them was not measured
        axes.plot(steps, values, color=colour, linestyle=style, linewidth=1.4, marker=marker, label=label or None)
        return
    axes.plot(steps, values, color=colour, linestyle=style, linewidth=0.8, alpha=FADED)
    mean = running_mean(points, 10)
    axes.plot([x for x, _ in mean], [y for _, y in mean], color=colour, linestyle=style, linewidth=1.8, label=label)


def _lines(curve: Curve, records: StepRecords) -> list[tuple[str, list[tuple[float, float]], bool]]:
    """(label, points, whether to smooth): one line, or one per name of a table."""
    if not curve.table:
        points = points_of(records, curve.name)
        return [(curve.label, points, curve.smooth)] if points else []
    names = sorted({name for record in records for name in (record.get(curve.name) or {})})
    return [
        (
            " ".join(filter(None, [name, curve.label])),
            [(float(r["step"]), float(r[curve.name][name])) for r in records if name in (r.get(curve.name) or {})],
            False,
        )
        for name in names
    ]


def _stack(axes: Any, panel: Panel, records: StepRecords) -> bool:
    """Areas on top of each other: shares that sum to 1, or seconds."""
    key = panel.curves[0].name
    rows = [record for record in records if isinstance(record.get(key), dict) and record[key]]
    if not rows:
        return False
    found = {name for row in rows for name in row[key]}
    if panel.kind == "seconds":
        parts = [name for name in LEARNER if name in found]
        names = [name for name in parts if name != "step" or found.isdisjoint(("forward_backward", "inner"))]
    else:
        names = sorted(found, key=lambda n: (len(n), n))[:AGES]
    totals = [sum(row[key].values()) if panel.kind == "shares" else 1.0 for row in rows]
    layers = [
        [row[key].get(name, 0.0) / (total or 1.0) for row, total in zip(rows, totals, strict=True)] for name in names
    ]
    labels = [f"{panel.curves[0].label} {name}".strip() for name in names]
    colours = [COLOURS[i % len(COLOURS)] for i in range(len(names))]
    axes.stackplot([row["step"] for row in rows], layers, labels=labels, colors=colours, alpha=0.85)
    return True


def points_of(records: StepRecords, name: str) -> list[tuple[float, float]]:
    """(step, value) where the record has that number; seconds_X is X in its table of seconds."""
    found = [(record["step"], _value(record, name)) for record in records]
    return [(float(step), float(value)) for step, value in found if value is not None]


def _value(record: dict[str, Any], name: str) -> float | None:
    table, _, part = name.partition("_")
    value = record[table].get(part) if table == "seconds" and isinstance(record.get(table), dict) else record.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
