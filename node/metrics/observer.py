"""One step's numbers, from the learner and from the batch, as one record; alarms over them; and where they go.

Blocking: call `observe` from a thread.
"""

import importlib
import importlib.util
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog

from node.errors import ConfigError
from node.metrics.alarms import Alarm, AlarmBook
from node.metrics.journal import StepJournal, read_records
from protocol.run import RunSpec

# Other places for metrics: Weights & Biases, trackio, TensorBoard. Imported only when asked for.
# Blocking: call from a thread. Numbers inside tables become "table/name".


class Sink(Protocol):
    """Somewhere records go."""

    def write(self, record: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


Answers = Callable[[int], Path]
"""The file of a step's held-back answers, which need not be there."""
ANSWER = ("problem", "prompt", "answer", "reward", "length", "target", "finished")


class WandbSink:
    """Resumes the run of the same directory. Settings (project, entity, mode) are wandb's own: WANDB_PROJECT ...
    The held-back answers of each evaluation go as a table."""

    package = "wandb"

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any], answers: Answers | None = None) -> None:
        self._module = _module(self.package, self.package)
        self._answers = answers
        where = directory / self.package
        where.mkdir(parents=True, exist_ok=True)
        self._run = self._open(where, name, dict(settings))

    def _open(self, where: Path, name: str, settings: dict[str, Any]) -> Any:
        return self._module.init(dir=str(where), name=name, config=settings, id=_run_id(where), resume="allow")

    def write(self, record: Mapping[str, Any]) -> None:
        step, values = int(record["step"]), dict[str, Any](flat_numbers(record))
        if self._answers is not None and (rows := _rows(self._answers(step))):
            values["answers"] = self._table(rows)
        self._run.log(values, step=step)

    def _table(self, rows: list[list[Any]]) -> Any:
        return self._module.Table(columns=list(ANSWER), data=rows)

    def close(self) -> None:
        self._run.finish()


class TrackioSink(WandbSink):
    """The same by trackio, which has wandb's interface. Its project is $TRACKIO_PROJECT, else `intellect-node`; a run
    is known by its name alone."""

    package = "trackio"

    def _open(self, where: Path, name: str, settings: dict[str, Any]) -> Any:
        project = os.environ.get("TRACKIO_PROJECT", "intellect-node")
        return self._module.init(project, name=f"{name}-{_run_id(where)}", config=settings, resume="allow")


def _rows(path: Path) -> list[list[Any]]:
    """Of the answers in a file, in the order of ANSWER; none where there is no such file."""
    try:
        with path.open("rb") as file:
            told = msgspec.json.decode(file.read(4 << 20), type=list[dict[str, Any]])  # bytes of such a file
    except FileNotFoundError:
        return []
    return [[one.get(name) for name in ANSWER] for one in told]


class TensorBoardSink:
    """Event files in DIRECTORY/tensorboard."""

    def __init__(self, directory: Path, name: str, settings: Mapping[str, Any], answers: Answers | None = None) -> None:
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


_KINDS: dict[str, Callable[..., Sink]] = {
    "wandb": WandbSink,
    "trackio": TrackioSink,
    "tensorboard": TensorBoardSink,
}


def open_sinks(
    words: str, directory: Path, name: str, settings: Mapping[str, Any], answers: Answers | None = None
) -> list[Sink]:
    """The sinks that `words` asks for. Raises ConfigError for an unknown name or a package that is missing."""
    return [_KINDS[one](directory, name, settings, answers) for one in checked_names(words)]


def checked_names(words: str) -> list[str]:
    """Names of places with commas between, each once. Raises ConfigError for one that is unknown or not installed."""
    names = list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))
    for name in names:
        if name not in _KINDS:
            raise ConfigError("metrics cannot be sent", f"{name!r} is no place for them", f"use {' or '.join(_KINDS)}")
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


log = structlog.get_logger()


class Observer:
    """Writes DIRECTORY/metrics.jsonl. `latest`: the newest record; `alarms`: what rings now."""

    def __init__(self, run: RunSpec, directory: Path, sinks: Sequence[Sink] = ()) -> None:
        self._book = AlarmBook(run.alarms)
        self._sinks = list(sinks)
        self._lock = threading.Lock()
        self.latest: dict[str, Any] = {}
        self.rung: list[Alarm] = []
        self._journal = StepJournal(directory / "metrics.jsonl")
        for record in read_records(self._journal.path):  # a restarted node must not forget what it had seen
            self.latest = record
            self._book.feed(record)

    @property
    def path(self) -> Path:
        return self._journal.path

    @property
    def newest(self) -> int:
        """The last step that is on record."""
        return self._journal.newest

    @property
    def alarms(self) -> list[Alarm]:
        return list(self._book.active.values())

    def observe(
        self, learner: Mapping[str, Any], batch: Mapping[str, Any], seconds: Mapping[str, float]
    ) -> list[Alarm]:
        """Record the step that `learner` describes; a step that is on record already changes nothing.

        learner: the learner's metrics; batch: node.recipe.stats of the batch it learnt from, empty for step 0;
        seconds: the daemon's own times. Returns the alarms that begin to ring.
        """
        with self._lock:
            record = merged(learner, batch, seconds)
            # After a crash the learner may do a step again: its numbers are the same, and a second row would bend the
            # curves.
            if int(record["step"]) <= self._journal.newest:
                return []
            fresh = self._book.feed(record)
            if fresh:
                record["alarms"] = [{"name": alarm.name, "text": alarm.text} for alarm in fresh]
            self._journal.append(record)
            self.latest = record
            self._ring(fresh)
            # A copy: one that fails takes itself out of the list.
            for sink in list(self._sinks):
                self._send(sink, record)
            return fresh

    def wait(self, step: int, batches: int) -> None:
        """So many batches in a row had no signal, so that no step is there to record after `step`."""
        with self._lock:
            self._ring(self._book.wait(step, batches))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._sinks.clear()

    def _ring(self, fresh: Sequence[Alarm]) -> None:
        self.rung += fresh
        for alarm in fresh:
            log.warning(f"alarm.{alarm.name}", step=alarm.step, value=alarm.value, limit=alarm.limit, why=alarm.text)

    def _send(self, sink: Sink, record: Mapping[str, Any]) -> None:
        """A place that fails is left out from then on: training does not stop for a plot."""
        try:
            sink.write(record)
        except Exception as error:  # whatever a third party raises
            log.warning("metrics.sink_failed", sink=type(sink).__name__, error=f"{type(error).__name__}: {error}"[:300])
            self._sinks.remove(sink)


def open_observer(run: RunSpec, directory: Path, sinks: str, answers: Answers | None = None) -> Observer:
    """sinks: names with commas between, as settings have them; answers: where those of an evaluation are, for the
    sinks that show tables. Raises ConfigError for one that cannot be opened."""
    settings = dict(flat_numbers(msgspec.to_builtins(run)))
    return Observer(run, directory, open_sinks(sinks, directory, run.name, settings, answers))


def merged(learner: Mapping[str, Any], batch: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, Any]:
    """One flat record. The batch's numbers are of all groups that were looked at, so they win over the learner's,
    which stay as "trained_...". Numbers that are not finite are written as null."""
    record: dict[str, Any] = {"at": round(time.time(), 3), **learner}
    for name, value in batch.items():
        if name in learner and learner[name] != value and isinstance(value, int | float):
            record[f"trained_{name}"] = learner[name]
        record[name] = value
    performance = record.pop("performance", None)
    if isinstance(performance, Mapping):
        record.update(performance)
    record["seconds"] = {**(learner.get("seconds") or {}), **{name: round(t, 4) for name, t in seconds.items()}}
    if "tokens_per_second" not in record and record.get("updates") != 0:  # without an update, no token was learnt
        spent = record["seconds"].get("step")
        if spent and record.get("tokens"):
            record["tokens_per_second"] = round(record["tokens"] / spent, 1)
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in record.items()}
