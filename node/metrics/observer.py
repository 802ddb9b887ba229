"""One step's numbers, from the learner and from the batch, as one record; alarms over them; and where they go.

Blocking: call `observe` from a thread.
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from node.metrics.alarms import Alarm, AlarmBook
from node.metrics.journal import StepJournal, read_records
from node.metrics.sinks import Sink, flat_numbers, open_sinks
from protocol.run import RunSpec

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
            self.rung += fresh
            for alarm in fresh:
                log.warning(
                    f"alarm.{alarm.name}", step=alarm.step, value=alarm.value, limit=alarm.limit, why=alarm.text
                )
            # A copy: one that fails takes itself out of the list.
            for sink in list(self._sinks):
                self._send(sink, record)
            return fresh

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self._sinks.clear()

    def _send(self, sink: Sink, record: Mapping[str, Any]) -> None:
        """A place that fails is left out from then on: training does not stop for a plot."""
        try:
            sink.write(record)
        except Exception as error:  # whatever a third party raises
            log.warning("metrics.sink_failed", sink=type(sink).__name__, error=f"{type(error).__name__}: {error}"[:300])
            self._sinks.remove(sink)


def open_observer(run: RunSpec, directory: Path, sinks: str) -> Observer:
    """sinks: names with commas between, as settings have them. Raises ConfigError for one that cannot be opened."""
    settings = dict(flat_numbers(msgspec.to_builtins(run)))
    return Observer(run, directory, open_sinks(sinks, directory, run.name, settings))


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
