"""`intellect-node run difficulty`: measure pass@k of every problem with the run's start model, into a new data file.

What is measured is kept beside the output line by line, so that an interrupted measurement goes on.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RUN, USAGE, CommandError
from cli.output import console, print_json
from node.state.files import whole_file, write_whole

if TYPE_CHECKING:
    from node.calibration.difficulty import Difficulty
    from node.run.file import CompiledRun

EPILOG = (
    "Example:  intellect-node run difficulty my-run.toml --out rated.jsonl --samples 8, then in the run file: "
    "dataset = 'rated.jsonl' and, below [environment.args], solve_rate_field = 'solve_rate'"
)


def command(
    file: Annotated[Path, typer.Argument(help="A run file whose environment is 'dataset'.")],
    out: Annotated[
        Path, typer.Option(help="The data file to write: JSONL, the rows as they were and one column more.")
    ],
    samples: Annotated[int, typer.Option(min=1, max=1024, help="Answers per problem.")] = 8,
    column: Annotated[str, typer.Option(help="Name of the new column.")] = "solve_rate",
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Sample answers to every problem with the start model and write the share that is right as a column.

    Problems are asked as the run's workers ask them, with its length budgets in turns, if it has any. An answer counts
    as right by the task's own score, whatever its length. Give --samples a multiple of the number of budgets.

    `solve_rate_field`, `solve_rate_min` and `solve_rate_max` of the environment then keep what is neither too easy nor
    too hard. Ctrl-C is safe: the same command goes on.
    """
    from node.run.file import compile_run
    from node.run.problems import check_run

    compiled = compile_run(file, desk=True)
    check_run(compiled)
    data = next((path for name, path in compiled.files.items() if name.startswith("data/")), None)
    if data is None or compiled.spec.environment.name != "dataset":
        raise CommandError("there are no rows to rate", "the environment is not 'dataset'", "name a data set", USAGE)
    if out.resolve() == data.resolve():
        raise CommandError(f"will not overwrite {data}", "--out is the run's own data", "name another file", USAGE)
    notes = out.with_name(out.name + ".measured")
    rates = _measured(compiled, notes, samples)
    written = _write(data, out, rates, column)
    notes.unlink(missing_ok=True)
    _tell(out, written, as_json=as_json)


def _measured(compiled: "CompiledRun", notes: Path, samples: int) -> dict[str, float]:
    """problem id -> rate; what `notes` has already is not measured again."""
    from rich.console import Console
    from rich.progress import Progress

    from node.calibration.difficulty import Difficulty
    from node.run.problems import place_files

    known = _read_notes(notes, compiled.root.hex(), samples)
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder, notes.open("a", encoding="utf-8") as file:
        assets = Path(folder)
        place_files(compiled, assets)
        difficulty = Difficulty(compiled.spec, assets)
        try:
            with Progress(console=Console(stderr=True)) as progress:
                task = progress.add_task("measuring", total=difficulty.count, completed=len(known))
                for problem_id, rate in _unknown(difficulty, known, samples):
                    known[problem_id] = rate
                    file.write(json.dumps([problem_id, rate]) + "\n")
                    file.flush()
                    progress.advance(task)
        finally:
            difficulty.close()
    return known


def _unknown(difficulty: "Difficulty", known: dict[str, float], samples: int) -> Iterator[tuple[str, float]]:
    todo = [problem for problem in difficulty.problems() if problem.problem_id not in known]
    return difficulty.rates(todo, samples)


def _read_notes(notes: Path, root: str, samples: int) -> dict[str, float]:
    """Earlier measurements of the same run with as many samples; others are thrown away."""
    head = json.dumps({"run": root, "samples": samples})
    lines = notes.read_text(encoding="utf-8").split("\n") if notes.exists() else []
    if not lines or lines[0] != head:
        notes.parent.mkdir(parents=True, exist_ok=True)
        notes.write_text(head + "\n", encoding="utf-8")
        return {}
    whole = lines[1:-1]  # what follows the last newline was cut off
    write_whole(notes, ("\n".join([head, *whole]) + "\n").encode())
    return {problem_id: rate for problem_id, rate in map(json.loads, whole)}


def _write(data: Path, out: Path, rates: dict[str, float], column: str) -> list[float]:
    """The rows of `data` with their rates; rows that the environment leaves out get none and are left out here too."""
    from node.environments.dataset import read_problems

    written: list[float] = []
    with whole_file(out) as file:
        for row, published in read_problems(data):
            rate = rates.get(published.problem_id)
            if rate is not None:
                file.write((json.dumps({**row, column: rate}, default=str) + "\n").encode())
                written.append(rate)
        if not written:
            raise CommandError("nothing was rated", f"no row of {data} is a problem of the run", "check the data", RUN)
    return written


def _tell(out: Path, rates: list[float], *, as_json: bool) -> None:
    shares: dict[str, Any] = {
        "never": sum(rate == 0 for rate in rates) / len(rates),
        "sometimes": sum(0 < rate < 1 for rate in rates) / len(rates),
        "always": sum(rate == 1 for rate in rates) / len(rates),
    }
    if as_json:
        print_json({"file": str(out), "problems": len(rates), "mean": sum(rates) / len(rates), "shares": shares})
        return
    parts = ", ".join(f"{share:.0%} {name} solved" for name, share in shares.items())
    console().print(f"wrote {out}: {len(rates)} problems, {parts}", soft_wrap=True)
