"""`intellect-node report`: the curves of one training, or of several over each other, as PNGs and one HTML file."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import pretraining
from cli.curves import Panel, StepRecords, draw_panels, points_of
from cli.errors import RUN, USAGE, CommandError
from cli.output import duration
from cli.samples import numbers, read, recorded
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
        loss = summary.get("loss_last")
        last = f", loss {loss:.3f} on held-back text" if loss is not None else last
        console().print(f"{summary['name']}: {summary['steps']} steps{last}")
    console().print(f"report: {target / 'report.html'}", soft_wrap=True)


def write_report(runs: Sequence[Path], target: Path) -> list[dict[str, Any]]:
    """Fill `target`; returns one summary per run. Raises CommandError where nothing is on record or to draw with."""
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
    learnt = pretraining.summarise(records) if "outer_root" in last else {}
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
        f'<figure><img alt="{html.escape(panel.title)}" src="data:image/png;base64,{_encoded(path)}"></figure>'
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
    return "".join(make(some) for make, some in zip((_table_of_rollouts, _table_of_text), kinds, strict=True) if some)


def _table_of_text(summaries: Sequence[dict[str, Any]]) -> str:
    head = ("run", "rounds", "time", "loss, first", "last", "best", "perplexity", "bits/parameter", "tokens")
    return _rows(
        head,
        [
            (
                s["name"],
                str(s["steps"]),
                duration(s["seconds"]) if s["seconds"] else "-",
                *(_number(s[key]) for key in ("loss_first", "loss_last", "loss_best", "perplexity")),
                _number(s["bits_per_parameter"]),
                f"{s['tokens']:,}",
            )
            for s in summaries
        ],
    )


def _table_of_rollouts(summaries: Sequence[dict[str, Any]]) -> str:
    head = ("run", "steps", "time", "reward, first", "last", "mean of", "best", "entropy", "length", "tokens")
    return _rows(
        head,
        [
            (
                s["name"],
                str(s["steps"]),
                duration(s["seconds"]) if s["seconds"] else "-",
                *(_number(s[key]) for key in ("reward_first", "reward_last")),
                str(s["reward_window"]),
                *(_number(s[key]) for key in ("reward_best", "entropy", "length_mean")),
                f"{s['tokens']:,}",
            )
            for s in summaries
        ],
    )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text, and whose others are numbers."""
    body = "".join(
        f"<tr><td>{html.escape(name)}</td>"
        + "".join(f'<td class="n">{html.escape(cell)}</td>' for cell in cells)
        + "</tr>"
        for name, *cells in rows
    )
    return f"<table><tr>{''.join(f'<th>{cell}</th>' for cell in head)}</tr>{body}</table>"


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
