"""What this node has promised or is owed, in SQLite before it is said aloud.

`said` holds every signed message under a key that can be used once: a second, different statement for
the same slot raises instead of becoming an equivocation. Methods block for a disk write; call them through
`Journal.do`, which runs them in one thread, in order. What others may hold this node to goes through
`Journal.promise`, which waits for the pen (`node.state.pen`).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from node.errors import StateError
from node.state.earned import EarnedBook
from node.state.made import OwnFiles
from node.state.pay import PayBook
from node.state.pen import Fence, Pen, PenShut
from node.state.tables import SchemaForm, open_table, refused, resealed, sealed
from node.state.used import UsedGroups

T = TypeVar("T")
TABLE = "posted_table"
"""The fact under which the newest posted table of earnings is kept."""
BOOT, OPENED = "boot", "pen_opened"
"""The facts under which the last start's generation is kept, and that of the start that opened the pen last."""
IMPORTED = "imported"
"""The fact of a journal that came in a state file, until its pen was open."""
WORDS, FENCE = "words", "fence"
"""Those of how many promises were made, and of what is not signed any more (`Fence`)."""
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
CREATE TABLE IF NOT EXISTS refused (
    work BLOB PRIMARY KEY, epoch INTEGER, proof BLOB,
    {sealed("work, epoch, proof")}
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS invalidated (
    root BLOB PRIMARY KEY, step INTEGER, why TEXT,
    {sealed("root, step, why")}
) WITHOUT ROWID;
"""

_LEAVES = f"""
CREATE TABLE IF NOT EXISTS leaves (
    work BLOB, validator TEXT, epoch INTEGER, node TEXT, units INTEGER, number INTEGER,
    {sealed("work, validator, epoch, node, units, number")},
    PRIMARY KEY (work, validator)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS leaves_of ON leaves (validator, epoch);
CREATE INDEX IF NOT EXISTS leaves_for ON leaves (node, epoch);
CREATE TABLE IF NOT EXISTS earned (
    epoch INTEGER, work BLOB, validator TEXT, node TEXT, units INTEGER,
    {sealed("epoch, work, validator, node, units")},
    PRIMARY KEY (epoch, work, validator)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS roots (
    epoch INTEGER, validator TEXT, number INTEGER, root BLOB, raw BLOB, whole INTEGER,
    {sealed("epoch, validator, number, root, raw, whole")},
    PRIMARY KEY (epoch, validator, number, root)
) WITHOUT ROWID;
"""
"""What nobody is paid for any more once its table is posted: made anew where a journal of before had other tables."""
_DROPPED = "".join(f"DROP TABLE IF EXISTS {one};" for one in ("certificates", "sources", "earned", "leaves", "roots"))
_LINES = f"""
CREATE TABLE IF NOT EXISTS lines (
    epoch INTEGER, validator TEXT, number INTEGER, units INTEGER, proof BLOB, raw BLOB,
    {sealed("epoch, validator, number, units, proof, raw")},
    PRIMARY KEY (epoch, validator, number)
) WITHOUT ROWID;
"""

FORM = SchemaForm(
    "the journal",
    4,
    _SCHEMA + _LEAVES + _LINES,
    {1: resealed(_SCHEMA), 2: _DROPPED + _LEAVES, 3: "DROP TABLE IF EXISTS lines;" + _LINES},
    care="it prevents double signing: with an older copy in its place, or none, the node first asks the pool what its "
    "key has signed (docs/moving.md)",
    counts=("tallies",),
)


class Journal:
    """One database per state directory; one writer. pen: whether it may promise now."""

    def __init__(self, path: Path, pen: Pen | None = None) -> None:
        self.pen = pen or Pen()
        # One thread at a time: sqlite3 connections are not reentrant, and calls keep the order they were made in.
        self._limiter = trio.CapacityLimiter(1)
        self._path = path
        # Durable: a signature that leaves before its row is on disk can be signed a second time after a power cut.
        self.db = self._db = open_table(path, FORM)
        self.slots = 0
        """Counts up with each slot that is taken: while it stands still, so does what is said."""
        self.files, self.used, self.pay, self.earned = OwnFiles(self), UsedGroups(self), PayBook(self), EarnedBook(self)
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
            # It was shut after we had asked: the journal's thread may have had other work before ours.
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

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def at_once(self) -> Generator[None]:
        """One transaction: all of it or nothing. One within another is a part of that."""
        if self._db.in_transaction:
            yield
            return
        try:
            with self._db:
                self._db.execute("BEGIN")
                yield
        except BaseException:
            self.slots += 1  # a slot that was taken within is free again
            raise

    def commit_file(self, slot: bytes, raw: bytes, *file: Any) -> None:
        """A worker's commitment and its file (as `OwnFiles.add_file` has it), together or not at all."""
        with self.at_once():  # a commitment without its file record would be work that nobody claims pay for
            self.say("commitment", slot, raw)
            self.files.add_file(*file)

    def say(self, kind: str, slot: bytes, raw: bytes, at: float | None = None) -> None:
        """Record a signed message before it leaves; raises StateError if the slot holds another one. at: unix seconds,
        where it matters later when that was."""
        row = (kind, slot, raw, at)
        cursor = self._db.execute("INSERT OR IGNORE INTO said (kind, slot, raw, at) VALUES (?, ?, ?, ?)", row)
        # Of a new row only: where none was put in, `lastrowid` is another table's, whose numbers run ahead.
        number = cursor.lastrowid if cursor.rowcount == 1 else None
        self.slots += cursor.rowcount
        # At every thousandth row only: the delete goes through all verdicts that are kept.
        # Messages after which own verdicts are forgotten: 150 MB. A work that old is of a policy that no register takes
        # work for any more, so nobody can ask for a second word.
        if number and number % 1024 == 0:
            self._db.execute("DELETE FROM said WHERE kind IN ('verdict', 'recheck') AND rowid < ?", (number - 200_000,))
        # Read back rather than trusting the insert: equal bytes said twice are fine, as after a crash.
        if self.said(kind, slot) != raw:
            raise StateError(
                "will not sign twice for one slot",
                f"another {kind} for it is in the journal",
                "this is a defect, or another daemon runs with this key: run one daemon per key",
            )

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

    def count_said(self, kind: str, prefix: bytes) -> int:
        """How many slots of a kind start with `prefix`."""
        query = "SELECT count(*) FROM said WHERE kind = ? AND slot >= ? AND slot < ?"
        return self._db.execute(query, (kind, prefix, prefix + b"\xff" * 16)).fetchone()[0]

    def remember(self, name: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def recall(self, name: str) -> bytes | None:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def tallies(self, run: bytes) -> list[tuple[str, str, int]]:
        """(part, name, count) of every counter of a run."""
        return self._db.execute("SELECT part, name, count FROM tallies WHERE run = ?", (run,)).fetchall()

    def note_tallies(self, run: bytes, rows: list[tuple[str, str, int]]) -> None:
        """Counters of a run as they stand now; of the oldest runs they are forgotten."""
        newest = "SELECT run FROM tallies GROUP BY run ORDER BY max(rowid) DESC LIMIT ?"
        with self.at_once():
            self._db.executemany("INSERT OR REPLACE INTO tallies VALUES (?, ?, ?, ?)", [(run, *row) for row in rows])
            # Runs whose counters are kept, the newest.
            self._db.execute(f"DELETE FROM tallies WHERE run NOT IN ({newest})", (16,))  # noqa: S608 - ours

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

    def close_fence(self, fence: Fence) -> None:
        self.remember(FENCE, msgspec.msgpack.encode(fence))
        self.fence = fence

    def adopt(self, kind: str, slot: bytes, raw: bytes) -> bool:
        """Take in a word of this node's key that another daemon said, as far as the slot is free; whether it was. A
        slot with another word is taken for good."""
        row = (kind, slot, raw)
        taken = self._db.execute("INSERT OR IGNORE INTO said (kind, slot, raw) VALUES (?, ?, ?)", row).rowcount
        self.slots += taken
        return taken > 0

    def newest_slot(self, kind: str) -> bytes | None:
        """The highest slot of a kind that holds a message."""
        return self._db.execute("SELECT max(slot) FROM said WHERE kind = ?", (kind,)).fetchone()[0]

    def note_once(self, name: str, value: bytes) -> bool:
        """Remember what nothing replaces; False where something else, or the same, stands already."""
        return self._db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value)).rowcount > 0
