"""The spool's stats/ directory: for every batch, what it was made of and which groups it has settled.

Written whole before the batch itself, so that after a crash the two agree: a batch that stands has its entry, and an
entry without a batch is written again. Blocking: call from a thread.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import structlog

from node.state.files import read_if_there, write_whole
from protocol.errors import UNREADABLE

log = structlog.get_logger()


class BatchEntry(msgspec.Struct, frozen=True):
    """metrics: node.recipe.stats of the batch; settled: names of groups that may not be used again; seconds: what
    making it took."""

    step: int
    metrics: dict[str, Any]
    settled: list[str]
    seconds: dict[str, float] = {}


class BatchLog:
    """Entries below `spool`/stats."""

    def __init__(self, spool: Path) -> None:
        self._directory = spool / "stats"

    def _path(self, step: int) -> Path:
        return self._directory / f"batch-{step:06d}.json"

    def write(self, entry: BatchEntry) -> None:
        write_whole(self._path(entry.step), msgspec.json.encode(entry))

    def read(self, step: int) -> BatchEntry | None:
        """None if there is none, or it is damaged, which is told. Raises OSError where it cannot be read."""
        data = read_if_there(self._path(step))
        try:
            return msgspec.json.decode(data, type=BatchEntry) if data is not None else None
        except UNREADABLE as error:
            log.warning("batch.entry_damaged", path=str(self._path(step)), why=str(error))
            return None

    def settled(self, before: int) -> set[str]:
        """Names of all groups that batches of steps below `before` have settled."""
        return {name for entry in self._entries(before) for name in entry.settled}

    def newest_unread(self, before: int) -> int:
        """The newest step below `before` of whose batch nothing is known, as its entry is damaged or gone; -1 where
        there is none. It may have settled any group of the policies up to its own."""
        return next((step for step in reversed(range(before)) if self.read(step) is None), -1)

    def staleness(self, before: int) -> Counter[int]:
        """Rollouts that batches of steps below `before` learnt from, by their age in steps."""
        ages: Counter[int] = Counter()
        for entry in self._entries(before):
            ages.update({int(age): int(n) for age, n in entry.metrics.get("staleness", {}).items()})
        return ages

    def tokens(self, before: int) -> int:
        """Output tokens that batches of steps below `before` looked at."""
        return sum(int(entry.metrics.get("output_tokens", 0)) for entry in self._entries(before))

    def _entries(self, before: int) -> Iterator[BatchEntry]:
        return filter(None, map(self.read, range(before)))
