"""Run files: the TOML that a run's owner writes -> the RunSpec that everybody agrees on, and its files.

A run file names a model and one environment or several with weights; the environment `dataset` needs data. Both are
paths relative to the run file, or names on the hub (`node.run.sources`). Reads and hashes files: call from a thread.
"""

import difflib
import json
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from node import hub
from node.errors import RunFileError
from node.inference.errors import ModelError
from node.inference.model_files import CONFIG, INDEX, WEIGHTS, is_model_file, read_json
from node.inference.weight_files import files_of, has_weights
from node.run.environments import (
    Attempt,
    EnvironmentTable,
    EvaluationTable,
    WeightedTable,
    at_once,
    compile_environment,
    compile_evaluation,
)
from node.run.own_code import compiled
from node.run.settings import read_tables
from node.run.sources import OnLine, at_hand, origins
from protocol.blobs import BlobInfo, choose_piece_size, describe, describe_pieces
from protocol.lora import ADAPTER, ADAPTER_CONFIG, ADAPTER_WEIGHTS, Lora
from protocol.recipe import Recipe
from protocol.run import MODEL, Asset, EnvironmentSpec, RunError, RunSections, RunSpec, encode_run
from protocol.sections import TEACHER, Section
from protocol.toploc import most_points

REQUIRED_MODEL_FILES = ("config.json", "tokenizer.json")
MAX_TOKENIZER = 1 << 26
TEXT = "text"
"""Stands for the environment in a run that has none: it pre-trains."""


class WarmStart(Section, frozen=True):
    """[warm_start]: how the run's model is made before it begins (`run warm-start`); what the swarm agrees on is the
    result. model: the base's directory; data: JSONL or parquet with the columns prompt and answer; batch: examples of
    a step; max_tokens: of one example."""

    model: str
    data: str
    steps: int = 200
    batch: int = 32
    learning_rate: float = 1e-5
    prompt: str = "prompt"
    answer: str = "answer"
    max_tokens: int = 4096

    def rules(self) -> list[tuple[str, bool, str]]:
        return [
            ("warm_start.steps", 1 <= self.steps <= 1_000_000, "must be 1 to 1000000"),
            ("warm_start.batch", 1 <= self.batch <= 65536, "must be 1 to 65536"),
            ("warm_start.learning_rate", 0 < self.learning_rate <= 1, "must be above 0, and 1 at most"),
            ("warm_start.max_tokens", 2 <= self.max_tokens <= 1 << 20, "must be 2 to 1048576"),
        ]


class RunFile(RunSections, frozen=True, kw_only=True):
    """The run file as written. model: directory or name; adapter: to it, in PEFT's format, with which the run goes on;
    dataset: JSONL or parquet, a file, directory, pattern or name; environment or environments, or [pretraining] instead
    of both; warm_start: how the model was made."""

    evaluation: EvaluationTable = EvaluationTable()

    name: str
    model: str
    adapter: str | None = None
    dataset: str | None = None
    environment: EnvironmentTable | None = None
    environments: tuple[WeightedTable, ...] = ()
    warm_start: WarmStart | None = None


class CompiledRun(msgspec.Struct, frozen=True):
    """spec and its canonical bytes; root: the run's blob root (32 bytes); files: asset path -> file on this disk."""

    spec: RunSpec
    encoded: bytes
    root: bytes
    files: dict[str, Path]


def remedy_of(mistake: str) -> str:
    """What to do about what msgspec says of a run file."""
    missing = "missing required" in mistake
    return "add it; `intellect-node run new` writes a whole file" if missing else "correct the value"


def load_run_file(path: Path, sets: Sequence[str] = ()) -> RunFile:
    """Parse a run file; raises RunFileError naming the key that is wrong and the nearest right one. sets: NAME=VALUE
    that stand in it beside what is written, and are checked with it."""
    return run_file_of(read_tables(path, sets), path)


def run_file_of(data: dict[str, Any], path: Path) -> RunFile:
    """The same of its tables."""
    # Before the types: a misspelt key should be named as such, with the nearest right one.
    unknown = unknown_keys(data, RunFile)
    if unknown:
        more = f" (and {len(unknown) - 1} more unknown)" if len(unknown) > 1 else ""
        raise RunFileError(f"unusable run file {path}", f"it has a key that is not known{more}", "; ".join(unknown[:5]))
    try:
        run_file = msgspec.convert(data, RunFile)
    except msgspec.ValidationError as error:
        raise RunFileError(f"unusable run file {path}", str(error), remedy_of(str(error))) from error
    check_kind(run_file, path)
    # Asked of the raw data: afterwards a default and a number that was written look the same.
    if run_file.pretraining is None and "toploc_k" not in data.get("verification", {}):
        run_file = with_fitting_proofs(run_file, path)
    return run_file


def check_kind(run_file: RunFile, path: Path) -> None:
    """Raise RunFileError unless the run learns either from problems or from text, and warms up within bounds."""
    for name, good, rule in run_file.warm_start.rules() if run_file.warm_start else ():
        if not good:
            raise RunFileError(f"unusable run file {path}", f"{name} {rule}", "correct the value")
    if run_file.pretraining is not None:
        if run_file.environment is not None or run_file.environments or run_file.dataset is not None:
            raise RunFileError(
                f"unusable run file {path}",
                "it has [pretraining], which learns from text, and an environment or a `dataset` with problems",
                "leave one of the two out; the text of [pretraining] is named by [[pretraining.data]]",
            )
    elif (run_file.environment is None) == (not run_file.environments):
        raise RunFileError(
            f"unusable run file {path}",
            "it must name its problems: [environment] or [[environments]], one of the two",
            "see `intellect-node run new --help` for a file to start from",
        )


def with_fitting_proofs(run_file: RunFile, path: Path) -> RunFile:
    """As many points per proof as the model's rows are good for, where the file does not say how many.

    A model that cannot be read is somebody else's to complain about, and a name is looked at once it is here.
    """
    try:
        hidden = read_json(path.parent / Path(run_file.model).expanduser() / CONFIG)["hidden_size"]
    except (ModelError, KeyError):
        return run_file
    if not isinstance(hidden, int):
        return run_file
    rules = run_file.verification
    fitting = msgspec.structs.replace(rules, toploc_k=min(rules.toploc_k, most_points(hidden)))
    return msgspec.structs.replace(run_file, verification=fitting)


def compile_run(
    path: Path,
    run_file: RunFile | None = None,
    *,
    desk: bool = False,
    reach: hub.Reach = "here",
    on_progress: OnLine = lambda line: None,
    sets: Sequence[str] = (),
) -> CompiledRun:
    """Everything that `join --role trainer --run FILE` and `contract pool create --run FILE` need.

    run_file: what to compile instead of the file's own words (command lines override some); its paths are still
    relative to `path`. desk: whether the run is for a desk, and may bring code of its own. reach: how far to go for
    what it names on the hub, of which `told` hears. sets: as in `load_run_file`. Raises RunFileError for a missing or
    incomplete model directory, data set or function.
    """
    run_file, _ = had(run_file or load_run_file(path, sets), path, reach, on_progress)
    files = model_files(path.parent / Path(run_file.model).expanduser())
    return sealed(draft(path, run_file, files), path, files, desk=desk)


def had(
    run_file: RunFile, path: Path, reach: hub.Reach, on_progress: OnLine = lambda line: None
) -> tuple[RunFile, list[hub.Had]]:
    """The run file with what it names on the hub by paths, and what that was. Raises RunFileError."""
    changed, found = at_hand(run_file, path.parent, reach, on_progress)
    rules = changed.verification
    if changed.model != run_file.model and changed.pretraining is None and rules.toploc_k == type(rules)().toploc_k:
        changed = with_fitting_proofs(changed, path)
    return changed, found


def draft(path: Path, run_file: RunFile, files: dict[str, Path], attempt: Attempt = at_once) -> RunSpec:
    """The run without its assets. files: those of its model, to which all others that it needs are added. Raises
    RunFileError; what `attempt` goes on behind is left out."""
    from node.run.text import compile_text  # tokenizers: not every daemon's business

    pretrains = run_file.pretraining is not None
    environment = EnvironmentSpec(name=TEXT) if pretrains else compile_environment(run_file, path, files, attempt)
    sections = run_file.sections() | {
        "recipe": attempt(_recipe, run_file, path, files) or run_file.recipe,
        "evaluation": compile_evaluation(run_file, path, files, attempt),
        **compile_text(run_file, path, files, attempt),
    }
    if run_file.distill and files:
        files |= attempt(teacher_files, path.parent / Path(run_file.distill.teacher).expanduser(), files) or {}
        # By its place among the assets: a directory of the owner's means nothing to members.
        sections["distill"] = msgspec.structs.replace(run_file.distill, teacher=TEACHER)
    return RunSpec(name=run_file.name, environment=environment, **sections)


def sealed(spec: RunSpec, path: Path, files: dict[str, Path], *, desk: bool) -> CompiledRun:
    """A draft with its files, by their hashes. Raises RunFileError."""
    spec = msgspec.structs.replace(spec, assets=tuple(_assets(files)), sources=origins(files))
    try:
        spec.check(desk=desk)
    except RunError as error:
        raise RunFileError(f"unusable run file {path}", f"{error.what}: {error.why}", error.remedy) from error
    encoded = encode_run(spec)
    return CompiledRun(spec, encoded, describe(encoded).root, files)


def _recipe(run_file: RunFile, path: Path, files: dict[str, Path]) -> Recipe:
    """The recipe with its own functions by their modules, and as the adapter is that it goes on with; puts all of them
    into `files`."""
    recipe = run_file.recipe
    if run_file.adapter is not None:
        place = path.parent / Path(run_file.adapter).expanduser()
        recipe = msgspec.structs.replace(recipe, lora=_lora(recipe.lora, place, files))
    own = {name: getattr(recipe, name) for name in ("loss", "advantage") if getattr(recipe, name)}
    return msgspec.structs.replace(recipe, **{name: compiled(text, path, files) for name, text in own.items()})


def adapter_in(place: Path) -> Path:
    """The directory of PEFT's files: this one, or what `train` and `weights export` leave in it."""
    places = (place, place / ADAPTER, place / MODEL / ADAPTER)
    return next((one for one in places if (one / ADAPTER_CONFIG).is_file()), places[0])


def _lora(written: Lora | None, place: Path, files: dict[str, Path]) -> Lora:
    from node.inference.lora import lora_of  # torch: not every daemon's business

    directory = adapter_in(place)
    if not (directory / ADAPTER_CONFIG).is_file():
        why = "`adapter` in the run file names it"
        raise RunFileError(f"no adapter at {place}", why, f"name a directory with {ADAPTER_CONFIG}, as PEFT saves it")
    try:
        found = lora_of(directory)
    except ModelError as error:
        raise RunFileError(f"the adapter {directory} cannot be gone on with", error.why, error.remedy) from None
    if written is not None and (written.rank, sorted(written.targets)) != (found.rank, sorted(found.targets)):
        raise RunFileError(
            "recipe.lora is not as the adapter is",
            f"it says rank {written.rank} for {', '.join(sorted(written.targets))}; the adapter has rank {found.rank} "
            f"for {', '.join(found.targets)}",
            "leave [recipe.lora] out: it follows from the adapter",
        )
    files |= {f"{ADAPTER}/{name}": directory / name for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS)}
    return written or found


def describe_file(path: Path) -> BlobInfo:
    """The blob info of a file, read piece by piece."""
    size = path.stat().st_size
    piece_size = choose_piece_size(size)

    def pieces() -> Iterable[bytes]:
        with path.open("rb") as file:
            while piece := file.read(piece_size):
                yield blake3(piece).digest()

    return describe_pieces(size, piece_size, pieces())


def model_files(directory: Path) -> dict[str, Path]:
    """Asset path -> file of a model's directory. Raises RunFileError for one that is not complete."""
    if not directory.is_dir():
        raise RunFileError(
            f"no model directory at {directory}",
            "`model` in the run file names it",
            "correct the path, write hf:OWNER/NAME for one of the hub, or make one: a run with [warm_start] makes its "
            "own (`run warm-start FILE`)",
        )
    # Only these: a model directory from the hub has pictures, weights of other libraries, as large again, and backups.
    small = {file for file in directory.iterdir() if file.is_file() and is_model_file(file)}
    missing = [name for name in REQUIRED_MODEL_FILES if directory / name not in small]
    if not has_weights(directory):
        missing.append(WEIGHTS)
    if missing:
        raise RunFileError(
            f"incomplete model directory {directory}",
            f"it lacks {', '.join(missing)}",
            "export the model in Hugging Face format: config.json, tokenizer.json, *.safetensors",
        )
    try:
        weights = files_of(directory)
    except ModelError as error:
        raise RunFileError(f"the model in {directory} cannot be used", error.why, error.remedy) from None
    index = directory / INDEX
    found = {*small, *weights} | ({index} if index.is_file() else set[Path]())
    return {f"{MODEL}/{file.name}": file for file in sorted(found)}


def teacher_files(directory: Path, own: dict[str, Path]) -> dict[str, Path]:
    """Asset path -> file of a teacher: what computes, without its tokenizer. own: the files of the run's model. Raises
    RunFileError for one that reads other tokens than the model."""
    found = model_files(directory)
    if _tokens(found[f"{MODEL}/tokenizer.json"]) != _tokens(own[f"{MODEL}/tokenizer.json"]):
        raise RunFileError(
            f"the teacher {directory} has another tokenizer",
            "its log-probabilities are of tokens that the run's model has other numbers for",
            "name a teacher of the same family in [distill]",
        )
    # Every member fetches these, so what does not compute stays at home.
    names = {name: path for name, path in found.items() if name.endswith((".safetensors", "/" + CONFIG, "/" + INDEX))}
    return {TEACHER + name.removeprefix(MODEL): path for name, path in names.items()}


def _tokens(path: Path) -> tuple[Any, Any]:
    """What a tokenizer's file says of the numbers of tokens."""
    try:
        if path.stat().st_size > MAX_TOKENIZER:
            raise ValueError(f"larger than {MAX_TOKENIZER} bytes")
        said = json.loads(path.read_bytes())
        return said["model"]["vocab"], sorted((one["id"], one["content"]) for one in said.get("added_tokens") or ())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        # It is a file from anywhere: valid JSON may still be of any shape and depth.
        why = f"{type(error).__name__} {error}"
        raise RunFileError(f"cannot read {path}", why[:300], "copy or export it again") from error


def _assets(files: dict[str, Path]) -> Iterable[Asset]:
    # Sorted, so that the run's root does not depend on the order in which a file names things.
    for name, path in sorted(files.items()):
        info = describe_file(path)
        yield Asset(path=name, root=info.root.hex(), size=info.size)


Known = dict[str, list[str]]
"""key -> the tables that have it."""


def unknown_keys(data: Mapping[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """One sentence per key of `data`, at any depth, that `kind` does not have."""
    known: Known = {}
    for table, key in _keys(kind, ""):
        known.setdefault(key, []).append(table)
    return [_sentence(table, key, fields, known) for table, key, fields in _strangers(data, kind, "")]


def _keys(kind: type[msgspec.Struct], table: str) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(kind):
        yield table, field.encode_name
        inner = _struct_of(field.type)
        if inner is not None:
            yield from _keys(inner, _below(table, field.encode_name))


def _strangers(
    data: Mapping[str, Any], kind: type[msgspec.Struct], table: str
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(table, key, the table's own keys)."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in data.items():
        if key not in fields:
            yield table, str(key), tuple(fields)
            continue
        inner, below = _struct_of(fields[key].type), _below(table, key)
        for name, one in _tables(value, fields[key].type):
            if inner is not None and isinstance(one, Mapping):
                yield from _strangers(one, inner, _below(below, name) if name else below)


def _tables(value: Any, annotation: Any) -> list[tuple[str, Any]]:
    """(name, table) of each table in a value: named ones in a `dict[str, T]`, nameless ones in a list or alone."""
    if typing.get_origin(annotation) is dict and isinstance(value, Mapping):
        return [(str(name), one) for name, one in value.items()]
    return [("", one) for one in (value if isinstance(value, list) else [value])]


def _sentence(table: str, key: str, fields: tuple[str, ...], known: Known) -> str:
    where = f"[{table}] " if table else ""
    close = difflib.get_close_matches(key, fields, 1, 0.7)
    if close:
        return f"{where}{key!r} is not a setting; did you mean {where}{close[0]!r}?"
    elsewhere = difflib.get_close_matches(key, known, 1, 0.8)
    if elsewhere:
        place = known[elsewhere[0]][0]
        return f"{where}{key!r} is not a setting; did you mean {f'[{place}] ' if place else ''}{elsewhere[0]!r}?"
    return f"{where}{key!r} is not a setting; known there: {', '.join(fields)}"


def _struct_of(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct in `T`, `T | None`, `tuple[T, ...]` or `dict[str, T]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    for part in typing.get_args(annotation):
        found = _struct_of(part)
        if found is not None:
            return found
    return None


def _below(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key
