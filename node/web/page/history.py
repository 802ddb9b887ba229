"""Series that survive a restart, in one SQLite file of bounded size.

A history is no promise: one that is damaged, or of another run, is begun anew, and one that cannot be written costs
no more than itself.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.web.page.series import Curves, Point, Values

log = structlog.get_logger(__name__)

PAGE_BYTES = 4096
MAX_BYTES = 4 * 1024 * 1024
"""Of the file; what SQLite needs beside it while it writes is less."""
FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS points (series TEXT, x INTEGER, data TEXT, PRIMARY KEY (series, x)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""


class History:
    """path: of the file, made if there is none. Blocking: call from a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def read(self, run: str) -> dict[str, list[Point]]:
        """Every series of this run, ascending; of another run, or from a file that is none of ours: nothing, and
        what stands there goes. Raises OSError and sqlite3.Error where no file can be had at all."""
        try:
            return self._read(run)
        except (sqlite3.DatabaseError, msgspec.MsgspecError):
            self.close()
            self._path.unlink(missing_ok=True)
            return self._read(run)

    def write(self, changed: Mapping[str, Sequence[Point]], rewritten: Mapping[str, Sequence[Point]]) -> None:
        """Put points, or whole series in place of what stands there: all of it or nothing. Raises sqlite3.Error."""
        db = self._open()
        with db:
            for series, points in rewritten.items():
                db.execute("DELETE FROM points WHERE series = ?", (series,))
                _put(db, series, points)
            for series, points in changed.items():
                _put(db, series, points)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _read(self, run: str) -> dict[str, list[Point]]:
        db = self._open()
        wanted = f"{FORMAT} {run}"
        kept = db.execute("SELECT value FROM facts WHERE name = 'run'").fetchone()
        with db:
            if kept != (wanted,):
                db.execute("DELETE FROM points")
                db.execute("INSERT OR REPLACE INTO facts VALUES ('run', ?)", (wanted,))
        found: dict[str, list[Point]] = {}
        for series, x, data in db.execute("SELECT series, x, data FROM points ORDER BY series, x"):
            found.setdefault(series, []).append(Point(x, msgspec.json.decode(data, type=Values)))
        return found

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            db = sqlite3.connect(self._path, isolation_level="DEFERRED", check_same_thread=False)
            db.execute(f"PRAGMA page_size={PAGE_BYTES}")
            # SQLite itself keeps to it: a bug in thinning can then not fill a user's disk.
            db.execute(f"PRAGMA max_page_count={MAX_BYTES // PAGE_BYTES}")
            # A power cut may lose the last points, which is no harm; the file itself stays sound.
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(_SCHEMA)
            self._db = db
        return self._db


def _put(db: sqlite3.Connection, series: str, points: Sequence[Point]) -> None:
    rows = ((series, point.x, msgspec.json.encode(point.values).decode()) for point in points)
    db.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?)", rows)


class Recorder:
    """Keeps the curves on disk, beside the event loop. What cannot be written is said, kept in memory, and tried again.

    fault: why the history is not on the disk now, None where it is."""

    def __init__(self, path: Path, curves: Curves) -> None:
        self._history = History(path)
        self._curves = curves
        # One at a time: the connection is shared by whichever thread has its turn.
        self._limiter = trio.CapacityLimiter(1)
        self._run = ""
        self.fault: str | None = None

    async def belong_to(self, run: str) -> None:
        """The curves are of this run: take up what is on the disk of it. Asked again with the same name: nothing."""
        if not run or run == self._run:
            return
        try:
            kept = await trio.to_thread.run_sync(self._history.read, run, limiter=self._limiter)
        except (OSError, sqlite3.Error) as error:
            self._note(error)
            kept = {}
        self._run = run
        for name, series in self._curves.by_name.items():
            series.load(kept.get(name, []))

    async def keep(self) -> None:
        """Write what has changed since the last time."""
        if not self._run:
            return
        taken = {name: series.take() for name, series in self._curves.by_name.items()}
        changed = {name: points for name, (points, whole) in taken.items() if points and not whole}
        rewritten = {name: points for name, (points, whole) in taken.items() if whole}
        if not changed and not rewritten:
            return
        try:
            await trio.to_thread.run_sync(self._history.write, changed, rewritten, limiter=self._limiter)
        except (OSError, sqlite3.Error) as error:
            self._note(error)
            for series in self._curves.by_name.values():
                series.whole = True  # what is missing on the disk is written with the rest
        else:
            self.fault = None

    async def close(self) -> None:
        """After whatever still reads or writes: SQLite crashes where a connection is closed under a statement."""
        await trio.to_thread.run_sync(self._history.close, limiter=self._limiter)

    def _note(self, error: Exception) -> None:
        if self.fault is None:
            log.warning("page.history_not_kept", why=str(error))
        self.fault = str(error)[:200]
