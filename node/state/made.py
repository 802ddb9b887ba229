"""The files that this node committed to, and what became of each. Blocking: through `Journal.do`."""

import sqlite3
from collections import Counter
from typing import Any

import msgspec

from node.state.rows import JournalRows

UNCLEAR = -1
"""The line of works of which nobody can say any more whether a table has them."""


class FileRecord(msgspec.Struct, frozen=True):
    """What became of one file: made_at in Unix seconds; state: pending, accepted, rejected; epoch: the pool's, in which
    it counts; step: of its policy, None for a task's; why: what validators said of a refused one; line: the node's line
    of the table that has the file, 0 where its table has not, UNCLEAR, or None before its table; named: by
    so many validators in roots alike.
    """

    root: bytes
    policy: bytes
    index: int
    units: int
    made_at: float
    state: str
    epoch: int
    step: int | None
    why: str | None
    line: int | None = None
    named: int = 0


class WorkDone(msgspec.Struct, frozen=True):
    """What a worker did for one run. counts: state -> files; refused: reason -> files; units: of all files."""

    counts: dict[str, int]
    refused: Counter[str]
    units: int

    def status(self) -> dict[str, Any]:
        """For the status."""
        return {
            "files_committed": sum(self.counts.values()),
            "files_accepted": self.counts.get("accepted", 0),
            "files_rejected": self.counts.get("rejected", 0),
            "rejected_by_reason": dict(self.refused),
            "units": self.units,
        }


def read_records(journal: sqlite3.Connection, most: int, since: float) -> list[FileRecord]:
    """The newest `most` records made at `since` (Unix seconds) or later, newest first."""
    query = (
        "SELECT root, policy, idx, units, made_at, state, epoch, step, why, line, (SELECT coalesce(max(n), 0) FROM "
        "(SELECT count(*) AS n FROM leaves WHERE leaves.work = files.work GROUP BY node, epoch, units)) "
        "FROM files WHERE made_at >= ? ORDER BY made_at DESC LIMIT ?"
    )
    return [FileRecord(*row) for row in journal.execute(query, (since, most))]


class OwnFiles:
    """`Journal.files`."""

    def __init__(self, journal: "JournalRows") -> None:
        self._journal, self._db = journal, journal.db

    def add_file(
        self,
        root: bytes,
        policy: bytes,
        index: int,
        units: int,
        made_at: float,
        run: bytes = b"",
        step: int | None = None,
        epoch: int | None = None,
        work: bytes | None = None,
    ) -> None:
        """A file this worker committed to. run: root of the run that it is for; epoch: in which it counts; work: its
        id."""
        values = (root, policy, index, units, made_at, run, step, epoch, work)
        names = "root, policy, idx, units, made_at, run, step, epoch, work, state"
        self._db.execute(f"INSERT OR IGNORE INTO files ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending')", values)  # noqa: S608 - ours

    def judge_file(self, root: bytes, state: str) -> None:
        """state: accepted or rejected; what was accepted may be rejected after all."""
        # A quorum may take an acceptance back, never a refusal.
        query = "UPDATE files SET state = ? WHERE root = ? AND state != 'rejected'"
        self._db.execute(query, (state, root))

    def note_reasons(self, root: bytes, why: str) -> None:
        """What validators said of a file that is refused."""
        self._db.execute("UPDATE files SET why = ? WHERE root = ?", (why, root))

    def work_done(self, run: bytes) -> WorkDone:
        """What this worker did for a run."""
        units = self._db.execute("SELECT coalesce(sum(units), 0) FROM files WHERE run = ?", (run,)).fetchone()[0]
        refused = "SELECT why FROM files WHERE run = ? AND state = 'rejected' AND why IS NOT NULL"
        reasons = [reason for (why,) in self._db.execute(refused, (run,)) for reason in why.split(", ")]
        states = "SELECT state, count(*) FROM files WHERE run = ? GROUP BY state"
        return WorkDone(dict(self._db.execute(states, (run,)).fetchall()), Counter(reasons), units)

    def records(self, most: int, since: float = 0.0) -> list[FileRecord]:
        """The newest `most` records made at `since` or later, newest first."""
        return read_records(self._db, most, since)
