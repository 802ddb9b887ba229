"""`intellect-node top`: all daemons of this machine at a glance, again and again, while they come and go."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli.errors import CommandError
from cli.output import clean, console, duration, ether, print_json, short
from cli.places import StateDir
from cli.status import style_of

if TYPE_CHECKING:
    from node.status_schema import DaemonStatus

EVERY = 2.0
"""Seconds between two pictures."""
# Ctrl-D among them: without line input the terminal makes no end of file of it.
QUIT = "qQ\x03\x04"

Wait = Callable[[float], str]
"""Waits so many seconds at most for a key, and returns it; nothing where none was pressed."""


def watch_until_quit(draw: Callable[[], RenderableType], every: float = EVERY) -> None:
    """Draw until q or Ctrl-C; anything else that is pressed draws at once."""
    out = console()
    if not (out.is_terminal and sys.stdin.isatty()):
        out.print(draw())
        return
    from rich.live import Live

    live = Live(draw(), console=out, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), _keys() as wait, live:
        while wait(every) not in tuple(QUIT):
            live.update(draw(), refresh=True)


async def any_key() -> None:
    """Returns when somebody presses a key; the terminal is left as it was found."""
    import trio

    with _keys() as wait:
        await trio.lowlevel.wait_readable(sys.stdin)
        # Taken: a key that is left in the terminal would stand in the shell's next line.
        wait(0)


@contextmanager
def _keys() -> Iterator[Wait]:
    """Single keys, as they are pressed. The terminal is left as it was found."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        return os.read(terminal, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(terminal)
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


EXAMPLES = (
    "Examples:  intellect-node top   |   intellect-node top --state-dir ~/nodes/a   |   intellect-node top --json"
)
EVENTS = 8


def command(
    state_dir: StateDir = None,
    every: Annotated[float, typer.Option(min=0.5, max=60, help="Seconds between two looks.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="One look, as one JSON object.")] = False,
) -> None:
    """Watch the daemons of this machine: state, step, speed, what was accepted and earned, their last events.

    q ends it. A daemon that starts again keeps its line. Without a terminal: one look.
    """
    import msgspec

    seen = Seen(state_dir)
    if as_json:
        seen.look()
        print_json({"daemons": [msgspec.to_builtins(status) for status, _ in seen.rows()]})
        return

    def draw() -> RenderableType:
        seen.look()
        return picture(seen.rows())

    watch_until_quit(draw, every)


class Seen:
    """The daemons that answered once, with their last answer: one that is away for a while is not forgotten."""

    def __init__(self, only: Path | None) -> None:
        self._only = only
        self._last: dict[Path, DaemonStatus] = {}
        self._here: set[Path] = set()

    def look(self) -> None:
        """Ask every daemon once."""
        from cli import api

        sockets = [api.socket_of(self._only)] if self._only else api.known_sockets()
        self._here = set()
        for socket in sockets:
            try:
                self._last[socket] = api.get_status(socket, timeout=2.0)
            except CommandError:
                continue
            self._here.add(socket)

    def rows(self) -> "list[tuple[DaemonStatus, bool]]":
        """(last answer, whether it came just now), by role and address."""
        rows = [(status, socket in self._here) for socket, status in self._last.items()]
        return sorted(rows, key=lambda row: (row[0].node.role, row[0].node.address))


def picture(rows: "list[tuple[DaemonStatus, bool]]") -> RenderableType:
    """A line for each daemon, and what happened last."""
    from rich.console import Group

    if not rows:
        return Text("no daemon of this user runs on this machine; intellect-node join starts one (q ends this)")
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), show_edge=False)
    for name in ("role", "address", "state", "step", "tok/s", "accepted", "earned", "up"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("step", "tok/s", "earned") else "left")
    for status, here in rows:
        table.add_row(*_cells(status, here))
    phases = [(status.node.role, status.node.phase) for status, here in rows if here]
    doing = [Text(f"{clean(role, 10)}: {clean(phase.text, 200)}", style="dim") for role, phase in phases if phase]
    return Group(table, Text(""), *doing, *_events(rows))


def _cells(status: "DaemonStatus", here: bool) -> list[Text]:
    node, run, work, pay = status.node, status.run, status.work, status.pay
    state = node.state if here else "away"
    verdicts = status.verdicts
    accepted = f"{work.files_accepted}/{work.files_committed}" if work and work.files_committed else ""
    judged = f"{verdicts.accepted} of {verdicts.accepted + verdicts.rejected}" if verdicts and not accepted else ""
    return [
        Text(clean(node.role, 10)),
        Text(short(clean(node.address, 64)), style="dim"),
        Text(clean(state, 12), style=style_of(state)),
        Text(f"{run.step}/{run.steps_total}" if run and (run.step or 0) >= 0 and run.name else "-"),
        Text(f"{work.tokens_per_second:,.0f}" if work and here else ""),
        Text(accepted or (judged if judged != "0 of 0" else "")),
        Text(ether(int(pay.earned_wei)) if pay else ""),
        Text(duration(node.uptime_seconds) if here else ""),
    ]


def _events(rows: "list[tuple[DaemonStatus, bool]]") -> list[Text]:
    """The newest of all daemons, the newest last."""
    told = [(event.at, status.node.role, event) for status, _ in rows for event in status.events]
    told.sort(key=itemgetter(0))
    lines = [f"{_clock(at)} {clean(role, 10):<9} {clean(event.text, 300)}" for at, role, event in told[-EVENTS:]]
    return [Text(""), *[Text(line) for line in lines]] if lines else []


def _clock(at: float) -> str:
    """'11:20:05' UTC, of any unix second."""
    minutes, seconds = divmod(int(at) % 86_400, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}"
