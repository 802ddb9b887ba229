"""`intellect-node report`: the curves of one training, or of several over each other, as PNGs and one HTML file."""

import base64
import html
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from cli import pretraining
from cli.demo.plot import running_mean
from cli.errors import RUN, USAGE, CommandError
from cli.output import AsJson, clean, console, duration, print_json, rounded
from node.metrics.journal import ends_of, read_records
from node.state.files import whole_file, write_whole

ANSWERS_EXAMPLES = (
    "Examples:  intellect-node answers runs/my-run   |   intellect-node answers demo --step 0   |   "
    "intellect-node answers runs/my-run --step 20 --json"
)
DIRECTORIES = ("spool/eval", "nodes/trainer/spool/eval", "eval")
# What a trainer keeps of an evaluation is far less; a file of another origin is not read whole.
MAX_BYTES = 1 << 20


def answers(
    run: Annotated[Path, typer.Argument(help="A directory of `train` or `demo`, or a trainer's --state-dir.")],
    step: Annotated[int | None, typer.Option(min=0, help="The policy's step. Default: the newest evaluated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show some answers of an evaluation: prompt, answer, reward, length in tokens, the length that was asked for."""
    steps = recorded(run)
    if not steps:
        why = "no evaluation's answers were found there"
        raise CommandError(f"{run} has no answers", why, "name a directory of `train` or `demo`", RUN)
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        near = ", ".join(str(one) for one in sorted(sorted(steps, key=lambda one: abs(one - chosen))[:5]))
        raise CommandError(f"step {chosen} was not evaluated", f"the nearest that were: {near}", "choose one", RUN)
    answers = read(steps[chosen])
    if as_json:
        print_json({"step": chosen, "answers": answers, "steps": sorted(steps)})
        return
    out = console()
    out.print(f"step {chosen}, {len(answers)} answers (steps {min(steps)} to {max(steps)} are on record)")
    most_line = 2000
    for one in answers:
        out.print()
        for name in ("prompt", "answer"):
            lines = [clean(line, most_line) for line in str(one.get(name)).splitlines()]
            out.print("\n  ".join([f"{name}: {lines[0] if lines else ''}", *lines[1:]]), markup=False, soft_wrap=True)
        out.print(numbers(one), markup=False)


def recorded(run: Path) -> dict[int, Path]:
    """The files of a run's answers, by step."""
    found: dict[int, Path] = {}
    for place in DIRECTORIES:
        for path in (run / place).glob("answers-*.json"):
            number = path.stem.removeprefix("answers-")
            if number.isdecimal():
                found.setdefault(int(number), path)
    return found


def read(path: Path) -> list[dict[str, Any]]:
    """Raises CommandError for a file that holds no answers."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=list[dict[str, Any]])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}", str(error)[:300], "it was damaged: remove it", RUN) from error


def numbers(answer: dict[str, Any]) -> str:
    """'reward 1, 4 tokens of 8 asked for, cut off'"""
    parts = [f"reward {answer.get('reward', 0):g}", f"{answer.get('length')} tokens"]
    if answer.get("target") is not None:
        parts[-1] += f" of {answer['target']} asked for"
    return ", ".join([*parts, *([] if answer.get("finished") else ["cut off"])])


StepRecords = Sequence[dict[str, Any]]
COLOURS = ("#08519c", "#e6550d", "#31a354", "#756bb1", "#636363", "#c51b8a", "#8c6d31", "#17becf")
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
        (Curve("reward_by_environment", "", table=True), Curve("eval_reward_by_environment", "held-back", table=True)),
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
            Curve("eval_length_error", "held-back, distance from the target"),
        ),
    ),
    Panel(
        "targets",
        "Length by target, held-back problems",
        "output tokens",
        (Curve("eval_length_by_target", "asked for", table=True),),
    ),
    Panel("entropy", "Entropy", "nats per token", (Curve("entropy", "policy"),)),
    Panel(
        "mismatch",
        "Divergences",
        "nats per token",
        (
            Curve("mismatch_kl", "sampler and trainer"),
            Curve("kl", "policy and start model"),
            Curve("teacher_kl", "policy and teacher"),
        ),
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
    # Its font cache goes where we write anyway; the home of a service may be read-only.
    os.environ.setdefault("MPLCONFIGDIR", str(directory / ".matplotlib"))
    import matplotlib

    # Without a display: a server has none, and on a desktop no window should open.
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
                # Without the program's version: the same records draw the same bytes.
                figure.savefig(file, format="png", metadata={"Software": None})
            drawn.append((panel, path))
        finally:
            # pyplot keeps every figure until it is told.
            pyplot.close(figure)
    return drawn


def _draw(axes: Any, panel: Panel, runs: Sequence[tuple[str, StepRecords]]) -> bool:
    """Whether there was anything to draw."""
    if panel.kind != "lines":
        # Areas of several runs would hide each other.
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
    # The error of a mean of n independent evaluations is the root of their mean square over n.
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
    axes.plot(steps, values, color=colour, linestyle=style, linewidth=0.8, alpha=0.35)
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
        names = sorted(found, key=lambda n: (len(n), n))[:9]
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


EXAMPLES = (
    "Examples:  intellect-node report runs/my-run   |   intellect-node report demo   |   "
    "intellect-node report runs/dppo runs/intellect2 --out compared"
)
PLACES = ("metrics.jsonl", "nodes/trainer/metrics.jsonl", "report/metrics.jsonl")
STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1120px;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;border-bottom:1px solid #ddd;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}figure{display:inline-block;margin:.4rem;width:calc(50% - 1rem)}
img{width:100%}.alarm{color:#b30000}@media(max-width:800px){figure{width:100%}}"""


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="Directories of `train` or `demo`, a trainer's --state-dir, or metrics.jsonl.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write. Default: RUN/report; several runs: ./report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as one JSON object.")] = False,
) -> None:
    """Draw what a trainer has put on record: reward, length, entropy, divergences, staleness, time.

    Works while the training runs. Several runs are drawn over each other. Writes report.html, which needs no other
    file, and a curve-*.png for each picture.
    """
    most_runs = 8  # runs in one table
    if len(runs) > most_runs:
        what, why = f"{len(runs)} runs do not fit into one picture", f"at most {most_runs} can be told apart"
        raise CommandError(what, why, "name fewer", USAGE)
    target = out or (_default_target(runs[0]) if len(runs) == 1 else Path("report"))
    summaries = write_report(runs, target)
    if as_json:
        print_json({"report": str(target / "report.html"), "runs": summaries})
        return
    for summary in summaries:
        reward = summary["reward_last"]
        last = f", reward {reward:.3f} (mean of the last {summary['reward_window']})" if reward is not None else ""
        loss = summary.get("loss_last")
        last = f", loss {loss:.3f} on held-back text" if loss is not None else last
        console().print(f"{summary['name']}: {summary['steps']} steps{last}")
    console().print(f"report: {target / 'report.html'}", soft_wrap=True)


def write_report(runs: Sequence[Path], target: Path) -> list[dict[str, Any]]:
    """Fill `target`; returns one summary per run. Raises CommandError where nothing is on record or to draw with."""
    # First: without matplotlib no directory is made.
    _check_parts()
    named = [(name, load(path)) for name, path in zip(_names(runs), runs, strict=True)]
    target.mkdir(parents=True, exist_ok=True)
    drawn = draw_panels(named, target)
    summaries = [summarise(name, records) for name, records in named]
    text = page(summaries, drawn, [(name, recorded(path)) for (name, _), path in zip(named, runs, strict=True)])
    write_whole(target / "report.html", text.encode())
    return summaries


def load(path: Path) -> StepRecords:
    """The records of a run. Raises CommandError where there are none."""
    file = find_metrics(path)
    records = list(read_records(file)) if file else []
    if not records:
        raise CommandError(
            f"there is nothing on record in {path}",
            "no metrics.jsonl with steps was found there",
            "name a directory of `intellect-node train` or `demo`, or a trainer's state directory",
            RUN,
        )
    return records


def find_metrics(path: Path) -> Path | None:
    """The metrics.jsonl of what the user named."""
    if path.is_file():
        return path
    return next((path / place for place in PLACES if (path / place).is_file()), None)


def summarise(name: str, records: StepRecords) -> dict[str, Any]:
    """The numbers of the table. Rewards: means of the first and last `reward_window` evaluations, or steps where
    nothing was evaluated."""
    values = [y for _, y in points_of(records, "eval_reward") or points_of(records, "reward_mean")]
    last, ends = records[-1], ends_of(values)
    learnt = pretraining.summarise(records) if "outer_root" in last and "replicas" not in last else {}
    return {
        "name": name,
        "steps": int(last["step"]),
        "seconds": last.get("elapsed"),
        "reward_first": rounded(ends.first),
        "reward_last": rounded(ends.last),
        "reward_window": ends.window,
        "reward_best": max(values, default=None),
        "entropy": last.get("entropy"),
        "length_mean": last.get("length_mean"),
        "tokens": int(sum(y for _, y in points_of(records, "output_tokens"))),
        **learnt,
        "alarms": [
            {"step": record["step"], "name": str(alarm.get("name")), "text": str(alarm.get("text"))}
            for record in records
            for alarm in record.get("alarms") or []
            if isinstance(alarm, dict)
        ],
    }


def page(
    summaries: Sequence[dict[str, Any]],
    drawn: Sequence[tuple[Panel, Path]],
    answers: Sequence[tuple[str, dict[int, Path]]] = (),
) -> str:
    """One HTML file with the pictures in it; nothing is loaded from anywhere. answers: files of each run, by step."""
    title = " and ".join(summary["name"] for summary in summaries)
    figures = "\n".join(
        f'<figure><img alt="{html.escape(panel.title)}" '
        f'src="data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"></figure>'
        for panel, path in drawn
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{html.escape(title)}</h1>\n{_table(summaries)}\n{_alarms(summaries)}\n{figures}\n"
        f"{''.join(_answers(name, steps) for name, steps in answers if steps)}\n</body></html>\n"
    )


def _answers(name: str, steps: dict[int, Path]) -> str:
    """Before and after: some answers of the first and of the last evaluation."""
    text = f"<h2>Answers: {html.escape(name)}</h2>"
    for step in dict.fromkeys((min(steps), max(steps))):
        rows = "".join(
            f"<tr><td>{html.escape(str(one.get('prompt')))}</td><td>{html.escape(str(one.get('answer')))}</td>"
            f'<td class="n">{html.escape(numbers(one))}</td></tr>'
            for one in read(steps[step])
        )
        text += f"<h3>step {step}</h3><table><tr><th>prompt</th><th>answer</th><th></th></tr>{rows}</table>"
    return text


def _table(summaries: Sequence[dict[str, Any]]) -> str:
    """Runs on rollouts and runs on text have a table each."""
    kinds = [[s for s in summaries if ("loss_last" in s) == text] for text in (False, True)]
    return "".join(_table_of(some, *how) for some, how in zip(kinds, (_OF_ROLLOUTS, _OF_TEXT), strict=True) if some)


_OF_ROLLOUTS = (
    "steps",
    {
        "reward, first": "reward_first",
        "last": "reward_last",
        "mean of": "reward_window",
        "best": "reward_best",
        "entropy": "entropy",
        "length": "length_mean",
    },
)
_OF_TEXT = (
    "rounds",
    {
        "loss, first": "loss_first",
        "last": "loss_last",
        "best": "loss_best",
        "perplexity": "perplexity",
        "bits/parameter": "bits_per_parameter",
    },
)
"""What a step is called, and the columns: heading -> number of a summary."""


def _table_of(summaries: Sequence[dict[str, Any]], step: str, columns: Mapping[str, str]) -> str:
    """A table whose first column is text, and whose others are numbers."""
    heads = "".join(f"<th>{head}</th>" for head in ("run", step, "time", *columns, "tokens"))
    text = f"<tr>{heads}</tr>"
    for s in summaries:
        time = duration(s["seconds"]) if s["seconds"] else "-"
        cells = [str(s["steps"]), time, *(_number(s[key]) for key in columns.values()), f"{s['tokens']:,}"]
        numbers = "".join(f'<td class="n">{html.escape(cell)}</td>' for cell in cells)
        text += f"<tr><td>{html.escape(s['name'])}</td>{numbers}</tr>"
    return f"<table>{text}</table>"


def _alarms(summaries: Sequence[dict[str, Any]]) -> str:
    lines = [
        f'<li class="alarm">{html.escape(s["name"])}, step {alarm["step"]}: <b>{html.escape(alarm["name"])}</b>: '
        f"{html.escape(alarm['text'])}</li>"
        for s in summaries
        for alarm in s["alarms"]
    ]
    return f"<h2>Alarms</h2><ul>{''.join(lines)}</ul>" if lines else "<p>No alarm rang.</p>"


def _number(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.3f}" if isinstance(value, float) else "-"


def _names(runs: Sequence[Path]) -> list[str]:
    """The directories' names, with their parents' where that is needed to tell them apart."""
    resolved = [run.resolve() for run in runs]
    places = [run.parent if run.is_file() else run for run in resolved]
    short = [place.name for place in places]
    if len(set(short)) == len(short):
        return short
    return [f"{place.parent.name}/{place.name}" for place in places]


def _default_target(run: Path) -> Path:
    return (run.parent if run.is_file() else run) / "report"


def _check_parts() -> None:
    if find_spec("matplotlib") is None:
        raise CommandError(
            "curves cannot be drawn here",
            "matplotlib is not installed",
            "pip install 'intellect-node[train]', or read metrics.jsonl",
            RUN,
        )
