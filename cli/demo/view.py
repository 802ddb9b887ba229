"""The demo on the terminal: a snapshot rendered with rich, or as plain lines where there is no terminal.

Knows how things look, not where they come from.
"""

from collections.abc import Callable
from typing import Protocol

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.daemon_status import VerdictPart
from cli.demo.plot import plot, running_mean
from cli.demo.snapshot import Row, Snapshot
from cli.output import duration, ether, short

PLOT_HEIGHT = 12
RECENT = 4
WIDEST = 118

_STATE_STYLES = {
    "working": "green", "idle": "cyan", "syncing": "yellow", "starting": "yellow", "restarting": "yellow",
    "running": "cyan", "draining": "dim", "stopped": "dim", "evicted": "bold red", "failed": "bold red",
}


class View(Protocol):
    """Where the demo shows itself."""

    def __enter__(self) -> "View": ...
    def __exit__(self, *problem: object) -> None: ...
    def say(self, text: str) -> None:
        """One line that stays: a preparation step, a restart."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """The state of things now."""
        ...


class LiveView:
    """Redraws one picture in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False, auto_refresh=False)
        self._started = False

    def __enter__(self) -> "LiveView":
        return self

    def __exit__(self, *problem: object) -> None:
        if self._started:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(f"  [dim]-[/] {text}")

    def show(self, snapshot: Snapshot) -> None:
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(render(snapshot, self._console.width), refresh=True)


class PlainView:
    """A line now and then, for logs and pipes."""

    def __init__(self, write: Callable[[str], None], *, every: float = 5.0) -> None:
        self._write = write
        self._every = every
        self._last = float("-inf")
        self._told: set[str] = set()

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, *problem: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._write(f"- {Text.from_markup(text).plain}")

    def show(self, snapshot: Snapshot) -> None:
        for slash in snapshot.slashed:
            if slash.node not in self._told:
                self._told.add(slash.node)
                self._write(plain_slash(snapshot, slash.node))
        if snapshot.done or snapshot.elapsed - self._last >= self._every:
            self._last = snapshot.elapsed
            self._write(plain_line(snapshot))


def render(snapshot: Snapshot, width: int) -> RenderableType:
    """The whole picture, at most `WIDEST` columns wide."""
    width = min(width, WIDEST)
    side = 36 if width >= 96 else 0
    curve = _curve(snapshot, width - side - (1 if side else 0))
    numbers = Group(_verdicts(snapshot), _staleness(snapshot))
    top = Columns([curve, numbers], padding=(0, 1, 0, 0)) if side else Group(curve, numbers)
    parts = [_header(snapshot, width), top, _swarm(snapshot, width), _fate(snapshot, width)]
    return Group(*[part for part in parts if part is not None])


def plain_line(snapshot: Snapshot) -> str:
    """'  42 s  training  step 31/150  reward 0.53 (mean of 10: 0.51)  ...'"""
    reward = f"{snapshot.rewards[-1][1]:.2f}" if snapshot.rewards else "-"
    mean = f"{snapshot.reward_last:.2f}" if snapshot.reward_last is not None else "-"
    running = sum(row.process.state == "running" for row in snapshot.rows)
    return (
        f"{snapshot.elapsed:5.0f} s  {snapshot.phase}  step {snapshot.step}/{snapshot.steps_total or '?'}"
        f"  reward {reward} (mean of 10: {mean})  {running}/{len(snapshot.rows)} nodes"
        f"  {snapshot.tokens_per_second:,.0f} tok/s"
        f"  verdicts {snapshot.verdicts.accepted} ok, {snapshot.verdicts.rejected} rejected"
        f"  block {snapshot.block if snapshot.block is not None else '-'}"
    )


def plain_slash(snapshot: Snapshot, node: str) -> str:
    """One line about a slash."""
    slash = next(one for one in snapshot.slashed if one.node == node)
    name = snapshot.names.get(node.lower(), short(node))
    return (
        f"- {name} {node} was slashed {ether(int(slash.amount_wei))} tokens for {_reason(slash.reason)}:"
        f" transaction {slash.transaction}"
    )


def _header(snapshot: Snapshot, width: int) -> RenderableType:
    reward = snapshot.rewards[-1][1] if snapshot.rewards else None
    grid = Table.grid(expand=True)
    for justify in ("left", "center", "right"):
        grid.add_column(justify=justify)
    grid.add_row(
        Text.assemble(("intellect-node demo", "bold"), "  ", (snapshot.run_name, "cyan")),
        Text.assemble(
            "step ", (f"{snapshot.step}", "bold"), f"/{snapshot.steps_total or '?'}   reward ",
            (f"{reward:.2f}" if reward is not None else "-", "bold green"), f"   {snapshot.tokens_per_second:,.0f} tok/s",
        ),
        Text(f"{snapshot.phase}  {duration(snapshot.elapsed)}", style="dim"),
    )
    return Panel(grid, box=box.ROUNDED, width=width, border_style="dim")


def _curve(snapshot: Snapshot, width: int) -> RenderableType:
    inner = width - 4
    last = max(snapshot.steps_total, snapshot.rewards[-1][0] if snapshot.rewards else 0, 10)
    lines = plot(
        [(snapshot.rewards, "dim green", False), (running_mean(snapshot.rewards), "bold green", True)],
        width=inner, height=PLOT_HEIGHT, x_range=(0, last), level=snapshot.target,
    )
    goal = f", goal {snapshot.target:g}" if snapshot.target is not None else ""
    return Panel(
        Group(*lines), title=f"mean reward on held-back problems{goal}", title_align="left", width=width,
        box=box.ROUNDED, border_style="dim",
    )


def _verdicts(snapshot: Snapshot) -> RenderableType:
    verdicts = snapshot.verdicts
    head = Text.assemble(
        (f"{verdicts.accepted}", "bold green"), " accepted  ", (f"{verdicts.rejected}", "bold red"), " rejected",
    )
    recent = [_verdict_line(verdict, snapshot.names) for verdict in verdicts.recent[:RECENT]]
    recent += [Text("") for _ in range(RECENT - len(recent))]
    return Panel(
        Group(head, *recent), title="verdicts", title_align="left", width=36, box=box.ROUNDED, border_style="dim"
    )


def _verdict_line(verdict: VerdictPart, names: dict[str, str]) -> Text:
    accepted = verdict.outcome in (0, "accept", "accepted")
    name = names.get(verdict.node.lower(), short(verdict.node))
    text = f"{name} #{verdict.index}"
    if not accepted:
        text += f" {_reason(verdict.reason)}"
    line = Text.assemble(("ok " if accepted else "no ", "green" if accepted else "red"), text)
    line.truncate(32, overflow="ellipsis")
    return line


def _staleness(snapshot: Snapshot) -> RenderableType:
    counts = [(key, snapshot.staleness.get(key, 0)) for key in ("0", "1", "2", "dropped")]
    counts += [(key, n) for key, n in sorted(snapshot.staleness.items()) if key not in ("0", "1", "2", "dropped")]
    most = max((count for _, count in counts), default=0) or 1
    lines = []
    for key, count in counts:
        bar = "█" * round(14 * count / most)
        lines.append(Text.assemble(f"{key:>7} ", (f"{bar:<14}", "red" if key == "dropped" else "blue"), f" {count:,}"))
    return Panel(
        Group(*lines), title="rollouts, by steps behind", title_align="left", width=36, box=box.ROUNDED,
        border_style="dim",
    )


def _swarm(snapshot: Snapshot, width: int) -> RenderableType:
    table = Table(box=box.ROUNDED, width=width, border_style="dim", header_style="bold", pad_edge=True)
    table.add_column("node")
    table.add_column("address", style="dim")
    table.add_column("state")
    table.add_column("step", justify="right")
    table.add_column("tokens/s", justify="right")
    table.add_column("files accepted", justify="right")
    table.add_column("rejected", justify="right")
    table.add_column("restarts", justify="right")
    for row in snapshot.rows:
        table.add_row(*_cells(row, snapshot))
    return table


def _cells(row: Row, snapshot: Snapshot) -> list[RenderableType]:
    state = "evicted" if snapshot.slash_of(row.participant) else row.state
    worker = row.participant.role == "worker"
    name = Text(row.participant.name, style="red" if row.participant.cheat else "")
    return [
        name,
        short(row.participant.address),
        Text(state, style=_STATE_STYLES.get(state, "")),
        "" if row.step is None else str(row.step),
        "" if not row.tokens_per_second else f"{row.tokens_per_second:,.0f}",
        str(row.files_accepted) if worker else "",
        str(row.files_rejected) if worker else "",
        str(row.process.restarts) if row.process.restarts else "",
    ]


def _fate(snapshot: Snapshot, width: int) -> RenderableType | None:
    lines: list[Text] = []
    for row in snapshot.cheats:
        slash = snapshot.slash_of(row.participant)
        if slash is None:
            lines.append(Text.assemble((row.participant.name, "red"), f" ({row.participant.cheat}): at large"))
            continue
        lines.append(
            Text.assemble(
                (row.participant.name, "red"), " was caught: ", (_reason(slash.reason), "bold"), ", stake of ",
                (ether(int(slash.amount_wei)), "bold"), f" tokens taken in block {slash.block}",
            )
        )
        lines.append(Text(f"transaction {slash.transaction}", style="dim"))
    others = [one for one in snapshot.slashed if one.node.lower() not in
              {row.participant.address.lower() for row in snapshot.cheats}]
    lines += [Text(f"also slashed: {snapshot.names.get(one.node.lower(), one.node)}", style="bold red") for one in others]
    chain = Text(
        f"chain {snapshot.chain_id or '-'}   pool {snapshot.pool if snapshot.pool is not None else '-'}"
        f"   block {snapshot.block if snapshot.block is not None else '-'}",
        style="dim",
    )
    return Panel(
        Group(*lines, chain), title="on chain", title_align="left", width=width, box=box.ROUNDED, border_style="dim"
    )


def _reason(reason: int | str) -> str:
    """A reason by its name; protocol.checks names the numbers."""
    if isinstance(reason, int):
        from protocol.checks import Reason

        try:
            reason = Reason(reason).name
        except ValueError:
            return f"reason {reason}"
    return reason.lower().replace("_", " ")
