"""`intellect-node run size`: how much memory each rank of the trainer needs, before anybody rents it."""

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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from node.run.file import CompiledRun
    from node.training.settings import TrainerSettings
    from node.training.sizing import Memory, Shape
    from protocol.lora import Lora

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

    compiled = compile_run(file, desk=True, reach="whole", told=hear, sets=sets or ())
    check_run(compiled)
    data = files_below(str(compiled.spec.environment.args.get("path", "")), compiled.files)
    if not data or compiled.spec.environment.name != "dataset":
        raise CommandError("there are no rows to rate", "the environment is not 'dataset'", "name a data set", USAGE)
    # Resolved: a link to the data would be overwritten as well.
    if out.resolve() in {one.resolve() for one in data}:
        raise CommandError(f"will not overwrite {out}", "--out is the run's own data", "name another file", USAGE)
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
        with (
            closing(Difficulty(compiled.spec, assets)) as difficulty,
            Progress(console=Console(stderr=True)) as progress,
        ):
            task = progress.add_task("measuring", total=difficulty.count, completed=len(known))
            todo = [problem for problem in difficulty.problems() if problem.problem_id not in known]
            for problem_id, rate in difficulty.rates(todo, samples):
                known[problem_id] = rate
                file.write(json.dumps([problem_id, rate]) + "\n")
                # Each by itself: Ctrl-C should cost one problem.
                file.flush()
                progress.advance(task)
    return known


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
    """The rows of `data` with their rates; rows that the environment leaves out get none and are left out here too."""
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


EPILOG = (
    "Examples:  intellect-node run size   (known models)   |   intellect-node run size my-run.toml   |   "
    "intellect-node run size --model Qwen/Qwen3-0.6B --gpu-gib 80   |   "
    "intellect-node run size my-run.toml --trainer activation_checkpointing=true --json"
)
RANKS = (1, 2, 4, 8, 16, 32, 64)
GIB = 1 << 30


def command(
    file: Annotated[Path | None, typer.Argument(help="A run file: its model, its recipe, its adapter.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model instead of a run file: a directory or a name.")] = None,
    gpu_gib: Annotated[float, typer.Option("--gpu-gib", min=1, help="Memory of one GPU.")] = 80.0,
    trainer: Annotated[
        list[str] | None, typer.Option("--trainer", help="NAME=VALUE over [trainer] of config.toml. May be repeated.")
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Memory of one rank of the trainer, by number of GPUs, for a run's model or for known ones.

    Counted from the model's shape for the settings of this machine ([trainer]): weights, gradients, optimiser,
    activations of a full micro-batch, tables of logits, gathered layers; a tenth and 0.75 GiB are added. Below it, how
    many tokens an engine's cache has room for on such a GPU, alone and beside the trainer.
    """
    from cli.run_directory import trainer_settings

    if file is not None and model is not None:
        raise CommandError("a run or a model?", "a run file names its model", "give one of the two", USAGE)
    settings = trainer_settings(trainer or [])
    rows = [
        _row(name, shape, settings, gpu_gib, lora, held) for name, shape, lora, held in _asked(file, sets or (), model)
    ]
    sent = _sent(file, sets or (), rows[0]["parameters"])
    if as_json:
        more = {"exchange": sent} if sent else {}
        print_json({"gpu_gib": gpu_gib, "micro_batch_tokens": settings.micro_batch_tokens, "models": rows, **more})
        return
    _print(rows, settings, gpu_gib)
    _print_sent(sent)


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


def _asked(file: Path | None, sets: "Sequence[str]", model: Path | None) -> "list[tuple[str, Shape, Lora | None, int]]":
    """(name, shape, adapter, parameters of models that are held beside) of what was named, or of all known models."""
    from node import hub
    from node.run.file import had, load_run_file
    from node.training.sizing import KNOWN, held_beside, shape_of

    if model is not None:
        named = hub.name_or_path(str(model), Path(), "model")
        place = named if isinstance(named, Path) else hub.have(named, "headers", hear).directory
        return [(model.name, shape_of(place), None, 0)]
    if file is None:
        return [(name, shape, None, 0) for name, shape in KNOWN.items()]
    run, _ = had(load_run_file(file, sets), file, "headers", hear)
    shape, teacher = shape_of(file.parent / run.model), None
    if run.distill and not run.distill.tasks:
        teacher = shape_of(file.parent / run.distill.teacher)
    return [(run.name, shape, run.recipe.lora, held_beside(shape, run.recipe, teacher))]


def _row(
    name: str, shape: "Shape", settings: "TrainerSettings", gpu_gib: float, lora: "Lora | None", held: int
) -> dict[str, Any]:
    from node.training.sizing import engine_plan, fewest_ranks, left_for_training, memory_of_a_rank

    how: dict[str, Any] = {"shape": shape, "settings": settings, "lora": lora, "held": held}
    return {
        "model": name,
        "parameters": shape.parameters,
        "ranks": {str(ranks): _gib(memory_of_a_rank(**how, ranks=ranks)) for ranks in RANKS},
        "fewest_ranks": fewest_ranks(int(gpu_gib * GIB), RANKS[-1], **how),
        "engine": {
            "alone": engine_plan(shape, int(gpu_gib * GIB)),
            "beside_the_trainer": engine_plan(shape, int(gpu_gib * GIB), left_for_training(gpus=1, **how)),
        },
    }


def _gib(memory: "Memory") -> dict[str, float]:
    parts = ("device", "state", "gathered", "activations", "tables", "reserve", "host", "evaluator")
    return {part: round(getattr(memory, part) / GIB, 2) for part in parts}


def _print(rows: list[dict[str, Any]], settings: "TrainerSettings", gpu_gib: float) -> None:
    from rich.table import Table

    title = f"GiB per rank by number of ranks, for micro-batches of {settings.micro_batch_tokens:,} tokens"
    table = Table(title=title, title_justify="left")
    for name in ("model", *map(str, RANKS), "least"):
        table.add_column(name, no_wrap=True, justify="left" if name == "model" else "right")
    for row in rows:
        cells = [f"{row['ranks'][str(ranks)]['device']:.1f}" for ranks in RANKS]
        table.add_row(clean(row["model"], 24), *cells, str(row["fewest_ranks"] or f"> {RANKS[-1]}"))
    console().print(table)
    console().print(f"least: ranks with {gpu_gib:g} GiB each that it takes, as a power of two", soft_wrap=True)
    for row in rows:
        alone, beside = row["engine"]["alone"], row["engine"]["beside_the_trainer"]
        console().print(f"engine of {clean(row['model'], 24)}, bf16: alone on such a GPU {alone}", soft_wrap=True)
        console().print(f"    beside one rank and the evaluator {beside}", soft_wrap=True)
    first = rows[0]["ranks"]["1"]
    for name, what in (("host", "in the CPU's memory of each rank, for one rank"), ("evaluator", "evaluator")):
        if len(rows) == 1 and first[name]:
            console().print(f"{what}: {first[name]:.1f} GiB more", soft_wrap=True)
