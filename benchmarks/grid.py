"""Many local trainings of the demo's task, one after the other: what async_levels.py and presets.py have in common.

Every cell is one `intellect-node train` in a directory of its own. A cell that is finished is not run again, one that
was interrupted goes on, so the whole can be stopped at any time and started again with the same --out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
RUN = """name = "{name}"
model = "model-{seed}"

[environment]
name = "sort"
args = {{ digits = 4 }}

[rollout]
group_size = 8
prompts_per_step = 32
prompts_per_file = 16
max_prompt_tokens = 8
max_output_tokens = 8

[recipe]
name = "intellect2"
steps = {steps}
learning_rate = 3e-4
decay_steps = 150
seed = {seed}
max_staleness = 8

[evaluation]
problems = 256
every = 2

[alarms]
window = 5
"""


@dataclass(frozen=True)
class Cell:
    """One training. row, column: where it stands in the table."""

    row: str
    column: str
    seed: int
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.row}-{self.column}-seed{self.seed}".replace(" ", "")


@dataclass(frozen=True)
class Outcome:
    """reward: mean of the last ten evaluations; seconds: wall time of the steps; best: highest single evaluation;
    staleness: mean age of the rollouts learnt from, steps."""

    row: str
    column: str
    seed: int
    reward_first: float
    reward: float
    best: float
    seconds: float
    staleness: float
    alarms: list[str]
    failed: str = ""


def arguments(description: str | None, *, steps: int, seeds: int, out: str) -> argparse.Namespace:
    """The options that both benchmarks have; --quick shrinks everything to a look at whether it works."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seeds", type=int, default=seeds, help="how many, from 0")
    parser.add_argument("--out", type=Path, default=Path("runs") / out, help="goes on with what it holds")
    parser.add_argument("--json", type=Path, help="write every cell's numbers here")
    parser.add_argument("--quick", action="store_true", help="one seed, few cells, 12 steps")
    parser.add_argument("--table", action="store_true", help="only print what is finished in --out")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.steps, chosen.seeds, chosen.out = 12, 1, chosen.out.with_name(f"{chosen.out.name}-quick")
    chosen.out = chosen.out.resolve()
    return chosen


def run_cells(cells: Iterable[Cell], chosen: argparse.Namespace) -> list[Outcome]:
    """Run what is not done yet; returns what is."""
    chosen.out.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    listed = list(cells)
    for number, cell in enumerate(listed, 1):
        directory = chosen.out / cell.name
        done = directory / "report" / "summary.json"
        error = "" if done.exists() or chosen.table else _train(cell, chosen, directory)
        if done.exists():
            outcomes.append(_outcome(cell, directory))
        elif error:
            outcomes.append(Outcome(cell.row, cell.column, cell.seed, 0, 0, 0, 0, 0, [], error))
        if not chosen.table:
            last = outcomes[-1] if outcomes else None
            print(f"[{number}/{len(listed)}] {cell.name}: {last.failed or last.reward if last else '-'}", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    return outcomes


def spread(values: Sequence[float], digits: int = 3) -> str:
    """'0.512 +- 0.011': mean and sample standard deviation."""
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on standard output, in Markdown when it is no terminal."""
    console = Console()
    listed = [list(row) for row in rows]
    if not console.is_terminal:
        print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        for row in listed:
            print(f"| {' | '.join(row)} |")
        return
    table = Table(*columns, title=title)
    for row in listed:
        table.add_row(*row)
    console.print(table)


def _train(cell: Cell, chosen: argparse.Namespace, directory: Path) -> str:
    """Run one cell; its error in words if it failed."""
    run = chosen.out / f"run-{cell.seed}-{chosen.steps}.toml"
    _model(chosen.out / f"model-{cell.seed}", cell.seed)
    run.write_text(RUN.format(name=cell.name, seed=cell.seed, steps=chosen.steps))
    command = [sys.executable, "-m", "cli", "train", "--run", str(run), "--dir", str(directory), "--no-report"]
    command += ["--resume"] if (directory / "run.toml").exists() else ["--fresh", *cell.flags]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if done.returncode in (-2, 130):
        raise KeyboardInterrupt
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or f"exit code {done.returncode}"


def _model(directory: Path, seed: int) -> None:
    """A start model that is right now and then."""
    if (directory / "done").exists():
        return
    command = [sys.executable, "-m", "node.training.warmstart", "--out", str(directory), "--seed", str(seed)]
    subprocess.run(command, cwd=ROOT, env=_environment(), check=True, stdout=subprocess.DEVNULL)
    (directory / "done").touch()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _outcome(cell: Cell, directory: Path) -> Outcome:
    summary: dict[str, Any] = json.loads((directory / "report" / "summary.json").read_text())
    ages: list[float] = []
    for line in (directory / "metrics.jsonl").read_text().splitlines():
        counts = json.loads(line).get("staleness") or {}
        total = sum(counts.values())
        if total:
            ages.append(sum(int(age) * count for age, count in counts.items()) / total)
    return Outcome(
        cell.row,
        cell.column,
        cell.seed,
        summary["reward_first"],
        summary["reward_last"],
        summary["reward_best"],
        summary["seconds"],
        round(statistics.fmean(ages), 3) if ages else 0.0,
        [alarm["name"] for alarm in summary["alarms"]],
    )
