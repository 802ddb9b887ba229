"""`intellect-node status`: what the daemons of this machine are doing, as answers to five questions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import NETWORK, CommandError
from cli.output import clean, console, duration, print_json
from cli.places import StateDir

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.daemon_status import DaemonStatus

EXAMPLES = (
    "Examples:  intellect-node status   |   intellect-node status --json | jq .daemons[].run.step   |   "
    "intellect-node status --state-dir ~/nodes/a --watch"
)
MOST_OF_A_LINE = 500


def command(
    state_dir: StateDir = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds; q ends it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Am I in, what am I doing, is it accepted, what have I earned and where is it, what is wrong?

    Of each daemon of this machine, or of one. Exit code 5 where none answers.
    """
    import msgspec

    if watch and not as_json:
        from cli.watching import watch_until_quit

        watch_until_quit(lambda: _watched(state_dir))
        return
    statuses = collect(state_dir)
    if as_json:
        print_json({"daemons": [msgspec.to_builtins(status) for status in statuses]})
        return
    console().print(rendered(statuses))


def collect(state_dir: Path | None) -> "list[DaemonStatus]":
    """What every daemon says, or the one of a state directory. Raises CommandError where none answers."""
    from cli import api

    if state_dir is not None:
        return [api.get_status(api.socket_of(state_dir))]
    found = api.known_sockets()
    if not found:
        raise CommandError(
            "no daemon runs on this machine",
            "no socket of a daemon of this user answers",
            "start one: intellect-node join --role worker --network local",
            NETWORK,
        )
    return [api.get_status(socket) for socket in found]


def rendered(statuses: "list[DaemonStatus]") -> "RenderableType":
    """All of them, one below the other."""
    from rich.console import Group

    return Group(*[part for status in statuses for part in (_head(status), _answers(status), Text(""))][:-1])


def _watched(state_dir: Path | None) -> "RenderableType":
    try:
        return rendered(collect(state_dir))
    except CommandError as error:  # a daemon that starts again answers soon
        return Text(f"{error.what}: {error.why}", style="yellow")


def _head(status: "DaemonStatus") -> Text:
    node = status.node
    state = Text(clean(node.state, 16), style=style_of(node.state))
    role = (clean(node.role, 10) or "node", "bold")
    return Text.assemble(role, " ", clean(node.address, 42), " ", state, f" up {duration(node.uptime_seconds)}")


def _answers(status: "DaemonStatus") -> Table:
    from cli.answers import NOTHING_WRONG, QUESTIONS, answers
    from cli.state_place import trouble_of

    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for question, lines in answers(status, place=trouble_of(status)):
        bad = question == QUESTIONS[-1] and lines != [NOTHING_WRONG]
        for number, line in enumerate(lines):
            name = "" if number else f"  {question}"
            grid.add_row(name, Text(clean(line, MOST_OF_A_LINE), style="red" if bad else ""))
    return grid


def style_of(state: str) -> str:
    """The colour of a node's or member's state."""
    if state in ("working", "healthy", "idle", "finished"):
        return "green"
    return "red" if state in ("failed", "evicted", "dead", "unhealthy") else "yellow"
