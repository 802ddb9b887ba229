"""`intellect-node logs`: what a daemon has written down, running or not."""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from cli.errors import CommandError
from cli.output import clean, print_json
from cli.places import StateDir, chosen_directory

# A line without an end, as of a damaged file, is read in such pieces.
MAX_LINE = 1 << 20
LEVELS = ("debug", "info", "warning", "error", "critical")

Event = dict[str, Any]
Wanted = Callable[[Event], bool]


def log_files(directory: Path) -> list[Path]:
    """Where the log may be, newest first."""
    from node import logs  # which imports structlog: a third of a second that `--help` need not take

    return logs.log_files(directory)


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
        # Files come newest first, events oldest first.
        found = [*kept, *found]
    return found


class Follower:
    """The events that are written from now on, whichever file they land in."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file = self._open(log_files(directory)[0])
        if self._file is not None:
            # What stands there is shown by `last_events`, which knows how much of it is wanted.
            self._file.seek(0, os.SEEK_END)

    def events(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[Event]:
        """Without end; `sleep` is called when there is nothing new."""
        while True:
            yield from self.new()
            sleep(0.25)  # seconds between two looks for new lines

    def new(self) -> Iterator[Event]:
        """What was written since the last look."""
        while True:
            if self._file is not None:
                yield from _events(self._file, whole=self._place() == 0)
            following = self._next()
            if following is None:
                return
            self.close()
            self._file = following

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _place(self) -> int | None:
        """Which of the log's files is the open one: 0 the one that is written; None: none any more."""
        if self._file is None:
            return None
        # by inode, not by name: after a rotation the open file has another name, and no event is to be missed
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
        # The daemon is in the middle of a line: half of it would be no JSON.
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


EXAMPLES = (
    "Examples:  intellect-node logs -f   |   intellect-node logs --level warning -n 20   |   "
    "intellect-node logs --state-dir ~/nodes/a -f --json | jq .event"
)
HEAD = ("timestamp", "level", "event", "exception")


class LogLevel(StrEnum):
    """What goes to the log, or is shown of it."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def command(
    state_dir: StateDir = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Stay, and show what comes.")] = False,
    lines: Annotated[
        int, typer.Option("-n", "--lines", min=0, max=1_000_000, help="How many of the last events.")
    ] = 50,
    level: Annotated[LogLevel, typer.Option(help="Only events of this level and worse ones.")] = LogLevel.debug,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with -f one for each event, as it comes.")
    ] = False,
) -> None:
    """Show a daemon's log: at most 120 MB in six files, JSON lines, oldest ones forgotten."""

    directory = _logs_of(chosen_directory(state_dir))
    wanted = at_least(level.value)
    with closing(Follower(directory)) as follower:  # opened first: rather twice than never
        events = last_events(directory, lines, wanted) if lines else []
        if as_json and not follow:
            print_json({"events": events})
            return
        coming = (event for event in follower.events() if wanted(event)) if follow else ()
        for event in chain(events, coming):
            print_json(event) if as_json else print("\n".join(rendered(event)), flush=True)


def _logs_of(state_dir: Path) -> Path:
    directory = state_dir / "logs"
    if not directory.is_dir():
        raise CommandError(
            f"there is no log in {state_dir}",
            "no daemon has run with this state directory, or it was moved",
            "name the right one: --state-dir DIR (`intellect-node status` shows those that run)",
        )
    return directory


def rendered(event: dict[str, Any]) -> list[str]:
    """An event in one line, its traceback below. Anything in it may be a stranger's."""
    time = clean(str(event.get("timestamp", "")), 19).replace("T", " ")
    head = [time, f"{clean(str(event.get('level', '')), 8):<8}", clean(str(event.get("event", "")), 500)]
    fields = [f"{clean(name, 40)}={_value(value)}" for name, value in event.items() if name not in HEAD]
    first = " ".join(part for part in head if part.strip())
    most_of_a_traceback = 40
    trace = str(event.get("exception") or "").splitlines()[-most_of_a_traceback:]
    return ["  ".join([first, " ".join(fields)]).rstrip(), *(f"    {clean(line, 500)}" for line in trace)]


def _value(value: Any) -> str:
    most_of_a_value = 300
    text = clean(str(value), most_of_a_value)
    # Quoted, so that one field's words cannot pass for another's.
    return repr(text) if " " in text else text
