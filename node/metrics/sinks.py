"""Other places for metrics: Weights & Biases, TensorBoard. Imported only when asked for; a clear error when missing.

Blocking: call from a thread. Numbers inside tables become "table/name".
"""

import importlib
import importlib.util
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from node.errors import ConfigError

NAMES = ("wandb", "tensorboard")


class Sink(Protocol):
    """Somewhere records go."""

    def write(self, record: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class WandbSink:
    """Resumes the run of the same directory. Settings (project, entity, mode) are wandb's own: WANDB_PROJECT ..."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any]) -> None:
        wandb = _module("wandb", "wandb")
        where = directory / "wandb"
        where.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(dir=str(where), name=name, config=dict(settings), id=_run_id(where), resume="allow")

    def write(self, record: Mapping[str, Any]) -> None:
        self._run.log(dict(flat_numbers(record)), step=int(record["step"]))

    def close(self) -> None:
        self._run.finish()


class TensorBoardSink:
    """Event files in DIRECTORY/tensorboard."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any]) -> None:
        _module("tensorboard", "tensorboard")
        module = _module("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(log_dir=str(directory / "tensorboard"))
        self._writer.add_text("run", name)
        self._writer.add_text("settings", "\n".join(f"    {key} = {value}" for key, value in settings.items()))

    def write(self, record: Mapping[str, Any]) -> None:
        for name, value in flat_numbers(record):
            self._writer.add_scalar(name, value, int(record["step"]))
        # Each step: the files of a process that is killed should hold all that it learnt.
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


_KINDS = {"wandb": WandbSink, "tensorboard": TensorBoardSink}


def open_sinks(words: str, directory: Path, name: str, settings: Mapping[str, Any]) -> list[Sink]:
    """The sinks that `words` asks for. Raises ConfigError for an unknown name or a package that is missing."""
    return [_KINDS[one](directory, name, settings) for one in checked_names(words)]


def checked_names(words: str) -> list[str]:
    """Names of places with commas between, each once. Raises ConfigError for one that is unknown or not installed."""
    names = list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for name in names:
        if name not in NAMES:
            raise ConfigError("metrics cannot be sent", f"{name!r} is no place for them", f"use {' or '.join(NAMES)}")
        # Looked for, not imported: wandb takes seconds, and this is asked before anything begins.
        if not _installed(name):
            raise _missing(name, f"there is no module {name!r}")
    return names


def flat_numbers(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """("seconds/wait", 0.4) ... of a nested record; what is no number is left out."""
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from flat_numbers(value, f"{prefix}{name}/")
        # A bool is an int to Python, and no curve to anybody.
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(value)


def _installed(name: str) -> bool:
    if name in sys.modules:
        # None stands there for a module that is forbidden, as tests do.
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None


def _missing(package: str, why: str) -> ConfigError:
    return ConfigError(
        f"metrics cannot be sent to {package}", f"the package is not installed ({why})", f"pip install {package}"
    )


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise _missing(package, str(error)) from None


def _run_id(where: Path) -> str:
    """One id per directory, so that a resumed run goes on in the same curve."""
    path = where / "id"
    if not path.exists():
        path.write_text(secrets.token_hex(4), encoding="ascii")
    return path.read_text(encoding="ascii").strip()
