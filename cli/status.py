"""`intellect-node status`: what the daemons of this machine are doing."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import NETWORK, CommandError
from cli.output import clean, console, duration, ether, print_json, short

if TYPE_CHECKING:
    from cli.daemon_status import DaemonStatus, PayPart

EXAMPLES = (
    "Examples:  intellect-node status   |   intellect-node status --json | jq .daemons[].run.step   |   "
    "intellect-node status --state-dir ~/nodes/a"
)


def command(
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="The state directory of one daemon; default: all of this machine."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Show the daemons of this machine: role, step, stake, the swarm they see, their work."""
    import msgspec

    statuses = _collect(state_dir)
    if as_json:
        print_json({"daemons": [msgspec.to_builtins(status) for status in statuses]})
        return
    for status in statuses:
        _show(status)


def _collect(state_dir: Path | None) -> "list[DaemonStatus]":
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


def _show(status: "DaemonStatus") -> None:
    out = console()
    node, network = status.node, status.network
    out.print(
        Text.assemble(
            (node.role or "node", "bold"),
            "  ",
            node.address,
            "  ",
            (node.state, _style(node.state)),
            f"  up {duration(node.uptime_seconds)}  pid {node.pid}",
        )
    )
    out.print(_facts(status))
    if status.last_error:
        error = status.last_error
        lines = (f"  last error: {error.what}", f"    why: {error.why}", f"    do:  {error.remedy}")
        out.print(Text("\n".join(clean(line, 500) for line in lines), style="red"))
    if status.swarm:
        out.print(_swarm(status))
    if not network.rpc_ok:
        out.print(Text("  the chain's RPC does not answer", style="bold red"))
    out.print()


def _facts(status: "DaemonStatus") -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    network = status.network
    _row(grid, "  network", f"{network.name}  chain {network.chain_id}  pool {network.pool}  block {network.block}")
    if status.run:
        run = status.run
        _row(grid, "  run", f"{run.name}  step {run.step}/{run.steps_total}  policies held {run.policies_held}")
        if run.over:
            for text in end_of_run(status):
                _row(grid, "  over", text)
    if status.stake:
        _row(
            grid,
            "  stake",
            f"{ether(int(status.stake.bonded_wei))} bonded  {ether(int(status.stake.slashed_wei))} slashed",
        )
    pay = status.pay
    if pay is not None and int(pay.earned_wei):
        _row(grid, "  pay", _pay(pay))
        _row(grid, "  goes to", pay.provider)
    for warning in pay.warnings if pay else ():
        _row(grid, "  warning", warning)
    if status.work and status.work.files_committed:
        work = status.work
        _row(
            grid,
            "  work",
            f"{work.files_committed} files committed  {work.files_accepted} accepted  {work.files_rejected} rejected"
            f"{_reasons(work.rejected_by_reason)}"
            f"  {work.tokens_per_second:,.0f} tokens/s  {work.units:,} units",
        )
    if status.work and status.work.waiting:
        _row(grid, "  waits", status.work.waiting)
    if status.training:
        training = status.training
        reward = f"{training.reward_eval[-1][1]:.3f}" if training.reward_eval else "-"
        _row(grid, "  training", f"step {training.step}  reward {reward}  {training.queued_rollouts} rollouts queued")
        if training.ended_by:
            _row(grid, "  ended", training.ended_by)
        for alarm in training.alarms:
            _row(grid, "  alarm", f"{alarm.name} since step {alarm.step}: {alarm.text}")
    if status.verdicts and status.verdicts.accepted + status.verdicts.rejected:
        _row(grid, "  verdicts", f"{status.verdicts.accepted} accepted  {status.verdicts.rejected} rejected")
    audit = status.audit
    power = audit.power if audit else None
    if audit is not None and power is not None:
        told = "" if power >= audit.power_wanted else f"  below the run's {audit.power_wanted:.2f}"
        shared = f"  {audit.checked_share:.0%} of the groups recomputed" if audit.checked_share is not None else ""
        refused = f"  {len(audit.quarantined)} validators not believed" if audit.quarantined else ""
        cheat = f"against cheating in {audit.cheated_share:.0%}"
        _row(grid, "  audit", f"power {power:.3f} {cheat}{told}{shared}{refused}")
    if audit is not None and not audit.trainer.trusted:
        _row(grid, "  trainer", f"not trusted any more: {audit.trainer.why}; every member has both of its signatures")
    for process in status.processes:
        if process.restarts:
            _row(grid, f"  {clean(process.name)}", f"was started again {process.restarts} times; its log says why")
    for contact in status.node.contacts[:2]:
        _row(grid, "  contact", contact)
    return grid


def end_of_run(status: "DaemonStatus") -> list[str]:
    """What a member wants to know when the run is over: the outcome, where the model is, whether to stay."""
    network, pay = status.network, status.pay
    reward = status.run.final_reward if status.run else None
    outcome = f"; final reward {reward:.3f} on held-back problems, says the trainer" if reward is not None else ""
    fetch = f"intellect-node weights fetch --network {network.name} --pool {network.pool} --out model"
    owed = int(pay.due_wei) + int(pay.waiting_wei) if pay else 0
    leave = "you may leave (Ctrl-C or SIGTERM)"
    if owed:
        leave = f"{leave}; staying until the {ether(owed)} tokens still owed are paid saves you doing that by hand"
    return [f"the run is over{outcome}", f"the model: {fetch}", leave]


def _pay(pay: "PayPart") -> str:
    until = time.strftime(" until %Y-%m-%d %H:%M UTC", time.gmtime(pay.waiting_until)) if pay.waiting_until else ""
    parts = [("earned", pay.earned_wei), ("paid", pay.paid_wei), ("due", pay.due_wei)]
    told = [f"{ether(int(amount))} {name}" for name, amount in parts]
    return "  ".join([*told, f"{ether(int(pay.waiting_wei))} waiting{until}"])


def _reasons(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{name} {count}' for name, count in sorted(counts.items()))})" if counts else ""


def _row(grid: Table, name: str, text: str) -> None:
    grid.add_row(name, Text(clean(text)))


def _swarm(status: "DaemonStatus") -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2), show_edge=False)
    for name in ("  member", "role", "state", "step", "tokens/s", "seen", "connected"):
        table.add_column(name)
    for member in status.swarm:
        table.add_row(
            f"  {short(member.address)}",
            Text(clean(member.role)),
            Text(member.state, style=_style(member.state)),
            "" if member.step is None or member.step < 0 else str(member.step),
            "" if not member.tokens_per_second else f"{member.tokens_per_second:,.0f}",
            "" if member.seen_seconds_ago is None else f"{member.seen_seconds_ago:.0f} s ago",
            "yes" if member.connected else "no",
        )
    return table


def _style(state: str) -> str:
    if state in ("working", "healthy", "idle"):
        return "green"
    return "red" if state in ("failed", "evicted", "dead", "unhealthy") else "yellow"
