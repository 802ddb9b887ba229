"""Keeps the curves on disk, beside the event loop. What cannot be written is said, kept in memory, and tried again."""

import sqlite3
from pathlib import Path

import structlog
import trio

from node.page.history import History
from node.page.series import Curves

log = structlog.get_logger(__name__)


class Recorder:
    """fault: why the history is not on the disk now, None where it is."""

    def __init__(self, path: Path, curves: Curves) -> None:
        self._history = History(path)
        self._curves = curves
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

    def close(self) -> None:
        self._history.close()

    def _note(self, error: Exception) -> None:
        if self.fault is None:
            log.warning("page.history_not_kept", why=str(error))
        self.fault = str(error)[:200]
