"""The demo on the terminal: a snapshot rendered with rich, or as plain lines where there is no terminal.

Knows how things look, not where they come from.
"""

from collections.abc import Callable
from typing import Protocol

from rich import box
from rich.columns import Columns
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.demo.plot import plot, running_mean
from cli.demo.snapshot import Snapshot, SwarmRow, is_acceptance
from cli.output import clean, duration, ether, short
from cli.pretraining import rounds_of
from node.status_schema import VerdictPart

WIDE = 96  # from here on there is room for a column beside the plot
SIDE = 36

_STATE_STYLES = {
    "working": "green",
    "idle": "cyan",
    "finished": "bold green",
    "syncing": "yellow",
    "starting": "yellow",
    "restarting": "yellow",
    "running": "cyan",
    "draining": "dim",
    "stopped": "dim",
    "evicted": "bold red",
    "quarantined": "bold red",
    "failed": "bold red",
}


_COLUMNS: tuple[tuple[str, JustifyMethod], ...] = (
    ("node", "left"),
    ("address", "left"),
    ("state", "left"),
    ("step", "right"),
    ("tokens/s", "right"),
    ("accepted", "right"),
    ("rejected", "right"),
    ("paid", "right"),
    ("restarts", "right"),
)
_NARROW = ("node", "state", "step", "tokens/s", "accepted", "rejected")


class DemoView(Protocol):
    """Where the demo shows itself. asks: seconds between two questions to a daemon, each of which costs it ten
    milliseconds."""

    asks: float

    def __enter__(self) -> "DemoView": ...
    def __exit__(self, *problem: object) -> None: ...
    def say(self, text: str) -> None:
        """One line that stays: a preparation step, a restart."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """The state of things now."""
        ...


class LiveView:
    """Redraws one picture in place."""

    asks = 2.0

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
        self._live.update(render(snapshot, *self._console.size), refresh=True)


class PlainView:
    """A line now and then, for logs and pipes."""

    def __init__(self, write: Callable[[str], None], *, every: float = 5.0, asks: float = 2.0) -> None:
        self.asks = asks
        self._write = write
        self._every = every
        self._last = float("-inf")
        # With what was told of it: who was slashed may be disbelieved besides.
        self._told: set[tuple[str, str]] = set()

    def __enter__(self) -> "PlainView":
        return self

    def __exit__(self, *problem: object) -> None:
        return None

    def say(self, text: str) -> None:
        self._write(f"- {Text.from_markup(text).plain}")

    def show(self, snapshot: Snapshot) -> None:
        for slash in snapshot.slashed:
            if self._is_news("slashed", slash.node):
                self._write(plain_slash(snapshot, slash.node))
        for row in snapshot.rows:
            name = row.participant.name
            if row.paid_wei and self._is_news("paid", name):
                self._write(f"- {name} is paid: {ether(row.paid_wei)} tokens for what a table of earnings says")
        for one in snapshot.quarantined:
            if self._is_news("disbelieved", one.validator):
                name = snapshot.names.get(one.validator.lower(), one.validator)
                self._write(f"- {name} is not believed any more: {clean(one.why, 200)}")
        over = snapshot.done and self._is_news("over", "the run")
        if over or snapshot.elapsed - self._last >= self._every:
            self._last = snapshot.elapsed
            self._write(plain_line(snapshot))

    def _is_news(self, what: str, who: str) -> bool:
        """Whether this was not told of somebody yet; from now on it was."""
        known = (what, who) in self._told
        self._told.add((what, who))
        return not known


def render(snapshot: Snapshot, width: int, height: int = 50) -> RenderableType:
    """The whole picture, of bounded width; the plot gives way on a low terminal."""
    width = min(width, 118)
    header, swarm, fate = _header(snapshot, width), _swarm(snapshot, width), _fate(snapshot, width)
    lines = min(max(height - 15 - len(snapshot.rows), 4), 12)  # lines of the plot
    if width < WIDE:
        return Group(header, _curve(snapshot, width, lines), swarm, fate)
    beside = [_verdicts(snapshot, lines)]
    if lines >= 9:
        beside = [_verdicts(snapshot, lines - 6), _staleness(snapshot)]
    top = Columns([_curve(snapshot, width - SIDE - 1, lines), Group(*beside)], padding=(0, 1, 0, 0))
    return Group(header, top, swarm, fate)


def plain_line(snapshot: Snapshot) -> str:
    """'  42 s  training  step 31/150  reward 0.53 (mean of 10: 0.51)  ...'"""
    running = sum(row.process.state == "running" for row in snapshot.rows)
    return (
        f"{snapshot.elapsed:5.0f} s  {snapshot.phase}  step {snapshot.step}/{snapshot.steps_total or '?'}"
        f"  {learnt(snapshot)}  {running}/{len(snapshot.rows)} nodes"
        f"  {snapshot.tokens_per_second:,.0f} tok/s"
        f"  verdicts {snapshot.verdicts.accepted} ok, {snapshot.verdicts.rejected} rejected"
        f"  paid {snapshot.paid_wei / 10**18:,.1f} tokens"
        f"  block {snapshot.block if snapshot.block is not None else '-'}"
    )


def learnt(snapshot: Snapshot) -> str:
    """How far learning is: the reward, or of a run that pre-trains its rounds, its loss and its replicas."""
    rounds = snapshot.pretraining
    if rounds is not None and not rounds.of_rollouts:
        return rounds_of(rounds)
    reward = f"{snapshot.rewards[-1][1]:.2f}" if snapshot.rewards else "-"
    means = running_mean(snapshot.rewards)
    told = f"reward {reward} (mean of 10: {f'{means[-1][1]:.2f}' if means else '-'})"
    return f"{told}, {rounds_of(rounds)}" if rounds is not None else told


def plain_slash(snapshot: Snapshot, node: str) -> str:
    """One line about a slash."""
    slash = next(one for one in snapshot.slashed if one.node == node)
    name = snapshot.names.get(node.lower(), short(node))
    row = next((row for row in snapshot.cheats if row.participant.address.lower() == node.lower()), None)
    return (
        f"- {name} {node} was slashed {ether(int(slash.amount_wei))} tokens for {_reason(slash.reason)}"
        f"{_agreement(row, snapshot) if row else ''}:"
        f" transaction {slash.transaction}"
    )


def _header(snapshot: Snapshot, width: int) -> RenderableType:
    reward, rounds = snapshot.rewards[-1][1] if snapshot.rewards else None, snapshot.pretraining
    shown = f"{reward:.2f}" if reward is not None else "-"
    grid = Table.grid(expand=True)
    for justify in ("left", "center", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    grid.add_row(
        Text.assemble(("intellect-node demo", "bold"), "  ", (snapshot.run_name, "cyan")),
        Text.assemble(
            "step ",
            (f"{snapshot.step}", "bold"),
            f"/{snapshot.steps_total or '?'}   ",
            *([rounds_of(rounds)] if rounds else []),
            *(["   " * bool(rounds), "reward ", (shown, "bold green")] if not rounds or rounds.of_rollouts else []),
            f"   {snapshot.tokens_per_second:,.0f} tok/s",
        ),
        Text(f"{snapshot.phase}  {duration(snapshot.elapsed)}", style="dim"),
    )
    page = Text(f"http://{snapshot.page}/", style="cyan") if snapshot.page else None
    return Panel(grid, box=box.ROUNDED, width=width, border_style="dim", subtitle=page, subtitle_align="right")


def last_step_shown(snapshot: Snapshot) -> int:
    """Where the curve's axis ends: at the run's last step, or in a long run a third beyond the present, which would
    else be a spot at the left."""
    now = snapshot.rewards[-1][0] if snapshot.rewards else 0
    # The curve has room for 200 steps from the start.
    return max(now, 10, min(snapshot.steps_total, max(4 * now // 3, 200)))


def _curve(snapshot: Snapshot, width: int, height: int) -> RenderableType:
    lines = plot(
        [(snapshot.rewards, "dim green", False), (running_mean(snapshot.rewards), "bold green", True)],
        width=width - 4,
        height=height,
        x_range=(0, last_step_shown(snapshot)),
        level=snapshot.target,
    )
    goal = f", goal {snapshot.target:g}" if snapshot.target is not None else ""
    return _panel(f"mean reward on held-back problems{goal}", lines, width)


def _verdicts(snapshot: Snapshot, lines: int) -> RenderableType:
    verdicts = snapshot.verdicts
    good, bad = (f"{verdicts.accepted}", "bold green"), (f"{verdicts.rejected}", "bold red")
    head = Text.assemble(good, " accepted  ", bad, " rejected")
    recent = [_verdict_line(verdict, snapshot) for verdict in verdicts.recent[:lines]]
    recent += [Text("") for _ in range(lines - len(recent))]
    return _panel("verdicts", [head, *recent], SIDE)


def _verdict_line(verdict: VerdictPart, snapshot: Snapshot) -> Text:
    accepted = is_acceptance(verdict)
    name = snapshot.names.get(verdict.node.lower(), short(verdict.node))
    text = f"{name} #{verdict.index}"
    if not accepted:
        text += f" {_reason(verdict.reason)}"
    tally = snapshot.tally_of(verdict)
    if tally and len(snapshot.validators) > 1:
        text = f"{tally.accepting if accepted else tally.rejecting}/{len(snapshot.validators)} {text}"
    line = Text.assemble(("ok " if accepted else "no ", "green" if accepted else "red"), text)
    # SIDE without the panel's border and padding.
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
    return _panel("rollouts, by steps behind", lines, SIDE)


def _swarm(snapshot: Snapshot, width: int) -> RenderableType:
    table = Table(box=box.ROUNDED, width=width, border_style="dim", header_style="bold", pad_edge=True)
    columns = [one for one in _COLUMNS if width >= WIDE or one[0] in _NARROW]
    for name, justify in columns:
        table.add_column(name, justify=justify, no_wrap=True)
    for row in snapshot.rows:
        cells = _cells(row, snapshot)
        table.add_row(*[cells[name] for name, _ in columns])
    return table


def _cells(row: SwarmRow, snapshot: Snapshot) -> dict[str, RenderableType]:
    state = "evicted" if snapshot.slash_of(row.participant) else row.state
    if snapshot.disbelief_in(row.participant):
        state = "quarantined"
    judged = len(snapshot.validators) > 1 and row.participant.role == "validator"
    counted = row.participant.role == "worker" or judged
    return {
        "node": Text(row.participant.name, style="red" if row.participant.cheat else ""),
        "address": Text(short(row.participant.address), style="dim"),
        "state": Text(state, style=_STATE_STYLES.get(state, "")),
        "step": "" if row.step is None else str(row.step),
        "tokens/s": "" if not row.tokens_per_second else f"{row.tokens_per_second:,.0f}",
        "accepted": str(row.files_accepted) if counted else "",
        "rejected": str(row.files_rejected) if counted else "",
        "paid": f"{row.paid_wei / 10**18:,.1f}" if row.paid_wei else "",
        "restarts": str(row.process.restarts) if row.process.restarts else "",
    }


def _fate(snapshot: Snapshot, width: int) -> RenderableType:
    lines = [line for row in snapshot.cheats for line in _fate_of(row, snapshot)]
    known = {row.participant.address.lower() for row in snapshot.cheats}
    for slash in snapshot.slashed:
        if slash.node.lower() not in known:
            name = snapshot.names.get(slash.node.lower(), slash.node)
            lines.append(Text(f"{name} was slashed: {_reason(slash.reason)}", style="bold red"))
    block = snapshot.block if snapshot.block is not None else "-"
    pool = snapshot.pool if snapshot.pool is not None else "-"
    jury = ""
    if len(snapshot.validators) > 1:
        jury = (
            f"   quorum {snapshot.quorum} of {len(snapshot.validators)}   disputes {snapshot.disputes.get('raised', 0)}"
        )
    lines.append(Text(f"chain {snapshot.chain_id or '-'}   pool {pool}   block {block}{jury}", style="dim"))
    return _panel("on chain", lines, width)


def _panel(title: str, lines: list[Text], width: int) -> Panel:
    return Panel(Group(*lines), title=title, title_align="left", width=width, box=box.ROUNDED, border_style="dim")


def _fate_of(row: SwarmRow, snapshot: Snapshot) -> list[Text]:
    """What became of a cheat."""
    name = (row.participant.name, "red")
    if row.participant.role == "validator":
        return [_fate_of_liar(row, snapshot)]
    if row.participant.role == "trainer":
        leads = "leads still" if row.leads else "leads no more"
        return [Text.assemble(name, f" ({row.participant.cheat}) {leads}")]
    slash = snapshot.slash_of(row.participant)
    if slash:
        stake = (f"{ether(int(slash.amount_wei))} tokens", "bold")
        caught = Text.assemble(name, " caught: ", (_reason(slash.reason), "bold"))
        caught.append(_agreement(row, snapshot))
        caught.append(", stake of ").append(*stake)
        caught.append(f" taken in block {slash.block}")
        return [caught, Text(f"transaction {slash.transaction}", style="dim", no_wrap=True)]
    if row.files_rejected:
        text = f" ({row.participant.cheat}) earns nothing: {row.files_rejected} files rejected"
        return [Text.assemble(name, text, _agreement(row, snapshot))]
    return [Text.assemble(name, f" ({row.participant.cheat}) is at large")]


def _fate_of_liar(row: SwarmRow, snapshot: Snapshot) -> Text:
    """What became of a validator that lies."""
    name = (row.participant.name, "red")
    doubt = snapshot.disbelief_in(row.participant)
    if doubt is None:
        return Text.assemble(name, f" ({row.participant.cheat}) is still believed")
    honest = sum(not one.participant.cheat for one in snapshot.rows)
    text = f" ({row.participant.cheat}) is not believed by {doubt.by} of {honest} honest nodes: "
    return Text.assemble(name, text, (clean(doubt.why, 80), "bold"))


def _agreement(row: SwarmRow, snapshot: Snapshot) -> str:
    """How many of several validators rejected a cheat's file; nothing where there is one."""
    tally = snapshot.first_rejection(row.participant)
    if tally is None or len(snapshot.validators) < 2:
        return ""
    return f" by {tally.rejecting} of {len(snapshot.validators)} validators"


def _reason(reason: int | str) -> str:
    """A reason by its name; protocol.checks names the numbers."""
    if isinstance(reason, int):
        from protocol.checks import Reason

        try:
            reason = Reason(reason).name
        except ValueError:
            return f"reason {reason}"
    return clean(reason, 40).lower().replace("_", " ")
