"""What the owner of tasks keeps of them on disk: the specification, and of each shard its file, its report, its record.

A shard's record is written last and once: whoever finds it finds the rest, and a second result of the same shard finds
its place taken. Read by the command line, too, without the daemon: these are plain files as they came, and it makes of
them what was asked for (`exports`). Blocking.
"""

import math
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from node.errors import StateError
from node.state.files import write_whole
from node.state.kept import kept
from protocol.blobs import describe
from protocol.tasks import TaskId, TaskSpec, decode_task

SPEC, STATE = "task.json", "state.json"


class VerdictRecord(msgspec.Struct, frozen=True):
    """A validator's word on a shard's file. signature: 65 bytes as hex, over the verdict, for the contract."""

    validator: str
    outcome: int
    reason: int
    signature: str
    report_root: str = ""


class ShardRecord(msgspec.Struct, frozen=True):
    """Whose result of a shard was accepted. work, file_root: 64 hex digits; signature: over the commitment, 65 bytes as
    hex; at: unix seconds when it was collected."""

    shard: int
    node: str
    work: str
    file_root: str
    units: int
    signature: str
    verdicts: tuple[VerdictRecord, ...]
    at: float
    epoch: int = 0


class TaskState(msgspec.Struct, frozen=True):
    """offered, closed: unix seconds; closed: None as long as results are waited for."""

    offered: float
    closed: float | None = None
    cancelled: bool = False


class TaskFolder:
    """One task's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def id(self) -> TaskId:
        return bytes.fromhex(self.path.name)

    def create(self, encoded: bytes) -> None:
        """Begin to keep a task; one that is kept already stays as it is."""
        if not (self.path / SPEC).exists():
            (self.path / "shards").mkdir(parents=True, exist_ok=True)
            self._write_state(TaskState(time.time()))
            # Last: a folder with a spec is a task, and everything else of it is there by then.
            write_whole(self.path / SPEC, encoded)

    @property
    def encoded(self) -> bytes:
        return (self.path / SPEC).read_bytes()

    def spec(self) -> TaskSpec:
        """Raises StateError where it cannot be read."""
        try:
            encoded = self.encoded
        except OSError as error:
            raise StateError(f"no task in {self.path}", str(error), "look at: intellect-node task status") from None
        return kept(self.path / SPEC, lambda: decode_task(encoded))

    def state(self) -> TaskState:
        """Raises StateError where it cannot be read."""
        try:
            data = (self.path / STATE).read_bytes()
        except OSError as error:
            raise StateError(f"no task in {self.path}", str(error), "look at: intellect-node task status") from None
        return kept(self.path / STATE, lambda: msgspec.json.decode(data, type=TaskState))

    def close(self, *, cancelled: bool = False) -> None:
        """Nothing more is waited for."""
        self._write_state(TaskState(self.state().offered, time.time(), cancelled))

    def add(self, record: ShardRecord, file: Path, report: bytes) -> bool:
        """Keep a shard's result; False if there is one already. file: the rollout file, or a review's report."""
        place = self._place(record.shard)
        if place.with_suffix(".json").exists():
            return False
        partial = place.with_suffix(".partial")
        # A copy: the file may be the store's, which evicts as it likes.
        shutil.copyfile(file, partial)
        os.replace(partial, place.with_suffix(".arrow"))
        write_whole(place.with_suffix(".report"), report)
        write_whole(place.with_suffix(".json"), msgspec.json.encode(record))
        return True

    def done(self) -> list[int]:
        """The shards whose results are here, ascending."""
        return sorted(int(path.stem) for path in (self.path / "shards").glob("*.json"))

    def results(self) -> Iterator[tuple[ShardRecord, bytes, bytes]]:
        """(record, file, report) of every shard that is here, in order."""
        return map(self.result, self.done())

    def result(self, shard: int) -> tuple[ShardRecord, bytes, bytes]:
        """The same of one that is here. Raises StateError for files that were changed."""
        place = self._place(shard)
        try:
            told, file, report = (place.with_suffix(end).read_bytes() for end in (".json", ".arrow", ".report"))
        except OSError as error:
            why = f"shard {shard} of the task cannot be read"
            raise StateError(why, str(error), f"look at {self.path}") from error
        record = kept(place.with_suffix(".json"), lambda: msgspec.json.decode(told, type=ShardRecord))
        # Bought, and read for years: a bit that the disk has changed is no result.
        kept(place.with_suffix(".arrow"), lambda: _is(file, record.file_root))
        return record, file, report

    def _place(self, shard: int) -> Path:
        return self.path / "shards" / f"{shard:05}"

    def _write_state(self, state: TaskState) -> None:
        write_whole(self.path / STATE, msgspec.json.encode(state))


def _is(data: bytes, root: str) -> None:
    """Raises ValueError for another blob."""
    if describe(data).root.hex() != root:
        raise ValueError(f"its root is not {root[:16]}...")


def folders(directory: Path) -> list[TaskFolder]:
    """The tasks that are kept below `directory`, oldest first, and behind them those whose state cannot be read."""
    found = [TaskFolder(path.parent) for path in directory.glob(f"*/{SPEC}") if len(path.parent.name) == 64]
    return sorted(found, key=_offered_at)


def _offered_at(folder: TaskFolder) -> float:
    try:
        return folder.state().offered
    # Who was killed while it removed a task has left a part of it.
    except StateError:
        return math.inf


def folder_of(directory: Path, id: TaskId) -> TaskFolder:
    return TaskFolder(directory / id.hex())
