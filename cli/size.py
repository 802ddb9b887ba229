"""`intellect-node run size`: what a training needs, planned for cards before anybody rents them; `run difficulty`."""

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RUN, USAGE, CommandError
from cli.options import Sets, hear
from cli.output import AsJson, clean, console, print_json
from node.state.files import whole_file, write_whole
from node.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from node.run.file import CompiledRun
    from node.training.planner import TrainingWork

DIFFICULTY_EPILOG = (
    "Example:  intellect-node run difficulty my-run.toml --out rated.jsonl --samples 8, then in the run file: "
    "dataset = 'rated.jsonl' and, below [environment.args], solve_rate_field = 'solve_rate'"
)


def difficulty(
    file: Annotated[Path, typer.Argument(help="A run file whose environment is 'dataset'.")],
    out: Annotated[
        Path, typer.Option(help="The data file to write: JSONL, the rows as they were and one column more.")
    ],
    samples: Annotated[int, typer.Option(min=1, max=1024, help="Answers per problem.")] = 8,
    column: Annotated[str, typer.Option(help="Name of the new column.")] = "solve_rate",
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Sample answers to every problem with the start model and write the share that is right as a column.

    Problems are asked as the run's workers ask them, with its length budgets in turns, if it has any. An answer counts
    as right by the task's own score, whatever its length. Give --samples a multiple of the number of budgets.

    `solve_rate_field`, `solve_rate_min` and `solve_rate_max` of the environment then keep what is neither too easy nor
    too hard. Ctrl-C is safe: the same command goes on.
    """
    from node.environments.registry import files_below
    from node.run.file import compile_run
    from node.run.problems import check_run

    compiled = compile_run(file, desk=True, reach="whole", on_progress=hear, sets=sets or ())
    check_run(compiled)
    data = files_below(str(compiled.spec.environment.args.get("path", "")), compiled.files)
    if not data or compiled.spec.environment.name != "dataset":
        raise CommandError("there are no rows to rate", "the environment is not 'dataset'", "name a data set", USAGE)
    # Resolved: a link to the data would be overwritten as well.
    if out.resolve() in {one.resolve() for one in data}:
        raise CommandError(f"will not overwrite {out}", "--out is the run's own data", "name another file", USAGE)
    notes = out.with_name(out.name + ".measured")
    rates, undecided = _measured(compiled, notes, samples)
    written = _write(data, out, rates, column)
    if not undecided:
        notes.unlink(missing_ok=True)
    _tell(out, written, undecided, as_json=as_json)


def _measured(compiled: "CompiledRun", notes: Path, samples: int) -> tuple[dict[str, float], int]:
    """problem id -> rate, and of how many this machine could not tell; what `notes` has already is not measured
    again."""
    from rich.console import Console
    from rich.progress import Progress

    from node.calibration.difficulty import Difficulty
    from node.run.problems import place_files

    known = _read_notes(notes, compiled.root.hex(), samples)
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder, notes.open("a", encoding="utf-8") as file:
        assets = Path(folder)
        place_files(compiled, assets)
        with (
            closing(Difficulty(compiled.spec, assets)) as difficulty,
            Progress(console=Console(stderr=True)) as progress,
        ):
            task = progress.add_task("measuring", total=difficulty.count, completed=len(known))
            todo = [problem for problem in difficulty.problems() if problem.problem_id not in known]
            undecided = 0
            for problem_id, rate in difficulty.rates(todo, samples):
                progress.advance(task)
                # Neither hard nor easy: it is not noted, so that the next call asks again.
                if rate is None:
                    undecided += 1
                    continue
                known[problem_id] = rate
                file.write(json.dumps([problem_id, rate]) + "\n")
                # Each by itself: Ctrl-C should cost one problem.
                file.flush()
    return known, undecided


def _read_notes(notes: Path, root: str, samples: int) -> dict[str, float]:
    """Earlier measurements of the same run with as many samples; others are thrown away."""
    # Rates of another model or of fewer samples must not mix with these.
    head = json.dumps({"run": root, "samples": samples})
    lines = notes.read_text(encoding="utf-8").split("\n") if notes.exists() else []
    if not lines or lines[0] != head:
        notes.parent.mkdir(parents=True, exist_ok=True)
        notes.write_text(head + "\n", encoding="utf-8")
        return {}
    whole = lines[1:-1]  # what follows the last newline was cut off
    write_whole(notes, ("\n".join([head, *whole]) + "\n").encode())
    return {problem_id: rate for problem_id, rate in map(json.loads, whole)}


def _write(data: "Sequence[Path]", out: Path, rates: dict[str, float], column: str) -> list[float]:
    """The rows of `data` with their rates; rows that have none, for instance since the environment leaves them out, are
    left out here too."""
    from node.environments.dataset import read_problems

    written: list[float] = []
    with whole_file(out) as file:
        for row, published in (one for path in data for one in read_problems(path)):
            rate = rates.get(published.problem_id)
            if rate is not None:
                file.write((json.dumps({**row, column: rate}, default=str) + "\n").encode())
                written.append(rate)
        # Within the block: the exception keeps an empty file from getting its name.
        if not written:
            raise CommandError(
                "nothing was rated", f"no row of {data[0]} is a problem of the run", "check the data", RUN
            )
    return written


def _tell(out: Path, rates: list[float], undecided: int, *, as_json: bool) -> None:
    shares: dict[str, Any] = {
        "never": sum(rate == 0 for rate in rates) / len(rates),
        "sometimes": sum(0 < rate < 1 for rate in rates) / len(rates),
        "always": sum(rate == 1 for rate in rates) / len(rates),
    }
    if as_json:
        told = {"problems": len(rates), "undecided": undecided, "mean": sum(rates) / len(rates), "shares": shares}
        print_json({"file": str(out), **told})
        return
    parts = ", ".join(f"{share:.0%} {name} solved" for name, share in shares.items())
    console().print(f"wrote {out}: {len(rates)} problems, {parts}", soft_wrap=True)
    if undecided:
        left = f"{undecided} left out: too few of their answers were judged in time; the same command asks these again"
        console().print(left, soft_wrap=True)


EPILOG = (
    "Examples:  intellect-node run size   (known models)   |   intellect-node run size my-run.toml --gpus 8   |   "
    "intellect-node run size --model Qwen/Qwen3-0.6B --gpu-gib 24 --host-gib 64   |   "
    "intellect-node run size my-run.toml --trainer micro_batch_tokens=4096 --json"
)
COUNTS = (1, 2, 4, 8)


def command(
    file: Annotated[Path | None, typer.Argument(help="A run file: its model, its recipe, its adapter.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model instead of a run file: a directory or a name.")] = None,
    gpu_gib: Annotated[float, typer.Option("--gpu-gib", min=1, help="Memory of one GPU.")] = 80.0,
    gpus: Annotated[int | None, typer.Option(min=1, max=64, help="How many of them. Default: 1, 2, 4 and 8.")] = None,
    host_gib: Annotated[
        float | None, typer.Option("--host-gib", min=1, help="The host's memory. Default: twice that of the GPUs.")
    ] = None,
    trainer: Annotated[
        list[str] | None, typer.Option("--trainer", help="NAME=VALUE over [trainer] of config.toml. May be repeated.")
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """What `train` would do with such GPUs, for a run's model or for known ones: the plan, or what would fit instead.

    Counted from the model's shape: weights, gradients, optimiser, activations of a pass, tables of logits, gathered
    layers; a tenth and 0.75 GiB are added. Engines and the evaluator have their places in it.
    """
    from cli.run_directory import said_of_the_trainer

    if file is not None and model is not None:
        raise CommandError("a run or a model?", "a run file names its model", "give one of the two", USAGE)
    said = said_of_the_trainer(trainer or [])
    counts = (gpus,) if gpus else COUNTS
    rows = [
        {"model": name, "parameters": work.shape.parameters, "cards": _plans(work, said, counts, gpu_gib, host_gib)}
        for name, work in _asked(file, sets or (), model)
    ]
    sent = _sent(file, sets or (), rows[0]["parameters"])
    if as_json:
        print_json({"gpu_gib": gpu_gib, "models": rows, **({"exchange": sent} if sent else {})})
        return
    _print(rows, counts, gpu_gib)
    _print_sent(sent)


def _plans(
    work: "TrainingWork", said: dict[str, Any], counts: "Sequence[int]", gpu_gib: float, host_gib: float | None
) -> dict[str, dict[str, Any]]:
    """By number of cards: a plan's facts, or why there is none and what would fit."""
    from node.training.planner import GpuCard, NothingFits, PlannedMachine, plan

    found: dict[str, dict[str, Any]] = {}
    for count in counts:
        cards = tuple(GpuCard(str(at), f"{gpu_gib:g} GiB", int(gpu_gib * GIB)) for at in range(count))
        try:
            machine = PlannedMachine(cards, int((host_gib or 2 * gpu_gib * count) * GIB))
            found[str(count)] = plan(machine, work, said).facts
        except NothingFits as error:
            found[str(count)] = {"refused": error.why, "remedy": error.remedy}
    return found


def _sent(file: Path | None, sets: "Sequence[str]", parameters: int) -> list[dict[str, Any]]:
    """What a peer of a run whose peers meet sends each round, by form; empty for other runs."""
    from cli import pretraining
    from node.run.file import load_run_file

    run = load_run_file(file, sets) if file is not None else None
    return pretraining.traffic(run, parameters) if run is not None and (run.pretraining or run.diloco) else []


def _print_sent(sent: list[dict[str, Any]]) -> None:
    for one in sent:
        chosen = " (this run)" if one["chosen"] else ""
        bits, size = one["bits_per_parameter"], one["bytes"] / 1e6
        console().print(
            f"exchange {one['exchange']}: {bits:.3g} bits a parameter, {size:,.3g} MB a peer and round{chosen}"
        )


def _asked(file: Path | None, sets: "Sequence[str]", model: Path | None) -> "list[tuple[str, TrainingWork]]":
    """What was named, or all known models."""
    from node import hub
    from node.run.file import had, load_run_file
    from node.training.planner import TrainingWork
    from node.training.sizing import KNOWN, shape_of

    if model is not None:
        named = hub.name_or_path(str(model), Path(), "model")
        place = named if isinstance(named, Path) else hub.have(named, "headers", hear).directory
        return [(model.name, TrainingWork(shape_of(place)))]
    if file is None:
        return [(name, TrainingWork(shape)) for name, shape in KNOWN.items()]
    run, _ = had(load_run_file(file, sets), file, "headers", hear)
    teacher = shape_of(file.parent / run.distill.teacher) if run.distill and not run.distill.tasks else None
    return [(run.name, TrainingWork.of(run, shape_of(file.parent / run.model), samples=True, teacher=teacher))]


def _print(rows: list[dict[str, Any]], counts: "Sequence[int]", gpu_gib: float) -> None:
    from rich.table import Table

    if len(rows) == 1:
        for count, facts in rows[0]["cards"].items():
            console().print(f"{count} x {gpu_gib:g} GiB: {_words(facts)}", soft_wrap=True)
            for one in facts.get("told", ()):
                console().print(f"    {one}", soft_wrap=True)
        return
    title = f"cards that learn + cards that sample, of GPUs with {gpu_gib:g} GiB"
    table = Table(title=title, title_justify="left")
    for name in ("model", *map(str, counts)):
        table.add_column(name, no_wrap=True, justify="left" if name == "model" else "right")
    for row in rows:
        table.add_row(clean(row["model"], 24), *map(_cell, row["cards"].values()))
    console().print(table)
    console().print(
        "1+0: one card does both; host: parameters in the host's memory; -: does not fit. Of one model: --model NAME",
        soft_wrap=True,
    )


def _words(facts: dict[str, Any]) -> str:
    return f"does not fit: {facts['refused']}; {facts['remedy']}" if "refused" in facts else facts["line"]


def _cell(facts: dict[str, Any]) -> str:
    if "refused" in facts:
        return "-"
    sampling = {one["card"] for one in facts["engines"]} - set(facts["learners"])
    host = " host" * facts["settings"]["offload_parameters"]
    return f"{len(facts['learners'])}+{len(sampling)}{host}"
