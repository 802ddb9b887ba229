"""`intellect-node eval`: models beside each other on a run's held-back problems, at this desk."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from cli.errors import RUN, USAGE, CommandError
from cli.options import Sets, hear
from cli.output import AsJson, clean, console, print_json

if TYPE_CHECKING:
    from node.inference.evaluation import EvaluatedAnswer
    from node.inference.settings import EngineSettings
    from node.run.file import CompiledRun
    from node.training.evaluator import Evaluator
    from node.training.settings import TrainerSettings

T = TypeVar("T")
EXAMPLES = (
    "Examples:  intellect-node eval models/start runs/my-run --run my-run.toml   |   "
    "intellect-node eval runs/my-run@0 runs/my-run@20 runs/my-run@40 --run my-run.toml --draws 4   |   "
    "intellect-node eval models/start --adapter runs/a@40 --adapter peft/b --run my-run.toml"
)


def command(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Models: directories, names on the hub, or directories of `train` (@STEP: a policy of it)."
        ),
    ],
    run: Annotated[Path, typer.Option("--run", help="The run file whose problems and limits it is about.")],
    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapter", help="A LoRA adapter to MODELS, which is one then. PEFT's directory, or DIR@STEP."),
    ] = None,
    problems: Annotated[
        int | None, typer.Option(min=2, max=65536, help="Held-back problems of a draw. Default: evaluation.problems.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1, max=1000, help="How often problems and random numbers are drawn.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draws. Default: recipe.seed.")] = None,
    trainer: Annotated[
        list[str] | None,
        typer.Option("--trainer", help="NAME=VALUE: evaluation_device, evaluation_dtype. May be repeated."),
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Score models on the same held-back problems with the same random numbers, and compare them in pairs.

    The error of a difference is that of the differences problem by problem: what problems have in common goes out, so
    it is smaller than two models' own errors suggest. A difference of less than two errors is no difference.

    Adapters are beside one model in memory and answer in one batch with it, unmerged.
    """
    from cli.run_directory import trainer_settings

    adapters = adapters or []
    most_models = 32  # pairs grow with the square: 32 make 496, which is more than anybody reads
    if (count := len(models) + len(adapters)) > most_models:
        raise CommandError(f"{count} models", f"at most {most_models} are compared", "name fewer", USAGE)
    if adapters and len(models) > 1:
        why = "adapters belong to one, which would not be known"
        raise CommandError(f"{len(models)} models beside adapters", why, "name the adapters' model alone", USAGE)
    compiled = _compiled(run, sets or (), problems, seed)
    chosen, settings = _chosen(models), trainer_settings(trainer or [])
    with tempfile.TemporaryDirectory(prefix="intellect-eval-") as folder:
        if adapters:
            ((name, (model, image)),) = chosen.items()
            if image is not None:
                why = f"{name} is a policy of a training"
                raise CommandError("adapters are to a model directory", why, f"name {model}", USAGE)
            found, taken = _answered_beside(
                compiled, name, model, beside_of(adapters, model), draws, settings, Path(folder)
            )
        else:
            found, taken = _all_answered(compiled, chosen, draws, settings, Path(folder)), 0
    rows = [_row(name, answered) for name, answered in found.items()]
    pairs = [_pair(found, *two) for two in combinations(found, 2)]
    if as_json:
        told = {"run": compiled.spec.name, "seed": compiled.spec.recipe.seed, "draws": draws}
        print_json({**told, "adapter_bytes": taken, "models": rows, "pairs": pairs})
        return
    _show(compiled, rows, pairs)
    if adapters:
        size = f"{taken / 2**20:.1f} MiB beside the model's weights"
        console().print(f"{len(adapters)} adapters answered in one batch with their model, unmerged: {size}")


def _compiled(file: Path, sets: Sequence[str], problems: int | None, seed: int | None) -> "CompiledRun":
    from msgspec.structs import replace

    from node.run.file import compile_run
    from node.run.problems import check_run

    compiled = compile_run(file, desk=True, reach="whole", on_progress=hear, sets=sets)
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
        path, number = place_of(text)
        if (path / "spool").is_dir():
            chosen, image = image_of(path / "spool", number)
            _put(found, f"{path}@{chosen}", (path / "spool" / "assets" / "model", image))
        elif number is None and (path / "config.json").is_file():
            _put(found, str(path), (path, None))
        else:
            why = "there is no config.json there, and no spool of `train`"
            raise CommandError(f"no model at {path}", why, "name a model directory, or DIR or DIR@STEP of `train`", RUN)
    return found


def _put(found: dict[str, T], name: str, source: T) -> None:
    """By what was meant and not by what was typed: DIR is DIR@STEP where STEP is the newest. Raises CommandError."""
    if name in found:
        raise CommandError(f"{name} is named twice", "it would be compared with itself", "name it once", USAGE)
    found[name] = source


def place_of(text: str) -> tuple[Path, int | None]:
    """DIR or DIR@STEP, or a name on the hub. The last @: directories may have one in their names."""
    from node import hub

    place, at, step = text.rpartition("@")
    if at and step.isdecimal() and place and Path(place).exists():
        return Path(place), int(step)
    named = hub.name_or_path(text, Path(), "model")
    return (named if isinstance(named, Path) else hub.have(named, "whole", hear).directory), None


def beside_of(adapters: Sequence[str], model: Path) -> dict[str, Path]:
    """Name -> an adapter's directory in PEFT's format, or the image of a policy that is one. Raises CommandError,
    TrainingError."""
    from node.training.spool import image_of
    from node.weights.export import ADAPTER_DIRECTORY, holds_adapter
    from protocol.lora import ADAPTER_CONFIG

    found: dict[str, Path] = {}
    for text in adapters:
        path, number = place_of(text)
        peft = next((one for one in (path, path / ADAPTER_DIRECTORY) if (one / ADAPTER_CONFIG).is_file()), None)
        if (path / "spool").is_dir():
            chosen, image = image_of(path / "spool", number)
            if not holds_adapter(image):
                raise CommandError(f"{path} has no adapter", "its policies are whole models", f"eval {text}", RUN)
            _check_same(path, path / "spool" / "assets" / "model", model)
            _put(found, f"{path}@{chosen}", image)
        elif number is None and peft:
            _put(found, str(path), peft)
        else:
            why = f"there is no {ADAPTER_CONFIG} there, and no spool of `train`"
            raise CommandError(
                f"no adapter at {path}", why, "name PEFT's directory, or DIR or DIR@STEP of `train`", RUN
            )
    return found


def _check_same(run: Path, own: Path, model: Path) -> None:
    """An adapter says nothing of another model, though all its matrices may fit. Raises CommandError."""
    import filecmp

    from node.inference.weight_files import weight_files

    weights = [[one.name for one in weight_files(place).files] for place in (own, model)]
    # Whole files: names, sizes and times of two models may well be the same.
    if weights[0] != weights[1] or not all(filecmp.cmp(own / one, model / one, shallow=False) for one in weights[0]):
        raise CommandError(
            f"{run} trained an adapter to another model", f"its model is not {model}", f"name {own} as the model", RUN
        )


def _all_answered(
    compiled: "CompiledRun",
    models: dict[str, tuple[Path, Path | None]],
    draws: int,
    settings: "TrainerSettings",
    folder: Path,
) -> "dict[str, list[list[EvaluatedAnswer]]]":
    """Name -> what each draw was answered."""
    from rich.console import Console
    from rich.progress import Progress

    from node.training.evaluator import evaluation_engine

    found, engine = dict[str, "list[list[EvaluatedAnswer]]"](), evaluation_engine(settings)
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("loading", total=len(models) * draws * compiled.spec.evaluation.problems)
        for number, (name, (directory, image)) in enumerate(models.items()):
            progress.update(task, description=clean(name, 40))
            # One after another: memory has to hold one model only. By number: their names are paths.
            assets, told = folder / str(number), partial(progress.advance, task)
            with closing(_evaluator(compiled, directory, engine, assets, told)) as evaluator:
                weights = evaluator.start() if image is None else evaluator.read(image)
                found[name] = evaluator.answered(weights, draws)
    return found


def _answered_beside(
    compiled: "CompiledRun",
    name: str,
    model: Path,
    adapters: dict[str, Path],
    draws: int,
    settings: "TrainerSettings",
    folder: Path,
) -> "tuple[dict[str, list[list[EvaluatedAnswer]]], int]":
    """Name -> what each draw was answered, of a model and of adapters to it; and the bytes that these take."""
    from rich.console import Console
    from rich.progress import Progress

    from node.training.evaluator import beside, evaluation_engine, read_adapters

    weights = read_adapters(model, adapters)
    with Progress(console=Console(stderr=True)) as progress:
        count = (1 + len(weights)) * draws * compiled.spec.evaluation.problems
        task = progress.add_task(f"{clean(name, 40)} and {len(weights)} adapters", total=count)
        engine = beside(evaluation_engine(settings), weights.values())
        told = partial(progress.advance, task)
        with closing(_evaluator(compiled, model, engine, folder / "run", told)) as evaluator:
            evaluator.start()
            found = evaluator.answered_beside(weights, draws)
            # Under the empty name stands the model without an adapter.
            return {name: found.pop(""), **found}, evaluator.adapter_bytes


def _evaluator(
    compiled: "CompiledRun", model: Path, engine: "EngineSettings", assets: Path, on_progress: Callable[[], object]
) -> "Evaluator":
    """The run's files with this model in place of its own. on_progress: hears of each answer."""
    from msgspec.structs import replace

    from node.run.problems import place_files
    from node.training.evaluator import Evaluator

    others = {name: file for name, file in compiled.files.items() if not name.startswith(("model/", "adapter/"))}
    place_files(replace(compiled, files=others), assets)
    assets.mkdir(exist_ok=True)
    # A link: a model's files may be many gigabytes, and are only read.
    (assets / "model").symlink_to(model.resolve(), target_is_directory=True)
    return Evaluator(compiled.spec, assets, engine, on_progress)


def _row(name: str, draws: "Sequence[Sequence[EvaluatedAnswer]]") -> dict[str, Any]:
    from node.environments.base import mean_of
    from node.inference.evaluation import lengths_of, mean_and_error

    answered = [one for draw in draws for one in draw]
    judged = list(_by_problem(draws).values())
    # Where too few could be judged here there is no figure.
    enough = mean_of([one.reward for one in answered]) is not None
    reward, error = mean_and_error(judged) if enough else (None, None)
    row: dict[str, Any] = {
        "model": name,
        "reward": reward,
        "error": error,
        "answers": len(answered),
        "undecided": sum(one.reward is None for one in answered),
        "problems": len({one.problem.problem_id for one in answered}),
        "length": sum(one.rollout.sampled for one in answered) / len(answered),
        "finished": sum(one.rollout.finished for one in answered) / len(answered),
    }
    return row | (lengths_of(answered) if answered[0].target is not None else {})


def _by_problem(draws: "Sequence[Sequence[EvaluatedAnswer]]") -> dict[str, float]:
    """Mean reward of each problem: answers to one are not independent of each other. What this machine could not judge
    is left out."""
    rewards: dict[str, list[float]] = {}
    for one in (one for draw in draws for one in draw):
        if one.reward is not None:
            rewards.setdefault(one.problem.problem_id, []).append(one.reward)
    return {name: sum(own) / len(own) for name, own in rewards.items()}


def _pair(found: "dict[str, list[list[EvaluatedAnswer]]]", first: str, second: str) -> dict[str, Any]:
    from node.environments.base import mean_of
    from node.inference.evaluation import mean_and_error

    before, after = _by_problem(found[first]), _by_problem(found[second])
    names = {one.problem.problem_id for draw in found[first] for one in draw}
    # Problem by problem: how hard each one is goes out of the difference.
    each = [after[name] - before[name] if name in before and name in after else None for name in names]
    gains = [gain for gain in each if gain is not None]
    difference, error = mean_and_error(gains) if mean_of(each) is not None else (None, None)
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
    for row in (row for row in rows if row["undecided"]):
        left = f"{clean(row['model'], 200)}: {row['undecided']} answers got no verdict in time, and count nowhere"
        console().print(left, soft_wrap=True)
    console().print(
        f"{rows[0]['answers']} answers to {rows[0]['problems']} held-back problems each, the same draws for all; "
        "difference to the first, and on how many problems up and down; ± is one standard error",
        soft_wrap=True,
    )


def _with_error(value: float | None, error: float | None, sign: str = "") -> str:
    if value is None:
        return "-"
    return f"{value:{sign}.3f}" + ("" if error is None else f" ±{error:.3f}")
