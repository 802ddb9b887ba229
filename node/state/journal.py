"""What this node has promised or is owed, in SQLite before it is said aloud.

`said` holds every signed message under a key that can be used once: a second, different statement for
the same slot raises instead of becoming an equivocation. Methods block for a disk write; call them through
`Journal.do`, which runs them in one thread, in order.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from node.errors import StateError
from protocol.work import Leaf

T = TypeVar("T")
CHUNK = 500
"""Names in one query."""
RUNS_COUNTED = 16
"""Runs whose counters are kept, the newest."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS said (kind TEXT, slot BLOB, raw BLOB, PRIMARY KEY (kind, slot));
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    root BLOB PRIMARY KEY, policy BLOB, idx INTEGER, units INTEGER, made_at REAL, state TEXT, epoch INTEGER,
    run BLOB, step INTEGER, why TEXT
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tallies (run BLOB, part TEXT, name TEXT, count INTEGER, PRIMARY KEY (run, part, name));
CREATE TABLE IF NOT EXISTS consumed (root BLOB PRIMARY KEY, step INTEGER) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS consumed_at ON consumed (step);
CREATE TABLE IF NOT EXISTS heard (
    work BLOB PRIMARY KEY, node TEXT, units INTEGER, at INTEGER, accepted INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS heard_of ON heard (node, accepted, at);
CREATE TABLE IF NOT EXISTS claimed (
    work BLOB, epoch INTEGER, root BLOB, at INTEGER, PRIMARY KEY (work, epoch, root)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS shown (
    node TEXT, epoch INTEGER, root BLOB, at INTEGER, PRIMARY KEY (node, epoch, root)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS invalidated (root BLOB PRIMARY KEY, step INTEGER, why TEXT) WITHOUT ROWID;
"""
_LATER = {"run": "BLOB", "step": "INTEGER", "why": "TEXT"}
"""Columns of `files` that journals of before do not have."""


class FileRecord(msgspec.Struct, frozen=True):
    """What became of one file (or of what else is paid): made_at in Unix seconds; state: pending, accepted, rejected;
    epoch: under which it went on chain, or None; step: of its policy, or None where an older program wrote the record;
    why: what validators said of a refused one.
    """

    root: bytes
    policy: bytes
    index: int
    units: int
    made_at: float
    state: str
    epoch: int | None
    step: int | None
    why: str | None


class WorkDone(msgspec.Struct, frozen=True):
    """What a worker did for one run. counts: state -> files; refused: reason -> files; units: of all files."""

    counts: dict[str, int]
    refused: Counter[str]
    units: int


def read_records(journal: sqlite3.Connection, most: int, since: float) -> list[FileRecord]:
    """The newest `most` records made at `since` (Unix seconds) or later, newest first."""
    query = (
        "SELECT root, policy, idx, units, made_at, state, epoch, step, why FROM files WHERE made_at >= ? "
        "ORDER BY made_at DESC LIMIT ?"
    )
    return [FileRecord(*row) for row in journal.execute(query, (since, most))]


class Journal:
    """One database per state directory; one writer."""

    def __init__(self, path: Path) -> None:
        self._limiter = trio.CapacityLimiter(1)
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self._widen()
        except sqlite3.DatabaseError as error:
            raise StateError(
                f"cannot use the journal {path}",
                str(error),
                "free disk space, or restore the file from a backup; do not delete it: it prevents double signing",
            ) from error

    def _widen(self) -> None:
        """Give a journal of before the columns that it lacks."""
        there = {row[1] for row in self._db.execute("PRAGMA table_info(files)")}
        for name, kind in _LATER.items():
            if name not in there:
                self._db.execute(f"ALTER TABLE files ADD COLUMN {name} {kind}")

    async def do(self, work: Callable[..., T], *args: object) -> T:
        """Run one of the methods below in the journal's thread."""
        try:
            return await trio.to_thread.run_sync(lambda: work(*args), limiter=self._limiter)
        except sqlite3.OperationalError as error:
            raise StateError("cannot write the journal", str(error), "free disk space and start again") from error

    def close(self) -> None:
        self._db.close()

    def commit_file(
        self,
        slot: bytes,
        raw: bytes,
        root: bytes,
        policy: bytes,
        index: int,
        units: int,
        made_at: float,
        run: bytes = b"",
        step: int | None = None,
    ) -> None:
        """A worker's commitment and its file, together or not at all. run: root of the run that it is for."""
        self._db.execute("BEGIN")
        try:
            self.say("commitment", slot, raw)
            self.add_file(root, policy, index, units, made_at, run, step)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def say(self, kind: str, slot: bytes, raw: bytes) -> None:
        """Record a signed message before it leaves; raises StateError if the slot holds another one."""
        self._db.execute("INSERT OR IGNORE INTO said VALUES (?, ?, ?)", (kind, slot, raw))
        if self.said(kind, slot) != raw:
            raise StateError(
                "will not sign twice for one slot",
                f"another {kind} for it is in the journal",
                "this is a defect or a copied state directory: run one daemon per key",
            )

    def said(self, kind: str, slot: bytes) -> bytes | None:
        """The message recorded for a slot."""
        row = self._db.execute("SELECT raw FROM said WHERE kind = ? AND slot = ?", (kind, slot)).fetchone()
        return row[0] if row else None

    def last_said(self, kind: str, last: int) -> list[bytes]:
        """The newest messages of a kind, oldest first."""
        query = "SELECT raw FROM said WHERE kind = ? ORDER BY rowid DESC LIMIT ?"
        return [row[0] for row in reversed(self._db.execute(query, (kind, last)).fetchall())]

    def count_said(self, kind: str, prefix: bytes) -> int:
        """How many slots of a kind start with `prefix`."""
        query = "SELECT count(*) FROM said WHERE kind = ? AND slot >= ? AND slot < ?"
        return self._db.execute(query, (kind, prefix, prefix + b"\xff" * 16)).fetchone()[0]

    def remember(self, name: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def recall(self, name: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def add_file(
        self,
        root: bytes,
        policy: bytes,
        index: int,
        units: int,
        made_at: float,
        run: bytes = b"",
        step: int | None = None,
    ) -> None:
        """A file this worker committed to."""
        self._add_record(root, policy, index, units, made_at, "pending", run, step)

    def earn(self, leaf: Leaf, made_at: float, run: bytes = b"", step: int | None = None) -> None:
        """Something else than a file that this node is paid for (`Leaf`), known to count. Once per root."""
        leaf_of = (leaf.file_root, leaf.policy_root, leaf.index, leaf.units)
        self._add_record(*leaf_of, made_at, "accepted", run, step)

    def _add_record(self, *values: bytes | float | str | None) -> None:
        names = "root, policy, idx, units, made_at, state, run, step"
        self._db.execute(f"INSERT OR IGNORE INTO files ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)  # noqa: S608 - ours

    def judge_file(self, root: bytes, state: str) -> None:
        """state: accepted or rejected."""
        self._db.execute("UPDATE files SET state = ? WHERE root = ? AND state = 'pending'", (state, root))

    def revoke_file(self, root: bytes) -> None:
        """A file that was accepted and is rejected after all, before it went on chain."""
        self._db.execute(
            "UPDATE files SET state = 'rejected' WHERE root = ? AND state = 'accepted' AND epoch IS NULL", (root,)
        )

    def note_reasons(self, root: bytes, why: str) -> None:
        """What validators said of a file that is refused."""
        self._db.execute("UPDATE files SET why = ? WHERE root = ?", (why, root))

    def work_done(self, run: bytes) -> WorkDone:
        """What this worker did for a run."""
        units = self._db.execute("SELECT coalesce(sum(units), 0) FROM files WHERE run = ?", (run,)).fetchone()[0]
        refused = "SELECT why FROM files WHERE run = ? AND state = 'rejected' AND why IS NOT NULL"
        reasons = [reason for (why,) in self._db.execute(refused, (run,)) for reason in why.split(", ")]
        return WorkDone(self.file_counts(run), Counter(reasons), units)

    def records(self, most: int, since: float = 0.0) -> list[FileRecord]:
        """The newest `most` records made at `since` or later, newest first."""
        return read_records(self._db, most, since)

    def unpaid_files(self, before: float, after: float = -1.0) -> list[Leaf]:
        """The accepted files made after one time and before another, not yet committed on chain."""
        return self._leaves("state = 'accepted' AND epoch IS NULL AND made_at < ? AND made_at > ?", before, after)

    def assign_epoch(self, roots: list[bytes], epoch: int) -> None:
        """The files go on chain under this epoch: recorded before the transaction is sent."""
        self._db.execute("BEGIN")
        self._db.executemany("UPDATE files SET epoch = ? WHERE root = ?", [(epoch, root) for root in roots])
        self._db.execute("COMMIT")

    def free_epoch(self, epoch: int) -> None:
        """The files were not committed under this epoch, and never will be."""
        self._db.execute("UPDATE files SET epoch = NULL WHERE epoch = ?", (epoch,))

    def epochs_from(self, first: int) -> list[int]:
        """Epochs that files went, or were to go, on chain under, from `first` on."""
        query = "SELECT DISTINCT epoch FROM files WHERE epoch >= ? ORDER BY epoch"
        return [row[0] for row in self._db.execute(query, (first,))]

    def files_of_epoch(self, epoch: int) -> list[Leaf]:
        """The files that went, or were to go, on chain under this epoch, in the order of its tree."""
        return self._leaves("epoch = ?", epoch)

    def file_counts(self, run: bytes) -> dict[str, int]:
        """state -> number of this worker's files in a run."""
        query = "SELECT state, count(*) FROM files WHERE run = ? GROUP BY state"
        return dict(self._db.execute(query, (run,)).fetchall())

    def tallies(self, run: bytes) -> list[tuple[str, str, int]]:
        """(part, name, count) of every counter of a run."""
        return self._db.execute("SELECT part, name, count FROM tallies WHERE run = ?", (run,)).fetchall()

    def note_tallies(self, run: bytes, rows: list[tuple[str, str, int]]) -> None:
        """Counters of a run as they stand now; of the oldest runs they are forgotten."""
        newest = "SELECT run FROM tallies GROUP BY run ORDER BY max(rowid) DESC LIMIT ?"
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?)", [(run, *row) for row in rows])
        self._db.execute(f"DELETE FROM tallies WHERE run NOT IN ({newest})", (RUNS_COUNTED,))  # noqa: S608 - ours
        self._db.execute("COMMIT")

    def consume(self, roots: list[bytes], step: int) -> None:
        """These files train `step`; a file is used once."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO consumed VALUES (?, ?)", [(root, step) for root in roots])
        self._db.execute("COMMIT")

    def forget_consumed(self, first_step: int) -> None:
        """Free the files of batches that were never written: the node died between the two."""
        self._db.execute("DELETE FROM consumed WHERE step >= ?", (first_step,))

    def invalidate(self, root: bytes, why: str) -> bool:
        """Record that a file which trained a step was rejected afterwards; whether it had and was not recorded yet.

        A step consumes a file or groups of it: names that begin with its root.
        """
        row = self._db.execute("SELECT min(step) FROM consumed WHERE substr(root, 1, 32) = ?", (root,)).fetchone()
        if row[0] is None:
            return False
        cursor = self._db.execute("INSERT OR IGNORE INTO invalidated VALUES (?, ?, ?)", (root, row[0], why))
        return cursor.rowcount > 0

    def invalidated(self) -> list[tuple[bytes, int, str]]:
        """(file root, step that it trained, why) of every file that was rejected too late."""
        return self._db.execute("SELECT root, step, why FROM invalidated ORDER BY step").fetchall()

    def consumed(self, first_step: int = 0) -> dict[bytes, int]:
        """file root -> step that used it, of that step and later ones."""
        rows = self._db.execute("SELECT root, step FROM consumed WHERE step >= ?", (first_step,))
        return dict(rows.fetchall())

    def trained_by(self, most: int) -> list[bytes]:
        """Roots of the files that trained the newest steps."""
        query = "SELECT substr(root, 1, 32) AS file FROM consumed GROUP BY file ORDER BY max(step) DESC LIMIT ?"
        return [row[0] for row in self._db.execute(query, (most,))]

    # what a validator has seen of others' work; times are those of the chain

    def note_heard(self, rows: list[tuple[bytes, str, int, int, bool]], most: int) -> None:
        """(work, node, units, at, whether the pool accepted it) of works; of each node `most` are kept, accepted ones
        and new ones first."""
        insert = (
            "INSERT INTO heard VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (work) DO UPDATE SET at = excluded.at, accepted = max(accepted, excluded.accepted)"
        )
        forget = (
            "DELETE FROM heard WHERE work IN "
            "(SELECT work FROM heard WHERE node = ? ORDER BY accepted DESC, at DESC LIMIT -1 OFFSET ?)"
        )
        self._db.execute("BEGIN")
        self._db.executemany(insert, rows)
        self._db.executemany(forget, [(node, most) for node in {row[1] for row in rows}])
        self._db.execute("COMMIT")

    def heard_of(self, node: str) -> dict[bytes, int]:
        """work -> units of everything that was heard of a node, as far back as is remembered."""
        return dict(self._db.execute("SELECT work, units FROM heard WHERE node = ?", (node,)).fetchall())

    def units_heard(self) -> int:
        """The units of everything that is remembered, whoever did it."""
        return self._db.execute("SELECT coalesce(sum(units), 0) FROM heard").fetchone()[0]

    def was_heard(self, work: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM heard WHERE work = ?", (work,)).fetchone() is not None

    def note_shown(self, node: str, epoch: int, root: bytes, works: list[bytes], at: int) -> list[bytes]:
        """A node showed what stands behind a root: remember that, and where its accepted works stand; returns those
        that are not known to be accepted."""
        self._db.execute("BEGIN")
        self._db.execute("INSERT OR IGNORE INTO shown VALUES (?, ?, ?, ?)", (node, epoch, root, at))
        known = {work for start in range(0, len(works), CHUNK) for work in self._accepted(works[start : start + CHUNK])}
        rows = [(work, epoch, root, at) for work in works if work in known]
        self._db.executemany("INSERT OR IGNORE INTO claimed VALUES (?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")
        return [work for work in works if work not in known]

    def _accepted(self, works: list[bytes]) -> list[bytes]:
        marks = ", ".join("?" * len(works))
        query = f"SELECT work FROM heard WHERE accepted = 1 AND work IN ({marks})"  # noqa: S608 - marks only
        return [row[0] for row in self._db.execute(query, works)]

    def was_shown(self, node: str, epoch: int, root: bytes) -> bool:
        query = "SELECT 1 FROM shown WHERE node = ? AND epoch = ? AND root = ?"
        return self._db.execute(query, (node, epoch, root)).fetchone() is not None

    def claims_elsewhere(self, epoch: int, root: bytes) -> list[tuple[int, bytes]]:
        """Other epochs (epoch, root) in which a work of this one stands, too."""
        query = (
            "SELECT DISTINCT other.epoch, other.root FROM claimed AS own "
            "JOIN claimed AS other ON other.work = own.work "
            "WHERE own.epoch = ? AND own.root = ? AND other.epoch != own.epoch LIMIT 64"
        )
        return self._db.execute(query, (epoch, root)).fetchall()

    def forget_work(self, before: int) -> None:
        """What a validator saw before a time can be in no epoch any more that is open."""
        for table in ("heard", "claimed", "shown"):
            self._db.execute(f"DELETE FROM {table} WHERE at < ?", (before,))  # noqa: S608 - constants

    def _leaves(self, condition: str, *values: float) -> list[Leaf]:
        query = f"SELECT policy, idx, root, units FROM files WHERE {condition} ORDER BY root"  # noqa: S608 - ours
        return [Leaf(*row) for row in self._db.execute(query, values)]
