"""What this node has promised or is owed, in SQLite before it is said aloud.

`said` holds every signed message under a key that can be used once: a second, different statement for
the same slot raises instead of becoming an equivocation. Methods block for a disk write; call them through
`Journal.do`, which runs them in one thread, in order. What others may hold this node to goes through
`Journal.promise`, which waits for the pen (`node.state.pen`).
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from node.errors import StateError
from node.state.pen import Fence, Pen, PenShut
from node.state.tables import Form, open_table, refused, resealed, sealed
from protocol.identity import Address
from protocol.statements import Accepted

T = TypeVar("T")
MOST_SAID, FORGET_EVERY = 200_000, 1024
"""Messages after which own verdicts are forgotten: 150 MB. A work that old is of a policy that no register takes work
for any more, so nobody can ask for a second word."""
UNCLEAR = -1
"""The line of works of which nobody can say any more whether a table has them."""
MOST_TABLED = 1_024
"""Epochs of which it is remembered what their table had, the newest."""
PAY = "pay"
"""The fact under which the state of the node's pay is kept, as PayRecord."""
TABLE = "posted_table"
"""The fact under which the newest posted table of earnings is kept."""
BOOT, OPENED = "boot", "pen_opened"
"""The facts under which the last start's generation is kept, and that of the start that opened the pen last."""
IMPORTED = "imported"
"""The fact of a journal that came in a state file, until its pen was open."""
WORDS, FENCE = "words", "fence"
"""Those of how many promises were made, and of what is not signed any more (`Fence`)."""
RUNS_COUNTED = 16
"""Runs whose counters are kept, the newest."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS said (
    kind TEXT, slot BLOB, raw BLOB, at REAL,
    {sealed("kind, slot, raw, at")},
    PRIMARY KEY (kind, slot)
);
CREATE TABLE IF NOT EXISTS facts (
    name TEXT PRIMARY KEY, value BLOB,
    {sealed("name, value")}
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    root BLOB PRIMARY KEY, policy BLOB, idx INTEGER, units INTEGER, made_at REAL, state TEXT, epoch INTEGER,
    run BLOB, step INTEGER, why TEXT, work BLOB, line INTEGER,
    {sealed("root, policy, idx, units, made_at, state, epoch, run, step, why, work, line")}
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tallies (
    run BLOB, part TEXT, name TEXT, count INTEGER,
    {sealed("run, part, name, count")},
    PRIMARY KEY (run, part, name)
);
CREATE TABLE IF NOT EXISTS consumed (
    root BLOB PRIMARY KEY, step INTEGER,
    {sealed("root, step")}
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS consumed_at ON consumed (step);
CREATE INDEX IF NOT EXISTS files_of ON files (epoch);
CREATE TABLE IF NOT EXISTS tabled (
    epoch INTEGER PRIMARY KEY, certified INTEGER, units INTEGER, line INTEGER,
    {sealed("epoch, certified, units, line")}
);
CREATE TABLE IF NOT EXISTS certificates (
    work BLOB, validator TEXT, epoch INTEGER, node TEXT, units INTEGER, signature BLOB,
    {sealed("work, validator, epoch, node, units, signature")},
    PRIMARY KEY (work, validator)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS certificates_of ON certificates (validator, epoch);
CREATE INDEX IF NOT EXISTS certificates_for ON certificates (node, epoch);
CREATE TABLE IF NOT EXISTS earned (
    epoch INTEGER, work BLOB, node TEXT, units INTEGER,
    {sealed("epoch, work, node, units")},
    PRIMARY KEY (epoch, work, units)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sources (
    epoch INTEGER, node TEXT, root BLOB, size INTEGER,
    {sealed("epoch, node, root, size")},
    PRIMARY KEY (epoch, node, root)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refused (
    work BLOB PRIMARY KEY, epoch INTEGER, proof BLOB,
    {sealed("work, epoch, proof")}
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS invalidated (
    root BLOB PRIMARY KEY, step INTEGER, why TEXT,
    {sealed("root, step, why")}
) WITHOUT ROWID;
"""

FORM = Form(
    "the journal",
    2,
    _SCHEMA,
    {1: resealed(_SCHEMA)},
    care="it prevents double signing: with an older copy in its place, or none, the node first asks the pool what its "
    "key has signed (docs/moving.md)",
    counts=("tallies",),
)


class FileRecord(msgspec.Struct, frozen=True):
    """What became of one file: made_at in Unix seconds; state: pending, accepted, rejected; epoch: the pool's, in which
    it counts; step: of its policy, None for a task's; why: what validators said of a refused one; line: the node's line
    of the table that has the file, 0 where its table has not, UNCLEAR, or None before its table; certificates:
    validators that certified it alike.
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
    certificates: int = 0


class PayRecord(msgspec.Struct, frozen=True):
    """What is known of this node's pay. root: of the table that was looked at last; it covers first..through, and
    took the node's line from `before` to `line`; claimed: units; quorum, and the pool's times in seconds."""

    root: bytes
    first: int
    through: int
    before: int
    line: int
    claimed: int
    quorum: int
    started_at: int
    epoch_seconds: int
    window: int

    def claimable_at(self, epoch: int) -> int:
        """From when on, by the chain's clock, a table may have what was earned in this epoch."""
        return self.started_at + (epoch + 1) * self.epoch_seconds + self.window


class Tabled(msgspec.Struct, frozen=True):
    """What a posted table has of one epoch of this node's works. certified: units by then; units: of them in the table,
    None where nobody can say; line: as in FileRecord."""

    epoch: int
    certified: int
    units: int | None
    line: int


class WorkDone(msgspec.Struct, frozen=True):
    """What a worker did for one run. counts: state -> files; refused: reason -> files; units: of all files."""

    counts: dict[str, int]
    refused: Counter[str]
    units: int

    def told(self) -> dict[str, Any]:
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
        "(SELECT count(*) AS n FROM certificates WHERE certificates.work = files.work GROUP BY node, epoch, units)) "
        "FROM files WHERE made_at >= ? ORDER BY made_at DESC LIMIT ?"
    )
    return [FileRecord(*row) for row in journal.execute(query, (since, most))]


class Journal:
    """One database per state directory; one writer. pen: whether it may promise now."""

    def __init__(self, path: Path, pen: Pen | None = None) -> None:
        self.pen = pen or Pen()
        # One thread at a time: sqlite3 connections are not reentrant, and calls keep the order they were made in.
        self._limiter = trio.CapacityLimiter(1)
        self._path = path
        # Durable: a signature that leaves before its row is on disk can be signed a second time after a power cut.
        self._db = open_table(path, FORM)
        kept = self.recall(FENCE)
        self.fence = msgspec.msgpack.decode(kept, type=Fence) if kept else Fence()
        """What is not signed any more, since a daemon whose journal this one has not may have signed it."""

    async def do(self, work: Callable[..., T], *args: object) -> T:
        """Run one of the methods below in the journal's thread."""
        with refused(self._path, FORM):
            return await trio.to_thread.run_sync(lambda: work(*args), limiter=self._limiter)

    async def promise(self, work: Callable[..., T], *args: object, step: int = -1, task: bytes | None = None) -> T:
        """Run what journals a signed word, before it is said: once the pen is open, and no other daemon is heard with
        this key. step, task: what the word is about, as a Fence has it; -1 for what costs nothing twice. Raises
        StateError for what lies under the fence."""
        while True:
            await self.pen.ready()
            try:
                return await self.do(self._promised, work, args, step, task)
            except PenShut:
                continue

    def _promised(self, work: Callable[..., T], args: tuple[object, ...], step: int, task: bytes | None) -> T:
        if not self.pen.may_write:
            raise PenShut
        if (step >= 0 or task is not None) and self.fence.covers(step, task):
            raise StateError(
                "will not sign what may have been signed before",
                f"a daemon whose journal this one has not may have worked on {'that task' if task else f'step {step}'}",
                "nothing to do: this node goes on with what comes next",
            )
        with self.at_once():
            found = work(*args)
            words = self.words() + 1
            self.remember(WORDS, words.to_bytes(8))
        self.pen.wrote(words)
        return found

    def words(self) -> int:
        """Promises that were made."""
        return int.from_bytes(self.recall(WORDS) or b"")

    def close_fence(self, fence: Fence) -> None:
        self.remember(FENCE, msgspec.msgpack.encode(fence))
        self.fence = fence

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def at_once(self) -> Generator[None]:
        """One transaction: all of it or nothing. One within another is a part of that."""
        if self._db.in_transaction:
            yield
            return
        with self._db:
            self._db.execute("BEGIN")
            yield

    def commit_file(self, slot: bytes, raw: bytes, *file: Any) -> None:
        """A worker's commitment and its file (as `add_file` has it), together or not at all."""
        with self.at_once():  # a commitment without its file record would be work that nobody claims pay for
            self.say("commitment", slot, raw)
            self.add_file(*file)

    def say(self, kind: str, slot: bytes, raw: bytes, at: float | None = None) -> None:
        """Record a signed message before it leaves; raises StateError if the slot holds another one. at: unix seconds,
        where it matters later when that was."""
        row = (kind, slot, raw, at)
        cursor = self._db.execute("INSERT OR IGNORE INTO said (kind, slot, raw, at) VALUES (?, ?, ?, ?)", row)
        # Of a new row only: where none was put in, `lastrowid` is another table's, whose numbers run ahead.
        number = cursor.lastrowid if cursor.rowcount == 1 else None
        # At every thousandth row only: the delete goes through all verdicts that are kept.
        if number and number % FORGET_EVERY == 0:
            self._db.execute(
                "DELETE FROM said WHERE kind IN ('verdict', 'recheck') AND rowid < ?", (number - MOST_SAID,)
            )
        # Read back rather than trusting the insert: equal bytes said twice are fine, as after a crash.
        if self.said(kind, slot) != raw:
            raise StateError(
                "will not sign twice for one slot",
                f"another {kind} for it is in the journal",
                "this is a defect, or another daemon runs with this key: run one daemon per key",
            )

    def adopt(self, kind: str, slot: bytes, raw: bytes) -> bool:
        """Take in a word of this node's key that another daemon said, as far as the slot is free; whether it was. A
        slot with another word is taken for good."""
        row = (kind, slot, raw)
        return self._db.execute("INSERT OR IGNORE INTO said (kind, slot, raw) VALUES (?, ?, ?)", row).rowcount > 0

    def said(self, kind: str, slot: bytes) -> bytes | None:
        """The message recorded for a slot."""
        row = self._db.execute("SELECT raw FROM said WHERE kind = ? AND slot = ?", (kind, slot)).fetchone()
        return row[0] if row else None

    def said_at(self, kind: str, slot: bytes) -> float | None:
        """When that was, if it was noted."""
        row = self._db.execute("SELECT at FROM said WHERE kind = ? AND slot = ?", (kind, slot)).fetchone()
        return row[0] if row else None

    def last_said(self, kind: str, last: int) -> list[bytes]:
        """The newest messages of a kind, oldest first."""
        query = "SELECT raw FROM said WHERE kind = ? ORDER BY rowid DESC LIMIT ?"
        return [row[0] for row in reversed(self._db.execute(query, (kind, last)).fetchall())]

    def newest_slot(self, kind: str) -> bytes | None:
        """The highest slot of a kind that holds a message."""
        return self._db.execute("SELECT max(slot) FROM said WHERE kind = ?", (kind,)).fetchone()[0]

    def count_said(self, kind: str, prefix: bytes) -> int:
        """How many slots of a kind start with `prefix`."""
        query = "SELECT count(*) FROM said WHERE kind = ? AND slot >= ? AND slot < ?"
        return self._db.execute(query, (kind, prefix, prefix + b"\xff" * 16)).fetchone()[0]

    def remember(self, name: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def booted(self, now: int) -> int:
        """Count a start: higher than all before, and by the clock (Unix seconds) where the journal is new, since its
        node may have had another one."""
        boot = max(self.boots() + 1, now)
        self.remember(BOOT, boot.to_bytes(8))
        self.pen.generation = boot
        return boot

    def examine(self, place: Path, *, first: bool) -> str:
        """Why this start is in doubt; empty where it is not. Before `booted`. place: of the mark; first: the node never
        was in this pool. Raises OSError."""
        opened = int.from_bytes(self.recall(OPENED) or b"")
        if self.recall(IMPORTED):
            first = False
            place.unlink(missing_ok=True)
        return self.pen.examine(place, self._path, (opened, self.boots()), self.words(), first=first)

    def take_pen(self, generation: int) -> None:
        """This start, by this generation, is the one that promises from now on: `Pen.open` comes next."""
        self.remember(BOOT, generation.to_bytes(8))
        self.pen.generation = generation
        # The mark first: killed in between, the next start finds the generation that the journal has by then.
        self.pen.wrote(self.words())
        self.remember(OPENED, generation.to_bytes(8))
        self.remember(IMPORTED, b"")

    def boots(self) -> int:
        """What `booted` said last; 0 where it never did."""
        return int.from_bytes(self.recall(BOOT) or b"")

    def pledge(self, window: int, rates: tuple[int, int]) -> bool:
        """Note the rates that a validator pledges for a window; False where others stand, which nothing replaces."""
        value = " ".join(map(str, rates)).encode()
        query = "INSERT OR IGNORE INTO facts VALUES (?, ?)"
        return self._db.execute(query, (f"lot_pledge_{window}", value)).rowcount > 0

    def pledged(self, window: int) -> tuple[int, int] | None:
        """The rates (of groups, of steps) that were pledged for a window."""
        raw = self.recall(f"lot_pledge_{window}")
        if raw is None:
            return None
        rate, steps = map(int, raw.split())
        return rate, steps

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

    def tallies(self, run: bytes) -> list[tuple[str, str, int]]:
        """(part, name, count) of every counter of a run."""
        return self._db.execute("SELECT part, name, count FROM tallies WHERE run = ?", (run,)).fetchall()

    def note_tallies(self, run: bytes, rows: list[tuple[str, str, int]]) -> None:
        """Counters of a run as they stand now; of the oldest runs they are forgotten."""
        newest = "SELECT run FROM tallies GROUP BY run ORDER BY max(rowid) DESC LIMIT ?"
        with self.at_once():
            self._db.executemany("INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?)", [(run, *row) for row in rows])
            self._db.execute(f"DELETE FROM tallies WHERE run NOT IN ({newest})", (RUNS_COUNTED,))  # noqa: S608 - ours

    def consume(self, roots: list[bytes], step: int) -> None:
        """These files train `step`; a file is used once."""
        with self.at_once():
            # Not OR IGNORE: a group that trained a step before raises here and trains no second one.
            self._db.executemany("INSERT INTO consumed VALUES (?, ?)", [(root, step) for root in roots])

    def forget_consumed(self, first_step: int) -> list[bytes]:
        """Free the files of batches that were never written, since the node died between the two, or that were taken
        back; which they are."""
        return [
            row[0] for row in self._db.execute("DELETE FROM consumed WHERE step >= ? RETURNING root", (first_step,))
        ]

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

    # certificates, and what validators make of them; epochs are the pool's

    def certify(self, validator: Address, statement: Accepted, signature: bytes) -> bytes | None:
        """Keep a validator's certificate; returns the signature that is kept, None where the validator has certified
        the work otherwise before."""
        row = (statement.work, validator, statement.epoch, statement.node, statement.units, signature)
        # The first certificate of a work stands: a validator must not sign for it in two ways.
        self._db.execute("INSERT OR IGNORE INTO certificates VALUES (?, ?, ?, ?, ?, ?)", row)
        kept = self.certificate(validator, statement.pool, statement.work)
        return kept[1] if kept and kept[0] == statement else None

    def certificate(self, validator: Address, pool: int, work: bytes) -> tuple[Accepted, bytes] | None:
        """What a validator certified of a work, with its signature."""
        query = "SELECT node, epoch, units, signature FROM certificates WHERE work = ? AND validator = ?"
        row = self._db.execute(query, (work, validator)).fetchone()
        return (Accepted(pool, row[0], row[1], work, row[2]), row[3]) if row else None

    def take_certificates(self, rows: list[tuple[Address, Accepted, bytes]], most: int) -> None:
        """Keep others' certificates; of each validator `most`: it crowds out its own, those of the oldest epochs."""
        said = [(a.work, validator, a.epoch, a.node, a.units, signature) for validator, a, signature in rows]
        beyond = (
            "DELETE FROM certificates WHERE validator = ? AND work IN "
            "(SELECT work FROM certificates WHERE validator = ? ORDER BY epoch DESC LIMIT -1 OFFSET ?)"
        )
        with self.at_once():
            self._db.executemany("INSERT OR IGNORE INTO certificates VALUES (?, ?, ?, ?, ?, ?)", said)
            # Bounded per validator: a dishonest one can fill its own share of the table and no other's.
            for validator in {row[0] for row in rows}:
                count = "SELECT count(*) FROM certificates WHERE validator = ?"
                if self._db.execute(count, (validator,)).fetchone()[0] > most:
                    self._db.execute(beyond, (validator, validator, most))

    def certificates_by(self, validator: Address, pool: int, most: int) -> list[tuple[Accepted, bytes]]:
        """The newest that a validator signed, with its signatures."""
        query = (
            "SELECT node, epoch, work, units, signature FROM certificates WHERE validator = ? "
            "ORDER BY epoch DESC LIMIT ?"
        )
        rows = self._db.execute(query, (validator, most)).fetchall()
        return [(Accepted(pool, *row[:4]), row[4]) for row in rows]

    def certificates(self, node: Address, epoch: int) -> dict[tuple[bytes, int], list[tuple[Address, bytes]]]:
        """(work, units) -> who certified it for the node, with the signatures."""
        query = (
            "SELECT work, units, validator, signature FROM certificates WHERE node = ? AND epoch = ? ORDER BY validator"
        )
        found: dict[tuple[bytes, int], list[tuple[Address, bytes]]] = {}
        for work, units, validator, signature in self._db.execute(query, (node, epoch)):
            found.setdefault((work, units), []).append((validator, signature))
        return found

    def certified_units(self, node: Address, least: int) -> dict[int, int]:
        """epoch -> units of the node's works that at least so many validators certified alike."""
        works = "SELECT epoch, units FROM certificates WHERE node = ? GROUP BY epoch, work, units HAVING count(*) >= ?"
        query = f"SELECT epoch, sum(units) FROM ({works}) GROUP BY epoch"  # noqa: S608 - constants
        return dict(self._db.execute(query, (node, least)).fetchall())

    def settle(self, node: Address, record: PayRecord, works: frozenset[bytes] | None, clear: bool) -> None:
        """A posted table covers the record's epochs: note what it has of the node's certified works, and what missed
        it. works: those that it has, None for all; not clear: nobody can say which."""
        query = (
            "SELECT epoch, work, units FROM certificates WHERE node = ? AND epoch BETWEEN ? AND ? "
            "GROUP BY epoch, work, units HAVING count(*) >= ?"
        )
        span = (record.first, record.through)
        certified, units = Counter[int](), Counter[int]()
        has: list[tuple[int, int, bytes]] = []
        line = record.line if clear else UNCLEAR
        for epoch, work, more in self._db.execute(query, (node, *span, record.quorum)).fetchall():
            certified[epoch] += more
            if works is None or work in works:
                units[epoch] += more
                has.append((line, epoch, work))
        rows = [(epoch, certified[epoch], units[epoch] if clear else None, line) for epoch in certified]
        with self.at_once():
            # First all of the span as missed, then those that the table has: in one transaction nobody sees the former.
            self._db.execute("UPDATE files SET line = 0 WHERE epoch BETWEEN ? AND ?", span)
            self._db.executemany("UPDATE files SET line = ? WHERE epoch = ? AND work = ?", has)
            self._db.executemany("INSERT OR REPLACE INTO tabled VALUES (?, ?, ?, ?)", rows)
            self._db.execute("DELETE FROM tabled WHERE epoch <= ?", (record.through - MOST_TABLED,))
            self.remember(PAY, msgspec.msgpack.encode(record))

    def tabled(self, most: int) -> list[Tabled]:
        """What posted tables have of this node's newest `most` epochs, oldest first."""
        query = "SELECT epoch, certified, units, line FROM tabled ORDER BY epoch DESC LIMIT ?"
        return [Tabled(*row) for row in reversed(self._db.execute(query, (most,)).fetchall())]

    def missed_units(self) -> int:
        """Units of this node's accepted or certified works that their table has not."""
        query = "SELECT coalesce(sum(units), 0) FROM files WHERE state = 'accepted' AND line = 0"
        files = self._db.execute(query).fetchone()[0]
        left_out = "SELECT coalesce(sum(certified - units), 0) FROM tabled"
        return max(int(files), int(self._db.execute(left_out).fetchone()[0]))

    def own_works(self, epoch: int) -> list[tuple[bytes, int]]:
        """(work, units) of this worker's files of an epoch that are not refused."""
        query = "SELECT work, units FROM files WHERE epoch = ? AND state != 'rejected'"
        return self._db.execute(query, (epoch,)).fetchall()

    def own_epochs(self, node: Address, first: int) -> list[int]:
        """Epochs from `first` on of which this node has files or certificates."""
        query = (
            "SELECT DISTINCT epoch FROM files WHERE epoch >= ?1 AND state != 'rejected' "
            "UNION SELECT DISTINCT epoch FROM certificates WHERE node = ?2 AND epoch >= ?1 ORDER BY 1"
        )
        return [row[0] for row in self._db.execute(query, (first, node))]

    def note_earned(
        self, epoch: int, node: Address, works: list[tuple[bytes, int]], source: tuple[bytes, int], most: int
    ) -> bool:
        """(work, units) of a node that a quorum certified, from a blob of (root, size); whether any of it is news. Of a
        node and epoch at most `most` works and as many blobs as have brought something."""
        known = self.earned_works(epoch, node)
        fresh = [(epoch, one[0], node, one[1]) for one in works if one not in known][: max(most - len(known), 0)]
        if not fresh:
            return False
        with self.at_once():
            self._db.executemany("INSERT OR IGNORE INTO earned VALUES (?, ?, ?, ?)", fresh)
            # This blob has all that earlier ones had, so they are no longer needed to prove the line.
            if known <= set(works):
                self._db.execute("DELETE FROM sources WHERE epoch = ? AND node = ?", (epoch, node))
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?, ?, ?)", (epoch, node, *source))
        return True

    def earned_works(self, epoch: int, node: Address) -> set[tuple[bytes, int]]:
        """(work, units) of a node that a quorum certified, as far as this one was shown."""
        query = "SELECT work, units FROM earned WHERE epoch = ? AND node = ?"
        return set(self._db.execute(query, (epoch, node)).fetchall())

    def earned_between(self, first: int, last: int) -> list[tuple[int, Address, int]]:
        """(epoch, node, units) of what quorums certified and none refused; of a work that two quorums certified
        otherwise, the less."""
        works = (
            "SELECT epoch, node, min(units) AS units FROM earned WHERE epoch BETWEEN ? AND ? "
            "AND work NOT IN (SELECT work FROM refused) GROUP BY epoch, node, work"
        )
        query = f"SELECT epoch, node, sum(units) FROM ({works}) GROUP BY epoch, node"  # noqa: S608 - constants
        return self._db.execute(query, (first, last)).fetchall()

    def sources(self, first: int, last: int) -> list[tuple[int, Address, bytes, int]]:
        """(epoch, node, root, size) of the blobs that it stands in."""
        query = "SELECT epoch, node, root, size FROM sources WHERE epoch BETWEEN ? AND ?"
        return self._db.execute(query, (first, last)).fetchall()

    def refuse(self, work: bytes, epoch: int, proof: bytes) -> bool:
        """A quorum refused a work, with the proof; whether that is news."""
        return self._db.execute("INSERT OR IGNORE INTO refused VALUES (?, ?, ?)", (work, epoch, proof)).rowcount > 0

    def is_refused(self, work: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM refused WHERE work = ?", (work,)).fetchone() is not None

    def refusals(self, first: int, last: int) -> list[bytes]:
        """Proofs against works that somebody showed certificates of."""
        query = (
            "SELECT proof FROM refused WHERE epoch BETWEEN ? AND ? AND work IN (SELECT work FROM earned) ORDER BY work"
        )
        return [row[0] for row in self._db.execute(query, (first, last))]

    def forget_epochs(self, through: int) -> None:
        """What a posted table covers counts no more, and nobody certifies it any more."""
        with self.at_once():
            # What was said stays (`said`): it is what keeps a restarted node from signing twice.
            for table in ("certificates", "earned", "sources", "refused"):
                self._db.execute(f"DELETE FROM {table} WHERE epoch <= ?", (through,))  # noqa: S608 - constants
