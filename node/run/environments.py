"""The environments of a run file: what each table says, with its data and its package among the run's files."""

from collections.abc import Callable, Mapping
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from node.environments.builtin import BUILTIN
from node.environments.package.archive import asset_name
from node.environments.programs import sandbox_files
from node.environments.registry import check_arguments, files_below, needs_runtime
from node.errors import RunFileError
from node.run.own_code import compiled
from node.run.sources import data_files
from protocol.run import EnvironmentSpec, EvaluationSpec
from protocol.sections import EnvironmentPart, EvaluationEnvironment, Section

if TYPE_CHECKING:
    from node.run.file import RunFile
    from node.run.packages import KnownPackage

Arguments = dict[str, int | float | str]
Attempt = Callable[..., Any]
"""(function, its arguments) -> what it returns; None where it fails, if that is noted and the rest is looked at."""


def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """An attempt that raises what the function raises."""
    return function(*arguments)


class EnvironmentTable(Section, frozen=True):
    """[environment]. name: of a built-in one; package: of one that the run brings, a path or a root; reward: a function
    of one's own, MODULE:FUNCTION, that scores instead, at a desk."""

    name: str = ""
    package: str = ""
    args: Arguments = {}
    reward: str = ""


class WeightedTable(EnvironmentTable, frozen=True):
    """[[environments]]: dataset: its own data file; the rest as in protocol.sections.EnvironmentPart."""

    weight: float = 1.0
    label: str = ""
    dataset: str | None = None


class EvaluatedTable(EnvironmentTable, frozen=True):
    """One of [[evaluation.environments]]. dataset: its own data file."""

    label: str = ""
    dataset: str | None = None


class EvaluationTable(EvaluationSpec, frozen=True):
    """[evaluation]. environments: [[evaluation.environments]], tables like [[environments]] without a weight."""

    environments: tuple[EvaluatedTable, ...] = ()  # type: ignore[assignment] - as written, not as the run has it


class Named(TypedDict):
    """What stands in the run of every environment."""

    name: str
    args: Arguments
    reward: str


def compile_environment(
    run: "RunFile", path: Path, files: dict[str, Path], attempt: Attempt = at_once
) -> EnvironmentSpec:
    """What the run trains on. path: of the run file; the files that it needs are put into `files`. Of several, those
    that can be used."""
    most = _most_tokens(run)
    if run.environment is not None:
        named = attempt(_named, run.environment, run.dataset, path, files, most)
        return EnvironmentSpec(**named) if named else EnvironmentSpec(name="mix")
    tables = ((one, attempt(_named, one, one.dataset or run.dataset, path, files, most)) for one in run.environments)
    parts = tuple(EnvironmentPart(weight=one.weight, label=one.label, **named) for one, named in tables if named)
    return EnvironmentSpec(name="mix", parts=parts)


def compile_evaluation(
    run: "RunFile", path: Path, files: dict[str, Path], attempt: Attempt = at_once
) -> EvaluationSpec:
    """What the run is evaluated on beside it, likewise."""
    written, most = run.evaluation, _most_tokens(run)
    tables = (
        (one, attempt(_named, one, one.dataset or run.dataset, path, files, most)) for one in written.environments
    )
    environments = tuple(EvaluationEnvironment(label=one.label, **named) for one, named in tables if named)
    return EvaluationSpec(problems=written.problems, every=written.every, environments=environments)


def _most_tokens(run: "RunFile") -> int:
    """Of a prompt; the text of a length budget, which stands behind it, has a few."""
    # Of the text of a length budget behind a prompt, generously.
    return run.rollout.max_prompt_tokens - (32 if run.length_budget.targets else 0)


def _named(table: EnvironmentTable, dataset: str | None, path: Path, files: dict[str, Path], most_tokens: int) -> Named:
    if bool(table.name) == bool(table.package):
        raise RunFileError(
            f"unusable run file {path}",
            "an environment needs a name or a package, one of the two",
            'write name = "..." for a built-in one (`intellect-node env list`), package = "FILE" for another',
        )
    name, package = table.name, None
    if table.package:
        # Its store of blobs takes half of what a run file imports, and a file that is refused names no package.
        from node.run.packages import named

        package = named(table.package, path.parent)
        name = _place_package(package, path, files)
    args = _with_data(name, table.args, dataset, path, files, most_tokens)
    if problem := check_arguments(name, args, packaged=bool(table.package)):
        raise RunFileError(f"unusable run file {path}", *problem)
    if package is not None:
        files |= sandbox_files(package.manifest.limits.packages)
    elif needs_runtime(name, args, files):
        files |= sandbox_files(str(args.get("packages", "")).split())
    return Named(name=name, args=args, reward=compiled(table.reward, path, files))


def _place_package(package: "KnownPackage", path: Path, files: dict[str, Path]) -> str:
    """The package's name; its archive goes into `files`."""
    name = package.manifest.name
    if files.setdefault(asset_name(name), package.path) != package.path:
        raise RunFileError(f"two packages are called {name}", f"{path} names both", "rename one of them")
    return name


def _long_ones(data: list[Path], args: Mapping[str, Any], most_tokens: int, model: Path) -> Arguments:
    from node.environments.dataset import count_long_rows
    from node.inference.tokenizer import LocalTokenizer

    return {
        "most_tokens": most_tokens,
        "long_rows": count_long_rows(data, args, LocalTokenizer(model), most_tokens),
    }


def _with_data(
    name: str,
    args: Mapping[str, int | float | str],
    dataset: str | None,
    path: Path,
    files: dict[str, Path],
    most_tokens: int,
) -> Arguments:
    """The arguments, with the asset names of the data files that the environment reads."""
    if name not in BUILTIN or not BUILTIN[name].data:
        return dict(args)
    if dataset is None:
        raise RunFileError("no data set", f"{path} has no `dataset` for the environment {name!r}", "name the file")
    named: Arguments = {BUILTIN[name].data: _place_data(dataset, "dataset", path, files)}
    more = {key: args[key] for key in BUILTIN[name].more if args.get(key)}
    own = str(named[BUILTIN[name].data])
    if args.get("on_bad_row") == "skip":
        from node.environments.dataset import count_bad_rows

        # Members that skip other rows number the problems otherwise: the count is part of what they agree on.
        named["bad_rows"] = count_bad_rows(files_below(own, files), args)
    if args.get("long_prompts") == "skip" and "model/tokenizer.json" in files:
        named |= _long_ones(files_below(own, files), args, most_tokens, files["model/tokenizer.json"].parent)
    return {**args, **named, **{key: _place_data(str(file), key, path, files) for key, file in more.items()}}


def _place_data(source: str, setting: str, path: Path, files: dict[str, Path]) -> str:
    """The asset name of a data file, or of the directory of several; they go into `files`."""
    found = data_files(source, path.parent, setting)
    folder, below, _ = next(iter(found)).partition("/")
    if not below:
        # By the file that is meant: two tables may name one file by different paths.
        if files.setdefault(f"data/{folder}", found[folder]).resolve() != found[folder].resolve():
            raise RunFileError(f"two data sets are called {folder}", f"{path} names both", "rename one of them")
        return f"data/{folder}"
    # An environment reads all that lies in its directory: two splits of one, or two of one name, have one each.
    for place in chain((f"data/{folder}",), (f"data/{folder}-{number}" for number in count(2))):
        placed = {f"{place}/{name.partition('/')[2]}": data for name, data in found.items()}
        there = {name: data for name, data in files.items() if name.startswith(f"{place}/")}
        if not there or _resolved(there) == _resolved(placed):
            break
    files |= placed
    return place


def _resolved(files: Mapping[str, Path]) -> dict[str, Path]:
    return {name: data.resolve() for name, data in files.items()}
