"""`intellect-node pause` and `resume`: a node takes no new work for a while, and loses nothing."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import NETWORK, USAGE, CommandError
from cli.output import AsJson, clean, console, print_json
from cli.places import StateDir, chosen_directory

EXAMPLES = (
    "Examples:  intellect-node pause   |   intellect-node pause --for 2h   |   intellect-node pause --until 08:00 --now"
)
RESUME_EXAMPLES = "Examples:  intellect-node resume   |   intellect-node resume --state-dir ~/nodes/a --json"


def command(
    state_dir: StateDir = None,
    lasting: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long: 90m, 2h, 3d. Default: until `resume`.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Until the clock shows 08:00 next, or 2026-12-24T08:00.")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Drop what is under way at once. It earns nothing then.")] = False,
    patience: Annotated[
        float | None, typer.Option(min=0, max=86_400, help="Seconds that work under way may last. Default: 60.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pause a worker: it takes no new work and frees its engine's memory; stake, pay and membership stay.

    It finishes what is under way within a minute, or drops it, which costs nothing but that work. It stays in the pool,
    still serves what it made, and outlives a restart so. Trainers and validators cannot be paused: others wait for what
    they promised.
    """
    request: dict[str, Any] = {"seconds": seconds_until(lasting, until, time.time())}
    if now or patience is not None:
        request["patience"] = 0.0 if now else patience
    directory = chosen_directory(state_dir)
    told = _ask(directory, "/pause", request)
    if as_json:
        print_json({"state_dir": str(directory), **told})
        return
    console().print(f"{clean(str(told.get('why')), 200)}: it takes no new work", soft_wrap=True, markup=False)


def resume(state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """End a pause: the engine is loaded again and the node works, unless its hours or others' use stand against it."""
    directory = chosen_directory(state_dir)
    told = _ask(directory, "/resume", {})
    if as_json:
        print_json({"state_dir": str(directory), **told})
        return
    why = clean(str(told.get("why") or ""), 200)
    console().print(f"not paused any more, but {why}" if why else "it works again", soft_wrap=True, markup=False)


def seconds_until(lasting: str | None, until: str | None, now: float) -> float | None:
    """Of --for or --until from `now` on, None for neither. Raises CommandError."""
    from node.guest.settings import LONGEST, seconds_of

    if lasting is not None and until is not None:
        raise CommandError("how long?", "--for and --until both say it", "give one of them", USAGE)
    try:
        if lasting is not None:
            return seconds_of(lasting)
        seconds = None if until is None else moment(until, now) - now
    except ValueError as error:
        raise CommandError("how long?", str(error), "for example --for 2h, or --until 08:00", USAGE) from None
    if seconds is not None and not 0 < seconds <= LONGEST:
        what = "is over" if seconds <= 0 else "is more than a year away"
        raise CommandError("how long?", f"{clean(str(until), 40)} {what}", "name a later moment", USAGE)
    return seconds


def moment(text: str, now: float) -> float:
    """When this machine's clock shows it next, unix seconds: 08:00, or a date and time. Raises ValueError."""
    if len(text) > 5:
        return datetime.fromisoformat(text).timestamp()
    clock, today = datetime.strptime(text, "%H:%M").time(), datetime.fromtimestamp(now)
    shown = datetime.combine(today.date(), clock)
    # By the calendar and not by 24 hours: a day on which the clock is changed has more or fewer.
    later = datetime.combine(today.date() + timedelta(days=1), clock)
    return next(one for one in (shown.timestamp(), shown.replace(fold=1).timestamp(), later.timestamp()) if one > now)


def _ask(directory: Path, path: str, request: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    from cli import api

    socket = api.socket_of(directory)
    status = api.get_status(socket)
    if "rest-keeper" not in status.services:
        phase = status.node.phase.text if status.node.phase else status.node.state
        raise CommandError(
            "the node cannot be paused yet",
            f"it is not that far: {clean(phase, 200)}",
            "ask again in a moment, or stop it: intellect-node stop",
            NETWORK,
        )
    return api.ask(socket, "POST", path, msgspec.json.encode(request))
