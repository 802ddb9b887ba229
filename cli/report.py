"""`intellect-node report`: the curves of one training, or of several over each other, as PNGs and one HTML file."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.curves import Panel, StepRecords, draw_panels, points_of
from cli.errors import RUN, USAGE, CommandError
from cli.output import duration
from node.metrics.ends import ends_of
from node.state.files import write_whole

EXAMPLES = (
    "Examples:  intellect-node report runs/my-run   |   intellect-node report demo   |   "
    "intellect-node report runs/dppo runs/intellect2 --out compared"
)
PLACES = ("metrics.jsonl", "nodes/trainer/metrics.jsonl", "report/metrics.jsonl")
MOST_RUNS = 8
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
    from cli.output import console, print_json

    if len(runs) > MOST_RUNS:
        raise CommandError(
            f"{len(runs)} runs do not fit into one picture",
            f"at most {MOST_RUNS} can be told apart",
            "name fewer",
            USAGE,
        )
    target = out or (_default_target(runs[0]) if len(runs) == 1 else Path("report"))
    summaries = write_report(runs, target)
    if as_json:
        print_json({"report": str(target / "report.html"), "runs": summaries})
        return
    for summary in summaries:
        reward = summary["reward_last"]
        last = f", reward {reward:.3f} (mean of the last {summary['reward_window']})" if reward is not None else ""
        console().print(f"{summary['name']}: {summary['steps']} steps{last}")
    console().print(f"report: {target / 'report.html'}", soft_wrap=True)


def write_report(runs: Sequence[Path], target: Path) -> list[dict[str, Any]]:
    """Fill `target`; returns one summary per run. Raises CommandError where nothing is on record or to draw with."""
    _check_parts()
    named = [(name, load(path)) for name, path in zip(_names(runs), runs, strict=True)]
    target.mkdir(parents=True, exist_ok=True)
    drawn = draw_panels(named, target)
    summaries = [summarise(name, records) for name, records in named]
    text = page(summaries, drawn)
    write_whole(target / "report.html", text.encode())
    return summaries


def load(path: Path) -> StepRecords:
    """The records of a run. Raises CommandError where there are none."""
    from node.metrics.journal import read_records

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
    return {
        "name": name,
        "steps": int(last["step"]),
        "seconds": last.get("elapsed"),
        "reward_first": _rounded(ends.first),
        "reward_last": _rounded(ends.last),
        "reward_window": ends.window,
        "reward_best": max(values, default=None),
        "entropy": last.get("entropy"),
        "length_mean": last.get("length_mean"),
        "tokens": int(sum(y for _, y in points_of(records, "output_tokens"))),
        "alarms": [
            {"step": record["step"], "name": str(alarm.get("name")), "text": str(alarm.get("text"))}
            for record in records
            for alarm in record.get("alarms") or []
            if isinstance(alarm, dict)
        ],
    }


def page(summaries: Sequence[dict[str, Any]], drawn: Sequence[tuple[Panel, Path]]) -> str:
    """One HTML file with the pictures in it; nothing is loaded from anywhere."""
    title = " and ".join(summary["name"] for summary in summaries)
    figures = "\n".join(
        f'<figure><img alt="{html.escape(panel.title)}" src="data:image/png;base64,{_encoded(path)}"></figure>'
        for panel, path in drawn
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{html.escape(title)}</h1>\n{_table(summaries)}\n{_alarms(summaries)}\n{figures}\n</body></html>\n"
    )


def _table(summaries: Sequence[dict[str, Any]]) -> str:
    head = ("run", "steps", "time", "reward, first", "last", "mean of", "best", "entropy", "length", "tokens")
    rows = "".join(
        "<tr>"
        + f"<td>{html.escape(s['name'])}</td>"
        + "".join(
            f'<td class="n">{html.escape(cell)}</td>'
            for cell in (
                str(s["steps"]),
                duration(s["seconds"]) if s["seconds"] else "-",
                *(_number(s[key]) for key in ("reward_first", "reward_last")),
                str(s["reward_window"]),
                *(_number(s[key]) for key in ("reward_best", "entropy", "length_mean")),
                f"{s['tokens']:,}",
            )
        )
        + "</tr>"
        for s in summaries
    )
    return f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{rows}</table>"


def _alarms(summaries: Sequence[dict[str, Any]]) -> str:
    lines = [
        f'<li class="alarm">{html.escape(s["name"])}, step {alarm["step"]}: <b>{html.escape(alarm["name"])}</b>: '
        f"{html.escape(alarm['text'])}</li>"
        for s in summaries
        for alarm in s["alarms"]
    ]
    return f"<h2>Alarms</h2><ul>{''.join(lines)}</ul>" if lines else "<p>No alarm rang.</p>"


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _check_parts() -> None:
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise CommandError(
            "curves cannot be drawn here",
            "matplotlib is not installed",
            "pip install 'intellect-node[train]', or read metrics.jsonl",
            RUN,
        )
