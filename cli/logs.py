"""`intellect-node logs`: what a daemon has written down, running or not."""

import sys
from contextlib import closing
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import CommandError
from cli.output import clean, print_json
from cli.places import StateDir, chosen_directory

EXAMPLES = (
    "Examples:  intellect-node logs -f   |   intellect-node logs --level warning -n 20   |   "
    "intellect-node logs --state-dir ~/nodes/a -f --json | jq .event"
)
HEAD = ("timestamp", "level", "event", "exception")
MOST_OF_A_VALUE, MOST_OF_A_TRACEBACK = 300, 40


class Level(StrEnum):
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
    level: Annotated[Level, typer.Option(help="Only events of this level and worse ones.")] = Level.debug,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object; with -f one for each event, as it comes.")
    ] = False,
) -> None:
    """Show a daemon's log: at most 120 MB in six files, JSON lines, oldest ones forgotten."""
    from cli.log_reader import Follower, at_least, last_events

    directory = _logs_of(chosen_directory(state_dir))
    wanted = at_least(level.value)
    with closing(Follower(directory)) as follower:  # opened first: rather twice than never
        events = last_events(directory, lines, wanted) if lines else []
        if as_json and not follow:
            print_json({"events": events})
            return
        coming = (event for event in follower.events() if wanted(event)) if follow else ()
        for event in chain(events, coming):
            print_json(event) if as_json else _show(event)


def _logs_of(state_dir: Path) -> Path:
    directory = state_dir / "logs"
    if not directory.is_dir():
        raise CommandError(
            f"there is no log in {state_dir}",
            "no daemon has run with this state directory, or it was moved",
            "name the right one: --state-dir DIR (`intellect-node status` shows those that run)",
        )
    return directory


def _show(event: dict[str, Any]) -> None:
    print("\n".join(rendered(event)), file=sys.stdout, flush=True)


def rendered(event: dict[str, Any]) -> list[str]:
    """An event in one line, its traceback below. Anything in it may be a stranger's."""
    time = clean(str(event.get("timestamp", "")), 19).replace("T", " ")
    head = [time, f"{clean(str(event.get('level', '')), 8):<8}", clean(str(event.get("event", "")), 500)]
    fields = [f"{clean(name, 40)}={_value(value)}" for name, value in event.items() if name not in HEAD]
    first = " ".join(part for part in head if part.strip())
    trace = str(event.get("exception") or "").splitlines()[-MOST_OF_A_TRACEBACK:]
    return ["  ".join([first, " ".join(fields)]).rstrip(), *(f"    {clean(line, 500)}" for line in trace)]


def _value(value: Any) -> str:
    text = clean(str(value), MOST_OF_A_VALUE)
    return repr(text) if " " in text else text
