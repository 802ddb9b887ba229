"""A daemon's log as its files hold it: the last events, and those that come, through every rotation.

Reads only; knows nothing of terminals. Lines are bounded, since a damaged file may hold anything.
"""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from node.logs import log_files

MAX_LINE = 1 << 20
POLL = 0.25
"""Seconds between two looks for new lines."""
LEVELS = ("debug", "info", "warning", "error", "critical")

Event = dict[str, Any]
Wanted = Callable[[Event], bool]


def at_least(level: str) -> Wanted:
    """Events of this level and worse ones; what has no level is not hidden."""
    least = LEVELS.index(level)
    return lambda event: event.get("level") not in LEVELS[:least]


def last_events(directory: Path, most: int, wanted: Wanted = lambda _: True) -> list[Event]:
    """The newest `most` events that are wanted, oldest first."""
    found: list[Event] = []
    for path in log_files(directory):
        if len(found) >= most:
            break
        try:
            with path.open("rb") as file:
                kept = deque((event for event in _events(file) if wanted(event)), maxlen=most - len(found))
        except FileNotFoundError:
            continue
        found = [*kept, *found]
    return found


class Follower:
    """The events that are written from now on, whichever file they land in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = self._open(log_files(directory)[0])
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def events(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[Event]:
        """Without end; `sleep` is called when there is nothing new."""
        while True:
            yield from self.new()
            sleep(POLL)

    def new(self) -> Iterator[Event]:
        """What was written since the last look."""
        while True:
            if self._file is not None:
                yield from _events(self._file, whole=not self._was_rotated())
            following = self._next()
            if following is None:
                return
            self.close()
            self._file = following

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _was_rotated(self) -> bool:
        return self._place() != 0

    def _place(self) -> int | None:
        """Which of the log's files is the open one: 0 the one that is written; None: none any more."""
        if self._file is None:
            return None
        own = os.fstat(self._file.fileno()).st_ino
        return next((n for n, path in enumerate(log_files(self._directory)) if _inode(path) == own), None)

    def _next(self) -> IO[bytes] | None:
        """The file after the open one, if that is complete; the oldest of all where the open one was deleted."""
        place = self._place()
        if place == 0:
            return None
        files = log_files(self._directory)
        candidates = reversed(files if place is None else files[:place])
        return next((file for path in candidates if (file := self._open(path)) is not None), None)

    def _open(self, path: Path) -> IO[bytes] | None:
        try:
            return path.open("rb")
        except FileNotFoundError:
            return None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _events(file: IO[bytes], *, whole: bool = False) -> Iterator[Event]:
    """Every line from here on; with `whole` a last one that is still being written is left for the next look."""
    while line := file.readline(MAX_LINE):
        if whole and not line.endswith(b"\n") and len(line) < MAX_LINE:
            file.seek(-len(line), os.SEEK_CUR)
            return
        if line.strip():
            yield _event(line)


def _event(line: bytes) -> Event:
    """What stands in a line; one that a full disk cut is its own text."""
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"event": line.decode(errors="replace").strip()}
