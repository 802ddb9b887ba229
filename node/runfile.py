"""Run files: the TOML that a run's owner writes -> the RunSpec that everybody agrees on, and its files.

A run file names a Hugging Face-format model directory and, for the environment `dataset`, a data file;
paths are relative to the run file. Reads and hashes files: call from a thread.
"""

import difflib
import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec
from blake3 import blake3

from node.errors import RunFileError
from protocol.blobs import BlobInfo, choose_piece_size, describe, describe_pieces
from protocol.run import (
    Asset,
    EnvironmentSpec,
    EvaluationSpec,
    Recipe,
    RolloutSpec,
    RunError,
    RunSpec,
    VerificationSpec,
    WeightsSpec,
    encode_run,
)

MODEL_SUFFIXES = (".json", ".safetensors", ".txt", ".model", ".jinja")
REQUIRED_MODEL_FILES = ("config.json", "tokenizer.json")
MAX_RUN_FILE = 256 * 1024


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The run file as written. model: directory; dataset: JSONL or parquet file."""

    name: str
    model: str
    environment: EnvironmentSpec
    dataset: str | None = None
    rollout: RolloutSpec = RolloutSpec()
    recipe: Recipe = Recipe()
    evaluation: EvaluationSpec = EvaluationSpec()
    verification: VerificationSpec = VerificationSpec()
    weights: WeightsSpec = WeightsSpec()


class CompiledRun(msgspec.Struct, frozen=True):
    """spec and its canonical bytes; root: the run's blob root (32 bytes); files: asset path -> file on this disk."""

    spec: RunSpec
    encoded: bytes
    root: bytes
    files: dict[str, Path]


def load_run_file(path: Path) -> RunFile:
    """Parse a run file; raises RunFileError naming the key that is wrong and the nearest right one."""
    try:
        text = path.read_bytes()
        if len(text) > MAX_RUN_FILE:
            raise ValueError(f"{len(text)} bytes is too long for a run file")
        data = tomllib.loads(text.decode())
    except OSError as error:
        why = error.strerror or str(error)
        raise RunFileError(f"cannot read the run file {path}", why, "check the path") from error
    except ValueError as error:
        raise RunFileError(f"cannot read the run file {path}", str(error), "correct it: it must be TOML") from error
    try:
        return msgspec.convert(data, RunFile)
    except msgspec.ValidationError as error:
        raise RunFileError(f"unusable run file {path}", str(error), _nearest(data)) from error


def compile_run(path: Path) -> CompiledRun:
    """Everything that `join --role trainer --run FILE` and `contract pool create --run FILE` need.

    Raises RunFileError for a missing or incomplete model directory or data set.
    """
    run_file = load_run_file(path)
    files = _model_files(path.parent / run_file.model)
    environment = run_file.environment
    if run_file.dataset is not None:
        data = path.parent / run_file.dataset
        if not data.is_file():
            raise RunFileError(f"no data set at {data}", f"`dataset` in {path} names it", "correct the path")
        name = f"data/{data.name}"
        files[name] = data
        environment = EnvironmentSpec(name=environment.name, args={**environment.args, "path": name})
    spec = RunSpec(
        name=run_file.name,
        environment=environment,
        assets=tuple(_assets(files)),
        rollout=run_file.rollout,
        recipe=run_file.recipe,
        evaluation=run_file.evaluation,
        verification=run_file.verification,
        weights=run_file.weights,
    )
    try:
        spec.check()
    except RunError as error:
        raise RunFileError(f"unusable run file {path}", f"{error.what}: {error.why}", error.remedy) from error
    encoded = encode_run(spec)
    return CompiledRun(spec, encoded, describe(encoded).root, files)


def describe_file(path: Path) -> BlobInfo:
    """The blob info of a file, read piece by piece."""
    size = path.stat().st_size
    piece_size = choose_piece_size(size)

    def pieces() -> Iterable[bytes]:
        with path.open("rb") as file:
            while piece := file.read(piece_size):
                yield blake3(piece).digest()

    return describe_pieces(size, piece_size, pieces())


def _model_files(directory: Path) -> dict[str, Path]:
    if not directory.is_dir():
        raise RunFileError(
            f"no model directory at {directory}",
            "`model` in the run file names it",
            "correct the path, or make one: python -m node.training.warmstart --help",
        )
    found = sorted(file for file in directory.iterdir() if file.is_file() and file.suffix in MODEL_SUFFIXES)
    names = {file.name for file in found}
    missing = [name for name in REQUIRED_MODEL_FILES if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        missing.append("model.safetensors")
    if missing:
        raise RunFileError(
            f"incomplete model directory {directory}",
            f"it lacks {', '.join(missing)}",
            "export the model in Hugging Face format: config.json, tokenizer.json, *.safetensors",
        )
    return {f"model/{file.name}": file for file in found}


def _assets(files: dict[str, Path]) -> Iterable[Asset]:
    for name, path in sorted(files.items()):
        info = describe_file(path)
        yield Asset(path=name, root=info.root.hex(), size=info.size)


def _nearest(data: dict[str, object]) -> str:
    """A remedy that names the nearest right key of the first unknown one."""
    for section, known in _KNOWN.items():
        table = data if section == "" else data.get(section)
        if not isinstance(table, dict):
            continue
        for key in table:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, 1)
                where = f"[{section}] " if section else ""
                hint = f"did you mean {where}{close[0]!r}?" if close else f"known there: {', '.join(known)}"
                return f"{where}{key!r} is not a setting; {hint}"
    return "correct the value"


_KNOWN = {
    "": RunFile.__struct_fields__,
    "environment": EnvironmentSpec.__struct_fields__,
    "rollout": RolloutSpec.__struct_fields__,
    "recipe": Recipe.__struct_fields__,
    "evaluation": EvaluationSpec.__struct_fields__,
    "verification": VerificationSpec.__struct_fields__,
}
