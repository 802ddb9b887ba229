"""`intellect-node contributions`: what a node did for its pool, file by file, and what became of it.

From the node's own journal, so that it answers without the daemon, too, as of the daemon's last look.
"""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import USAGE, CommandError
from cli.output import AsJson, clean, console, date, print_json
from cli.places import StateDir, chosen_directory

if TYPE_CHECKING:
    from node.state.made import FileRecord
from node.state.pay import PayRecord

EXAMPLES = (
    "Examples:  intellect-node contributions   |   intellect-node contributions --since 2h --limit 20   |   "
    "intellect-node contributions --state-dir ~/nodes/a --json | jq '.contributions[] | select(.verdict==\"rejected\")'"
)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST = 10_000


def seconds_back(text: str) -> float:
    """'90s', '15m', '2h', '3d' in seconds; raises CommandError."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in UNITS:
        raise CommandError(f"--since {clean(text, 20)}", "it is no span of time", "for example 90s, 15m, 2h, 3d", USAGE)
    return float(int(number) * UNITS[unit])


def command(
    state_dir: StateDir = None,
    limit: Annotated[int, typer.Option(min=1, max=MOST, help="How many rows at most, the newest first.")] = 50,
    since: Annotated[str | None, typer.Option(help="Only what is not older: 90s, 15m, 2h, 3d.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the work that this node did for its pool: verdicts, reasons, units, pay.

    A worker's rows are rollout files, a validator's what it judged, a trainer's policies.
    """
    from node.state.reader import StateFiles

    directory = chosen_directory(state_dir)
    after = time.time() - seconds_back(since) if since else 0.0
    files = StateFiles(directory)
    records = files.contributions(limit, after)
    groups = files.groups_per_file()
    pay = files.pay()
    rows = [row_of(record, pay, groups) for record in records]
    if as_json:
        print_json({"state_dir": str(directory), "contributions": rows})
        return
    console().print(_table(rows))


def row_of(record: "FileRecord", pay: "PayRecord | None", groups: int | None) -> dict[str, Any]:
    """One contribution, JSON-ready. pay: None before the daemon's first look."""
    state = pay_state(record, pay)
    return {
        "root": record.root.hex(),
        "policy": record.policy.hex(),
        "step": record.step,
        "index": record.index,
        "groups": groups,
        "units": record.units,
        "made_at": round(record.made_at, 3),
        "verdict": record.state,
        "reason": record.why,
        "epoch": record.epoch,
        "pay": state,
        "claimable_at": pay.claimable_at(record.epoch) if pay and state in ("certified", "waiting", "filed") else None,
    }


def pay_state(record: "FileRecord", pay: "PayRecord | None") -> str:
    """Where the pay of a contribution is."""
    if record.state == "rejected":
        return "none"
    if record.state == "pending" and record.line is None:
        return "waits for verdicts"
    if pay is None:
        return "not looked at yet"
    if record.line is None and record.epoch <= pay.through:
        return "unclear"  # tabled before this node looked for the first time
    if record.line is None:
        if record.named < pay.quorum:
            return "waits for roots"
        if record.epoch in pay.filed:
            return "redeemed" if pay.redeemed else "filed" if not pay.over else "missed"
        if pay.over:
            return "missed"
        return "waiting" if record.epoch <= pay.waits_through else "certified"
    if record.line <= 0:
        return "missed" if record.line == 0 else "unclear"
    return "claimed" if pay.claimed >= record.line else "in the table"


def _table(rows: list[dict[str, Any]]) -> Table | Text:
    if not rows:
        return Text("nothing yet")
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), show_edge=False)
    for name in ("made (UTC)", "root", "step", "units", "verdict", "pay"):
        table.add_column(name, no_wrap=name != "verdict", justify="right" if name in ("step", "units") else "left")
    # They come newest first, which is what --limit keeps; a terminal shows the newest at its end.
    for row in reversed(rows):
        verdict = f"{row['verdict']}: {row['reason']}" if row["reason"] else row["verdict"]
        step = "-" if row["step"] is None else str(row["step"])
        when = date(int(row["made_at"]))[5:16]
        pay = f"claimable {date(row['claimable_at'])[5:16]}" if row["claimable_at"] else row["pay"]
        cells = (when, row["root"][:12], step, f"{row['units']:,}", verdict, pay)
        table.add_row(*[Text(clean(cell, 120)) for cell in cells])
    return table
