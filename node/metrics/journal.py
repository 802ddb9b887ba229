"""metrics.jsonl: one JSON object per step, each step once, however often its writer was killed.

Blocking: call from a thread.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

MOST = 10
"""Values that the mean of an end is taken over, where there are enough of them."""


class Ends(msgspec.Struct, frozen=True):
    """first, last: means of the `window` values at either end; first is None of fewer than two values."""

    first: float | None
    last: float | None
    window: int

    @property
    def words(self) -> str:
        """'first and last ten evaluations'"""
        number = {1: "", MOST: " ten"}.get(self.window, f" {self.window}")
        return f"first and last{number} evaluation{'s' if self.window > 1 else ''}"


def ends_of(values: Sequence[float]) -> Ends:
    """Of fewer than 20 values the halves are compared: ends that overlap would hide what lies between them."""
    if not values:
        return Ends(None, None, 0)
    if len(values) == 1:
        return Ends(None, values[0], 1)
    window = min(MOST, len(values) // 2)
    return Ends(fmean(values[:window]), fmean(values[-window:]), window)


MAX_LINE = 1 << 20


class StepJournal:
    """Appends records to `path`; knows the newest step that stands there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.newest = -1
        self._mend()

    def append(self, record: Mapping[str, Any]) -> bool:
        """Write the record of a new step; False if that step (or a later one) is there already."""
        step = int(record["step"])
        if step <= self.newest:
            return False
        line = json.dumps(record, sort_keys=True) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self.newest = step
        return True

    def _mend(self) -> None:
        """Cut off what a killed writer left of its last line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            return
        whole = 0
        with self.path.open("rb") as file:
            for line in file:
                record = _parsed(line)
                # A line without an end may be a whole object all the same: what comes next would be appended to it.
                if record is None or not line.endswith(b"\n"):
                    break
                whole += len(line)
                self.newest = max(self.newest, int(record["step"]))
        if whole < self.path.stat().st_size:
            os.truncate(self.path, whole)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a metrics.jsonl in order; unreadable lines are left out."""
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                record = _parsed(line)
                if record is not None:
                    yield record
    except FileNotFoundError:
        return


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
