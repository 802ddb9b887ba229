"""`intellect-node eval`: models beside each other on a run's held-back problems, at this desk."""

import tempfile
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RUN, USAGE, CommandError
from cli.output import AsJson, clean, console, print_json

if TYPE_CHECKING:
    from node.inference.evaluation import Answered
    from node.run.file import CompiledRun
    from node.training.evaluator import Evaluator
    from node.training.settings import TrainerSettings

EXAMPLES = (
    "Examples:  intellect-node eval models/start runs/my-run --run my-run.toml   |   "
    "intellect-node eval runs/my-run@0 runs/my-run@20 runs/my-run@40 --run my-run.toml --draws 4   |   "
    "intellect-node eval runs/a runs/b --run my-run.toml --problems 500 --json"
)
# Pairs grow with the square: 32 make 496, which is more than anybody reads.
MOST_MODELS = 32


def command(
    models: Annotated[
        list[str], typer.Argument(help="Model directories, or directories of `train`, of which @STEP names a policy.")
    ],
    run: Annotated[Path, typer.Option("--run", help="The run file whose problems and limits it is about.")],
    problems: Annotated[
        int | None, typer.Option(min=2, max=65536, help="Held-back problems of a draw. Default: evaluation.problems.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1, max=1000, help="How often problems and random numbers are drawn.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draws. Default: recipe.seed.")] = None,
    trainer: Annotated[
        list[str] | None,
        typer.Option("--trainer", help="NAME=VALUE: evaluation_device, evaluation_dtype. May be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score models on the same held-back problems with the same random numbers, and compare them in pairs.

    The error of a difference is that of the differences problem by problem: what problems have in common goes out, so
    it is smaller than two models' own errors suggest. A difference of less than two errors is no difference.
    """
    from cli.run_directory import trainer_settings

    if len(models) > MOST_MODELS:
        raise CommandError(f"{len(models)} models", f"at most {MOST_MODELS} are compared", "name fewer", USAGE)
    compiled = _compiled(run, problems, seed)
    chosen = _chosen(models)
    with tempfile.TemporaryDirectory(prefix="intellect-eval-") as folder:
        found = _all_answered(compiled, chosen, draws, trainer_settings(trainer or []), Path(folder))
    rows = [_row(name, answered) for name, answered in found.items()]
    pairs = [_pair(found, *two) for two in combinations(found, 2)]
    if as_json:
        told = {"run": compiled.spec.name, "seed": compiled.spec.recipe.seed, "draws": draws}
        print_json({**told, "models": rows, "pairs": pairs})
        return
    _show(compiled, rows, pairs)


def _compiled(file: Path, problems: int | None, seed: int | None) -> "CompiledRun":
    from msgspec.structs import replace

    from node.run.file import compile_run
    from node.run.problems import check_run

    compiled = compile_run(file, desk=True)
    spec = compiled.spec
    if spec.pretraining is not None:
        why = f"{spec.name} learns from text"
        raise CommandError("nothing is answered in this run", why, "name a run with an environment", RUN)
    check_run(compiled)
    # Only the run's own: other environments have other problems, and pairs need the same.
    asked = replace(spec.evaluation, problems=problems or spec.evaluation.problems, environments=())
    recipe = replace(spec.recipe, seed=spec.recipe.seed if seed is None else seed)
    return replace(compiled, spec=replace(spec, evaluation=asked, recipe=recipe))


def _chosen(models: Sequence[str]) -> dict[str, tuple[Path, Path | None]]:
    """Name -> the model's directory, and its policy's image where that is not the directory's own weights. Raises
    CommandError, TrainingError."""
    from node.training.spool import image_of

    found: dict[str, tuple[Path, Path | None]] = {}
    for text in models:
        # The last @: directories may have one in their names.
        place, at, step = text.rpartition("@")
        path, number = (Path(place), int(step)) if at and step.isdecimal() and place else (Path(text), None)
        if text in found:
            raise CommandError(f"{text} is named twice", "it would be compared with itself", "name it once", USAGE)
        if (path / "spool").is_dir():
            chosen, image = image_of(path / "spool", number)
            found[f"{path}@{chosen}"] = path / "spool" / "assets" / "model", image
        elif number is None and (path / "config.json").is_file():
            found[text] = path, None
        else:
            why = "there is no config.json there, and no spool of `train`"
            raise CommandError(f"no model at {path}", why, "name a model directory, or DIR or DIR@STEP of `train`", RUN)
    return found


def _all_answered(
    compiled: "CompiledRun",
    models: dict[str, tuple[Path, Path | None]],
    draws: int,
    settings: "TrainerSettings",
    folder: Path,
) -> "dict[str, list[list[Answered]]]":
    """Name -> what each draw was answered."""
    from rich.console import Console
    from rich.progress import Progress

    found: dict[str, list[list[Answered]]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("loading", total=len(models) * draws * compiled.spec.evaluation.problems)
        for number, (name, (directory, image)) in enumerate(models.items()):
            progress.update(task, description=clean(name, 40))
            evaluator = _evaluator(compiled, directory, settings, folder / str(number), lambda: progress.advance(task))
            try:
                weights = evaluator.start() if image is None else evaluator.read(image)
                found[name] = evaluator.answered(weights, draws)
            finally:
                evaluator.close()
    return found


def _evaluator(
    compiled: "CompiledRun", model: Path, settings: "TrainerSettings", assets: Path, told: Callable[[], object]
) -> "Evaluator":
    """The run's files with this model in place of its own. told: hears of each answer."""
    from msgspec.structs import replace

    from node.run.problems import place_files
    from node.training.evaluator import Evaluator, evaluation_engine

    others = {name: file for name, file in compiled.files.items() if not name.startswith("model/")}
    place_files(replace(compiled, files=others), assets)
    assets.mkdir(exist_ok=True)
    # A link: a model's files may be many gigabytes, and are only read.
    (assets / "model").symlink_to(model.resolve(), target_is_directory=True)
    return Evaluator(compiled.spec, assets, evaluation_engine(settings), told)


def _row(name: str, draws: "Sequence[Sequence[Answered]]") -> dict[str, Any]:
    from node.inference.evaluation import lengths_of, mean_and_error

    answered = [one for draw in draws for one in draw]
    reward, error = mean_and_error(list(_by_problem(draws).values()))
    row: dict[str, Any] = {
        "model": name,
        "reward": reward,
        "error": error,
        "answers": len(answered),
        "problems": len(_by_problem(draws)),
        "length": sum(one.rollout.sampled for one in answered) / len(answered),
        "finished": sum(one.rollout.finished for one in answered) / len(answered),
    }
    return row | (lengths_of(answered) if answered[0].target is not None else {})


def _by_problem(draws: "Sequence[Sequence[Answered]]") -> dict[str, float]:
    """Mean reward of each problem: answers to one are not independent of each other."""
    rewards: dict[str, list[float]] = {}
    for one in (one for draw in draws for one in draw):
        rewards.setdefault(one.problem.problem_id, []).append(one.reward)
    return {name: sum(own) / len(own) for name, own in rewards.items()}


def _pair(found: "dict[str, list[list[Answered]]]", first: str, second: str) -> dict[str, Any]:
    from node.inference.evaluation import mean_and_error

    before, after = _by_problem(found[first]), _by_problem(found[second])
    # Problem by problem: how hard each one is goes out of the difference.
    gains = [after[name] - before[name] for name in before]
    difference, error = mean_and_error(gains)
    better, worse = (sum(sign * gain > 0 for gain in gains) for sign in (1, -1))
    return {
        "from": first,
        "to": second,
        "difference": difference,
        "error": error,
        "problems": len(gains),
        "better": better,
        "worse": worse,
    }


def _show(compiled: "CompiledRun", rows: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    first = {pair["to"]: pair for pair in pairs if pair["from"] == rows[0]["model"]}
    lengths = bool(compiled.spec.length_budget.targets)
    table = Table(box=None, header_style="dim", padding=(0, 1), show_edge=False)
    for name in ("model", "reward", "length", *(["off by", "r"] if lengths else []), "difference", "up/down"):
        named = name == "model"
        table.add_column(name, justify="left" if named else "right", overflow="fold", no_wrap=not named)
    for row in rows:
        pair = first.get(row["model"])
        r = row.get("eval_length_correlation")
        off = [f"{row['eval_length_error']:.2f}", "-" if r is None else f"{r:.3f}"] if lengths else []
        table.add_row(
            clean(row["model"], 200),
            _with_error(row["reward"], row["error"]),
            f"{row['length']:.1f}",
            *off,
            _with_error(pair["difference"], pair["error"], "+") if pair else "-",
            f"{pair['better']}/{pair['worse']}" if pair else "-",
        )
    console().print(table)
    console().print(
        f"{rows[0]['answers']} answers to {rows[0]['problems']} held-back problems each, the same draws for all; "
        "difference to the first, and on how many problems up and down; ± is one standard error",
        soft_wrap=True,
    )


def _with_error(value: float, error: float | None, sign: str = "") -> str:
    return f"{value:{sign}.3f}" + ("" if error is None else f" ±{error:.3f}")
