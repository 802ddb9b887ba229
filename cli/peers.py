"""`intellect-node peers`: the members of the pool as one daemon sees them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.output import AsJson, clean, console, duration, print_json, short
from cli.places import StateDir, chosen_directory
from cli.status import style_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from node.status_schema import DaemonStatus, MemberPart

EXAMPLES = (
    "Examples:  intellect-node peers   |   intellect-node peers --full   |   "
    "intellect-node peers --json | jq '.peers[] | select(.connected)'"
)
COLUMNS = ("member", "role", "state", "step", "tokens/s", "heard", "connected")


def command(
    state_dir: StateDir = None,
    full: Annotated[bool, typer.Option("--full", help="Whole addresses and contacts, to be copied.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show who else is in the pool: role, state, step, speed, when heard last, and how it is connected.

    direct; relayed: another member carries it; punched: directly, though neither can be dialled.
    With --json, "path" tells of direct connections: how many, congestion control, round trips in ms, share lost.
    With --full and --json each says which version of the program it runs.
    """
    import msgspec

    from cli import api

    status = api.get_status(api.socket_of(chosen_directory(state_dir)))
    if as_json:
        rows = [msgspec.to_builtins(member) for member in status.swarm]
        print_json({"own": status.node.address, "pool": status.network.pool, "peers": rows})
    elif full:
        for line in (line for member in status.swarm for line in whole(member, status)):
            console().print(line, soft_wrap=True, markup=False)
    else:
        console().print(table_of(status))


def table_of(status: "DaemonStatus") -> "RenderableType":
    """One line for each member, this node among them."""
    if not status.swarm:
        return Text("it has heard of no member yet")
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    for name in COLUMNS:
        table.add_column(name, no_wrap=True)
    for member in status.swarm:
        table.add_row(*_cells(member, status))
    return table


def whole(member: "MemberPart", status: "DaemonStatus") -> list[str]:
    """Everything that is known of a member, in lines of which each can be copied."""
    cells = [cell.plain for cell in _cells(member, status)[1:]]
    told = "  ".join(f"{name} {cell}" for name, cell in zip(COLUMNS[1:], cells, strict=True) if cell)
    told_of = member.contacts or [member.contact]
    contacts = [f"  {clean(each, 300)}" for each in told_of[:4] if each]  # as many as a member may name of itself
    version = f"  version {clean(member.version, 40)}" if member.version else ""
    return [clean(member.address, 64), f"  {told}{version}", *contacts]


def _cells(member: "MemberPart", status: "DaemonStatus") -> tuple[Text, ...]:
    own = member.address == status.node.address
    values: tuple[Any, ...] = (
        short(clean(member.address, 64)),
        clean(member.role, 10),
        clean(member.state, 12),
        "" if member.step is None or member.step < 0 else member.step,
        f"{member.tokens_per_second:,.0f}" if member.tokens_per_second else "",
        "" if member.seen_seconds_ago is None else f"{duration(member.seen_seconds_ago)} ago",
        "this node" if own else member.way or "yes" if member.connected else "no",
    )
    state = COLUMNS.index("state")
    return tuple(Text(str(v), style=style_of(member.state) if n == state else "") for n, v in enumerate(values))
