"""The two curves of a page, from what /status says at one moment after another, and the file that keeps them.

`steps` has a row per step, `load` one per ten seconds. Both are thinned as they grow: old points are merged,
evenly over the whole past.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio

from node.status_schema import DaemonStatus, RunPart, TrainingPart, WorkPart
from node.web.page.plain import number

MOST, FRESH = 800, 400
"""Points of a series, and how many of them are never merged."""
STEP_COLUMNS = (
    "step", "at", "eval", "train", "told", "own", "rate", "seconds", "age", "entropy", "grad_norm", "mismatch",
    "error",
)  # fmt: skip
"""eval, train: mean rewards by the trainer's own record; told: by its heartbeat; own: of this node's files, its own
estimate; rate: tokens/s learnt; age: mean steps that rollouts were behind; error: standard error of eval.
New columns come last: what was kept without them is read."""
LOAD_COLUMNS = ("at", "members", "rate", "step")
"""members: alive; rate: tokens per second of all workers together; step: newest held here."""


Values = tuple[float | None, ...]


class Point(msgspec.Struct, frozen=True):
    """x: a step, or a count of intervals; values: one of each column, None where it is not known."""

    x: int
    values: Values


class Series:
    """Points by x. changed: those that were set since it was last taken; whole: old ones were merged meanwhile."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns[1:]
        self._points: dict[int, Values] = {}
        self._newest = -1
        self.changed: set[int] = set()
        self.whole = False

    def load(self, points: Sequence[Point]) -> None:
        """What was kept of it, beside what came since; points with more columns than there are now are left out."""
        more = len(self._columns)
        # More columns than now were written by a later version: which is which, only that one knows.
        kept = {p.x: (*p.values, *[None] * (more - len(p.values))) for p in points if len(p.values) <= more}
        self._points = kept | self._points
        self._newest = max(self._points, default=-1)
        self._bound()

    @property
    def points(self) -> list[Point]:
        """Ascending."""
        return [Point(x, self._points[x]) for x in sorted(self._points)]

    def __contains__(self, x: object) -> bool:
        return x in self._points

    @property
    def rows(self) -> dict[int, tuple[float | None, ...]]:
        """By x, with it as the first column."""
        return {x: (x, *values) for x, values in self._points.items()}

    def put(self, x: int, **known: float | int | None) -> None:
        """Set columns of a point; those that are None stay as they were. What is too old is part of a merged point."""
        before = self._points.get(x)
        # As a point of its own it would count beside the average that it is already in.
        if before is None and x <= self._newest - FRESH:
            return
        told = tuple(known.get(name) for name in self._columns)
        merged = told if before is None else tuple(b if a is None else a for a, b in zip(told, before, strict=True))
        if merged == before:
            return
        self._points[x] = merged
        self._newest = max(self._newest, x)
        self.changed.add(x)
        self._bound()

    def take(self) -> tuple[list[Point], bool]:
        """What must be written, and whether it stands for everything."""
        points = self.points if self.whole else [Point(x, self._points[x]) for x in sorted(self.changed)]
        whole, self.whole, self.changed = self.whole, False, set()
        return points, whole

    def _bound(self) -> None:
        if len(self._points) > MOST:
            # Points that are left when there were too many: viewers get the whole series then, so not with every step.
            self._points = {point.x: point.values for point in thin(self.points, 650, FRESH)}
            self.whole = True


class Curves:
    """Fed with statuses; holds both series."""

    def __init__(self) -> None:
        self.steps, self.load = Series(STEP_COLUMNS), Series(LOAD_COLUMNS)
        self._latest = -1

    @property
    def by_name(self) -> dict[str, Series]:
        return {"steps": self.steps, "load": self.load}

    def feed(self, status: DaemonStatus, now: float) -> None:
        """now: unix seconds."""
        self._feed_load(status, now)
        self._feed_held(status, now)
        if status.training is not None:
            self._feed_training(status.training, now)

    def _feed_load(self, status: DaemonStatus, now: float) -> None:
        alive = [row for row in status.swarm if row.state in ("healthy", "unhealthy")]
        rate = sum(number(row.tokens_per_second) or 0 for row in alive if row.role == "worker")
        at, step = int(now // 10), _step(status)  # seconds of one row of `load`
        self.load.put(at, members=len(alive), rate=round(rate, 1), step=step)

    def _feed_held(self, status: DaemonStatus, now: float) -> None:
        """What any node knows of the step that it holds."""
        step, run, work = _step(status), status.run or RunPart(), status.work or WorkPart()
        if step is None or (status.training and step > self._latest):
            return  # the trainer's own record has it better
        told, own = number(run.reward), number(work.last_reward_estimate)
        at = None if step in self.steps else round(now)
        self.steps.put(step, at=at, told=told, own=own)

    def _feed_training(self, training: TrainingPart, now: float) -> None:
        for name, pairs in (("eval", training.reward_eval), ("train", training.reward_train)):
            for step, value in pairs:
                self.steps.put(step, **{name: number(value)})
        latest = training.latest
        step = latest.get("step")
        if isinstance(step, int) and step > self._latest:
            self._latest = step
            self._feed_step(step, latest, now)

    def _feed_step(self, step: int, latest: Mapping[str, Any], now: float) -> None:
        self.steps.put(
            step,
            at=round(number(latest.get("at")) or now),
            eval=number(latest.get("eval_reward")),
            train=number(latest.get("reward_mean")),
            rate=number(latest.get("tokens_per_second")),
            seconds=number((latest.get("seconds") or {}).get("step")),
            age=_mean_age(latest.get("staleness")),
            entropy=number(latest.get("entropy")),
            grad_norm=number(latest.get("grad_norm")),
            mismatch=number(latest.get("mismatch_kl")),
            error=number(latest.get("eval_error")),
        )


def _step(status: DaemonStatus) -> int | None:
    step = status.run.step if status.run else None
    return step if step is not None and step >= 0 else None


def _mean_age(ages: Any) -> float | None:
    """Mean of ages in steps, weighted with their rollouts."""
    counts = {int(age): count for age, count in (ages or {}).items() if str(age).isdecimal()}
    total = sum(counts.values())
    return round(sum(age * count for age, count in counts.items()) / total, 4) if total else None


def thin(points: list[Point], most: int, recent: int) -> list[Point]:
    """At most `most` points, ascending: the newest `recent` as they are, older ones merged by ranges of x whose width
    is the least power of two that suffices. What was merged before is merged no further than now needed.

    Halving the older part at every turn would leave nothing of the beginning."""
    if len(points) <= most:
        return points
    old, new = points[:-recent], points[-recent:]
    width = 2
    while len(merged := _merge(old, width)) > most - recent:
        width *= 2
    return [*merged, *new]


def _merge(points: Iterable[Point], width: int) -> list[Point]:
    return [_mean(list(group)) for _, group in groupby(points, key=lambda point: point.x // width)]


def _mean(points: list[Point]) -> Point:
    if len(points) == 1:
        return points[0]
    return Point(points[-1].x, tuple(_mean_of(column) for column in zip(*(p.values for p in points), strict=True)))


def _mean_of(column: tuple[float | None, ...]) -> float | None:
    known = [value for value in column if value is not None]
    return round(sum(known) / len(known), 4) if known else None


# Series that survive a restart, in one SQLite file of bounded size.
# A history is no promise: one that is damaged, or of another run, is begun anew, and one that cannot be written costs
# no more than itself.
log = structlog.get_logger(__name__)

MAX_BYTES = 4 * 1024 * 1024
"""Of the file; what SQLite needs beside it while it writes is less."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS points (series TEXT, x INTEGER, data TEXT, PRIMARY KEY (series, x)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""


class SeriesFile:
    """path: of the file, made if there is none. Blocking: call from a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def read(self, run: str) -> dict[str, list[Point]]:
        """Every series of this run, ascending; of another run, or from a file that is none of ours: nothing, and
        what stands there goes. Raises OSError and sqlite3.Error where no file can be had, or another program holds
        it."""
        try:
            return self._read(run)
        except (sqlite3.DatabaseError, msgspec.MsgspecError) as error:
            self.close()
            # Another program that reads or copies the file holds it for a while, and damages nothing.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise
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
        wanted = f"1 {run}"  # form of the file, and whose it is
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
        page_bytes = 4096
        if self._db is None:
            db = sqlite3.connect(self._path, isolation_level="DEFERRED", check_same_thread=False)
            db.execute(f"PRAGMA page_size={page_bytes}")
            # SQLite itself keeps to it: a bug in thinning can then not fill a user's disk.
            db.execute(f"PRAGMA max_page_count={MAX_BYTES // page_bytes}")
            # A power cut may lose the last points, which is no harm; the file itself stays sound.
            db.execute("PRAGMA synchronous=NORMAL")
            db.executescript(_SCHEMA)
            self._db = db
        return self._db


def _put(db: sqlite3.Connection, series: str, points: Sequence[Point]) -> None:
    rows = ((series, point.x, msgspec.json.encode(point.values).decode()) for point in points)
    db.executemany("INSERT OR REPLACE INTO points VALUES (?, ?, ?)", rows)


class SeriesRecorder:
    """Keeps the curves on disk, beside the event loop. What cannot be written is said, kept in memory, and tried again.

    fault: why the history is not on the disk now, None where it is."""

    def __init__(self, path: Path, curves: Curves) -> None:
        self._history = SeriesFile(path)
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
            # Not taken for another run's: what stands there is read as soon as it can be.
            return self._note(error)
        self._run, self.fault = run, None
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
