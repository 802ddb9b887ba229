"""`intellect-node status`: what the daemons of this machine are doing, as answers to five questions."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import NETWORK, CommandError
from cli.output import AsJson, clean, console, date, duration, ether, print_json
from cli.places import StateDir
from cli.pretraining import rounds_of
from node.status_schema import DaemonStatus, PayPart, StepVerdictsPart, ValidatorAuditsPart

if TYPE_CHECKING:
    from rich.console import RenderableType


QUESTIONS = ("am I in", "doing", "accepted", "earned", "wrong")
"""Always in this order, and within 80 columns."""
OUTSIDE = ("key", "chain", "role", "checks", "stake", "joining")
"""Phases of a node that is not a member yet."""
CLOCK_REMEDY = "timedatectl set-ntp true"
NOTHING_WRONG = "nothing that this node knows of"

Lines = list[str]


def answers(status: DaemonStatus, now: float | None = None, place: str | None = None) -> list[tuple[str, Lines]]:
    """(question, its answer in lines) in the order of QUESTIONS. now: unix seconds; place: what is wrong with the state
    directory as this machine sees it, if anything is."""
    clock = time.time() if now is None else now
    wrong = [*([place] if place else []), *troubles(status, clock)]
    told = (membership(status), activity(status), acceptance(status), earnings(status), wrong or [NOTHING_WRONG])
    return list(zip(QUESTIONS, told, strict=True))


def is_member(status: DaemonStatus) -> bool:
    """Whether the node is in its pool, as far as it knows."""
    phase = status.node.phase
    if status.node.state in ("starting", "evicted", "draining"):
        return False
    return phase is None or phase.name not in OUTSIDE


# am I in


def membership(status: DaemonStatus) -> Lines:
    """Which pool, with which stake, heard by whom, reachable where."""
    network, lines = status.network, [_membership_in_a_word(status)]
    if network.name:
        block = f", block {network.block:,}" if network.block else ""
        lines.append(f"network {network.name}, chain {network.chain_id}{block}")
        if len(network.endpoints) == 1:
            lines.append("one endpoint alone says who is paid and what happened: nothing checks it (rpc_urls)")
    if status.stake:
        slashed = int(status.stake.slashed_wei)
        taken = f", {ether(slashed)} taken by a slash" if slashed else ""
        lines.append(f"stake {ether(int(status.stake.bonded_wei))} tokens bonded{taken}")
    lines += list(_members(status))
    lines += [_way(status)] if _way(status) else []
    for contact in status.node.contacts[:1]:
        lines += _contact(contact)
    lines += [f"also at {contact.rpartition('/p2p/')[0]}" for contact in status.node.contacts[1:4]]
    return lines


def _membership_in_a_word(status: DaemonStatus) -> str:
    state, pool = status.node.state, status.network.pool
    # The state of the daemon, not of the chain: it stops a moment after it was thrown out.
    if state == "evicted":
        return "no: this node was evicted"
    if state == "draining":
        return f"leaving pool {pool}"
    if status.leaving is not None:
        return f"it leaves pool {pool} once it is paid, and takes no new work"
    return f"yes, in pool {pool} as {status.node.role}" if is_member(status) else "not yet"


def _members(status: DaemonStatus) -> Iterator[str]:
    others = [member for member in status.swarm if member.address != status.node.address]
    if others:
        heard = sum(member.state == "healthy" for member in others)
        direct = sum(member.connected for member in others)
        yield f"{heard} of {len(others)} other members heard, {direct} directly (intellect-node peers)"


def _way(status: DaemonStatus) -> str:
    reach = status.node.reach
    if reach is None or not reach.way:
        return ""
    seen = f" (seen at {reach.seen})" if reach.seen else ""
    through = f"through {_count(len(reach.relays), 'member')} that carry it"
    through += f", {_count(reach.punched, 'member')} directly (punched)" if reach.punched else ""
    through += f"; no direct way to {reach.unpunched}: intellect-node doctor" if reach.unpunched else ""
    return {
        "direct": "others can dial this node",
        "relayed": f"others cannot dial this node{seen}: {through}",
        "none": f"nobody can dial this node{seen} and nobody carries it: intellect-node doctor",
    }.get(reach.way, "")


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _contact(contact: str) -> Lines:
    """A multiaddr in two lines, so that each can be copied whole from 80 columns."""
    where, mark, peer = contact.partition("/p2p/")
    return [f"reached at {where}", f"{mark}{peer}"] if mark else [f"reached at {where}"]


# what am I doing


def activity(status: DaemonStatus) -> Lines:
    """The phase and how far it is; the run, and its end."""
    phase, run = status.node.phase, status.run
    if phase is None:
        lines = [status.node.state]
    else:
        far = f" ({phase.progress:.0%})" if phase.progress is not None else ""
        lasts = "" if phase.name == "working" else f", for {duration(phase.since_seconds)}"
        lines = [f"{phase.text}{far}{lasts}", *wanted(status)]
    if run and run.name:
        at = f"step {run.step}" if run.step is not None and run.step >= 0 else "no policy yet"
        rate = status.work.tokens_per_second if status.work else 0.0
        speed = f", {rate:,.0f} tokens/s" if rate else ""
        lines.append(f"run {run.name}: {at} of {run.steps_total}{speed}")
    lines += _rest(status)
    lines += _chair(status)
    if status.training and status.training.ended_by:
        lines.append(f"ended: {status.training.ended_by}")
    if run and run.over:
        lines += end_of_run(status)
    if status.work and status.work.waiting:
        lines.append(f"waits: {status.work.waiting}")
    return lines


def _rest(status: DaemonStatus) -> Iterator[str]:
    rest = status.rest
    if rest is not None and rest.why:
        under_way = "; what is under way may still end" if rest.draining else ""
        yield f"rests: {rest.why}{under_way} (stake, pay and membership stay)"


def _chair(status: DaemonStatus) -> Iterator[str]:
    """Who leads, and how far this trainer's own replay is."""
    chair = status.chair
    if chair is None or not chair.holder:
        return
    who = "this node" if chair.leads else chair.holder
    silent = ", ended: a quorum did not hear it" if chair.ended else ""
    yield f"chair: term {chair.term}, held by {who} from policy {chair.from_step} on{silent}"
    if not chair.leads and status.node.address in chair.standbys:
        place = chair.standbys.index(status.node.address) + 1
        apart = f"; apart: {chair.apart}" if chair.apart else ""
        yield f"standby {place} of {len(chair.standbys)}: replayed {chair.replayed}, equal {chair.equal}{apart}"


def wanted(status: DaemonStatus) -> Lines:
    """The commands that bring what a node waits for before it can join, as it told them."""
    if status.node.phase is None or status.node.phase.name != "stake":
        return []
    return [event.text for event in status.events if event.name == "do"][-6:]


def end_of_run(status: DaemonStatus) -> Lines:
    """What a member wants to know when the run is over: the outcome, where the model is, whether to stay."""
    network, pay = status.network, status.pay
    reward = status.run.final_reward if status.run else None
    outcome = f"; final reward {reward:.3f} on held-back problems, says the trainer" if reward is not None else ""
    fetch = f"intellect-node weights fetch --network {network.name} --pool {network.pool} --out model"
    owed = int(pay.due_wei) + int(pay.waiting_wei) if pay else 0
    leave = "you may leave (intellect-node leave)"
    if owed:
        leave = f"{leave}; staying until the {ether(owed)} tokens still owed are paid saves you doing that by hand"
    return [f"the run is over{outcome}", f"the model: {fetch}", leave]


# is it accepted


def acceptance(status: DaemonStatus) -> Lines:
    """What became of this node's work, by its role."""
    lines = [*_files(status), *_verdicts(status), *_training(status)]
    return lines or ["nothing to accept yet"]


def _files(status: DaemonStatus) -> Iterator[str]:
    work = status.work
    if work is None or not work.files_committed:
        return
    waiting = work.files_committed - work.files_accepted - work.files_rejected
    why = f" ({', '.join(f'{name} {n}' for name, n in sorted(work.rejected_by_reason.items()))})"
    refused = f", {work.files_rejected} refused{why if work.rejected_by_reason else ''}" if work.files_rejected else ""
    undecided = f", {waiting} wait for verdicts" if waiting else ""
    yield f"{work.files_accepted} of {work.files_committed} files accepted{refused}{undecided}"
    yield f"{work.units:,} units (intellect-node contributions)"


def _verdicts(status: DaemonStatus) -> Iterator[str]:
    verdicts = status.verdicts
    if verdicts and verdicts.accepted + verdicts.rejected:
        yield f"it judged files: {verdicts.accepted} good, {verdicts.rejected} refused"
    if status.validator_audits and status.validator_audits.power is not None:
        yield _power(status.validator_audits)
    if status.leader and status.leader.step_verdicts.steps:
        yield _audited(status.leader.step_verdicts)


def _audited(trainer: StepVerdictsPart) -> str:
    owing = f", {trainer.owing} drawn without a verdict" if trainer.owing else ""
    last = f"last audited step {trainer.last_step} by {clean(trainer.last_by or '')}: {clean(trainer.last_says or '')}"
    return f"trainer: {last}; held {trainer.held} of {trainer.steps}{owing}"


def _power(audit: ValidatorAuditsPart) -> str:
    share, looked = audit.checked_share, ""
    if share is not None:
        looked = (
            "; everything was looked at" if share >= 1 else f"; looked at: {share:.0%} of the groups, others not used"
        )
    return f"audit power {audit.power or 0:.3f} against cheating in {audit.cheated_share:.0%}{looked}"


def _training(status: DaemonStatus) -> Iterator[str]:
    training, rounds = status.training, status.pretraining
    if rounds is not None and rounds.rounds:
        yield rounds_of(rounds)
        inside = sum(peer.inside for peer in rounds.peers)
        own = f"; this node has replica {rounds.replica_id}" if rounds.replica_id >= 0 else ""
        waiting = f", and {rounds.queued_rollouts} accepted rollouts wait" if own and rounds.of_rollouts else ""
        yield f"{inside} other members have contributed to the round that runs{own}{waiting}"
        if training and training.reward_eval:
            yield f"reward {training.reward_eval[-1][1]:.3f} on held-back problems"
    elif training:
        reward = f"reward {training.reward_eval[-1][1]:.3f}" if training.reward_eval else "no reward yet"
        yield f"step {training.step} is trained, {reward}, {training.queued_rollouts} rollouts queued"
        if training.plan:
            yield f"plan: {training.plan}"
        if training.memory:
            yield training.memory


# what have I earned, and where is it


def _endpoints(status: DaemonStatus) -> Iterator[str]:
    """Those that told something else than others."""
    for one in status.network.endpoints:
        if one.contradicted:
            yield f"{clean(one.url, 80)} told something else than two others, {one.contradicted} times: see rpc_urls"
        elif one.disagreed:
            yield f"{clean(one.url, 80)} and another told different things, {one.disagreed} times: see rpc_urls"
        if one.lags:
            yield f"{clean(one.url, 80)} lags behind the other endpoints, which are asked before it"


def earnings(status: DaemonStatus) -> Lines:
    """Amounts by their state, and whose account they go to."""
    pay = status.pay
    if pay is None:
        return ["its pay is not known yet"]
    some = int(pay.earned_wei) + int(pay.missed_wei) + int(pay.unclear_wei)
    lines = _amounts(pay) if some else ["nothing yet"]
    if pay.unit_worth_wei and pay.reward_per_unit_wei:
        worth, price = int(pay.unit_worth_wei), int(pay.reward_per_unit_wei)
        less = "" if worth == price else f" now, and {ether(price * 1000)} once the pool can pay all that is owed"
        lines.append(f"1,000 units are worth {ether(worth * 1000)} tokens{less}")
    if status.day is not None:
        lines.append(f"a day: {status.day.text}")
    if pay.escrow_epochs is not None:
        lines.append(f"the pool's escrow lasts for {pay.escrow_epochs:g} more epochs like the last ones")
    return [*lines, f"goes to {pay.provider}"] if pay.provider else lines


def _amounts(pay: PayPart) -> Lines:
    until = f", claimable from {date(pay.waiting_until)} on" if pay.waiting_until else ""
    claimed, tabled = ether(int(pay.paid_wei)), ether(int(pay.due_wei))
    lines = [
        f"{ether(int(pay.earned_wei))} tokens: {claimed} claimed, {tabled} in the table",
        f"{ether(int(pay.waiting_wei))} certified{until}",
    ]
    if (filed := int(pay.filed_wei)) and pay.filing:
        lines.append(f"{ether(filed)} filed, as no table has it, and redeemed from {date(pay.filing.redeems)} on")
    if pay.units.waiting:
        lines.append(f"{pay.units.waiting:,} units of these are in a table that waits, and may still be held")
    held = pay.units.in_table - pay.units.claimable
    if held > 0:
        lines.append(f"{held:,} units of the table wait: a node's size bounds what it is paid an epoch")
    if owed := int(pay.owed_wei):
        lines.append(f"{ether(owed)} owed, and payable once the pool can")
    if missed := int(pay.missed_wei):
        lines.append(f"{ether(missed)} missed their table and are never paid")
    if unclear := int(pay.unclear_wei):
        lines.append(f"{ether(unclear)} cannot be told: nobody here knows whether a table has these works")
    return lines


# what is wrong


def _versions(status: DaemonStatus) -> Lines:
    """Members with whom this node may not agree on what work is worth."""
    from protocol.versions import understand

    own = status.node.version
    others = {one.address: one.version for one in status.swarm if understand(own, one.version) is False}
    if not others:
        return []
    named = ", ".join(sorted({clean(version, 40) for version in others.values()})[:3])
    who = "a member runs" if len(others) == 1 else f"{len(others)} members run"
    what = f"{who} {named}, more than one minor version from this node's {own}"
    return [f"{what}: each may refuse what the other says; update whoever is behind"]


def troubles(status: DaemonStatus, now: float) -> Lines:
    """Everything that its owner should look at, the worst first."""
    from node.config import program_version

    lines: Lines = []
    if status.last_error:
        error = status.last_error
        lines += [f"{error.what}: {error.why}", f"do: {error.remedy}"]
    if is_member(status) and not status.network.rpc_ok:
        lines.append("the chain's RPC does not answer")
    lines += list(_endpoints(status))
    if status.node.version not in ("", program_version()):
        lines.append(f"it runs {clean(status.node.version, 40)}, and {program_version()} is installed: start it again")
    lines += _versions(status)
    lines += _clock(status)
    audit = status.validator_audits
    if status.leader and not status.leader.trusted:
        lines.append(f"the trainer is not trusted any more: {status.leader.why}; every member has what shows it")
    if status.chair and status.chair.apart:
        lines.append(f"its replay is not what the leader stated ({status.chair.apart}): intellect-node audit step")
    lines += status.pay.warnings if status.pay else []
    alarms = status.training.alarms if status.training else []
    lines += [f"{alarm.name} since step {alarm.step}: {alarm.text}" for alarm in alarms]
    left = {node: uses.left_out for node, uses in (status.uses.workers if status.uses else {}).items() if uses.left_out}
    if left:
        most = max(left, key=left.__getitem__)
        files = f"{sum(left.values())} files of {len(left)} workers, most of {clean(most)}"
        lines.append(f"the trainer left out {files}, though they were fresher than what it used")
    if status.uses and status.uses.dropped:
        # Of a daemon's answer each name is somebody else's text, and this is a terminal.
        names = ", ".join(clean(one) for one in status.uses.dropped[:3])
        lines.append(f"the trainer drops files of {len(status.uses.dropped)} workers: {names}")
    if status.step_audits and status.step_audits.why_not:
        lines.append(f"this validator audits no steps of the trainer: {status.step_audits.why_not}")
    if audit and audit.power is not None and audit.power < audit.power_wanted:
        short = "the validators cannot look at enough of what one worker makes; what nobody looks at is not trained on"
        lines.append(f"the audit's power is below the run's {audit.power_wanted:.2f}: {short}")
    if audit and audit.quarantined:
        lines.append(f"{len(audit.quarantined)} validators are not believed")
    lines += _restarts(status)
    lines += [
        f"{duration(max(now - event.at, 0))} ago: {event.text}"
        for event in status.events
        if event.name == "trouble" and now - event.at < 600.0  # seconds for which trouble that is over is still told
    ][-3:]
    return lines


def _clock(status: DaemonStatus) -> Iterator[str]:
    from protocol.liveness import AHEAD

    clock = status.node.clock
    # Seconds that a clock may be off without a word.
    if clock and clock.ahead_seconds is not None and abs(clock.ahead_seconds) > 15.0:
        off, way = abs(clock.ahead_seconds), "ahead of" if clock.ahead_seconds > 0 else "behind"
        unheard = ", who do not believe what it says" if clock.ahead_seconds > AHEAD else ""
        yield f"this clock is {duration(off)} {way} most of {_count(clock.peers, 'peer')}{unheard}: {CLOCK_REMEDY}"


def _restarts(status: DaemonStatus) -> Iterator[str]:
    """Of children since this daemon began; those of before are history (`restarts` in --json)."""
    for process in status.processes:
        if process.restarts:
            yield f"{process.name} was started again {process.restarts} times; its log says why"


EXAMPLES = (
    "Examples:  intellect-node status   |   intellect-node status --json | jq .daemons[].run.step   |   "
    "intellect-node status --state-dir ~/nodes/a --watch"
)


def command(
    state_dir: StateDir = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again every two seconds; q ends it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Am I in, what am I doing, is it accepted, what have I earned and where is it, what is wrong?

    Of each daemon of this machine, or of one. Exit code 5 where none answers.
    """
    import msgspec

    if watch and not as_json:
        from cli.keypress import watch_until_quit

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
    from cli.places import trouble_of

    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    most_of_a_line = 500
    for question, lines in answers(status, place=trouble_of(status)):
        bad = question == QUESTIONS[-1] and lines != [NOTHING_WRONG]
        for number, line in enumerate(lines):
            name = "" if number else f"  {question}"
            grid.add_row(name, Text(clean(line, most_of_a_line), style="red" if bad else ""))
    return grid


def style_of(state: str) -> str:
    """The colour of a node's or member's state."""
    if state in ("working", "healthy", "idle", "finished"):
        return "green"
    return "red" if state in ("failed", "evicted", "dead", "unhealthy") else "yellow"
