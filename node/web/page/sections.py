"""From what /status says to what the page shows: chosen fields only, cleaned, with times that do not run. Pure.

Nothing that only the owner should see is here: no path, no process id, no peer's address on the network, no reason
of an error (it may hold a URL with a key in it).
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from node.status_schema import (
    ContributionPart,
    DecisionPart,
    LeaderPart,
    MemberPart,
    PhasePart,
    RunPart,
    StakePart,
    StepVerdictsPart,
    WorkerUsesPart,
    WorkPart,
)
from node.status_schema import DaemonStatus as Status
from node.web.page.feed import Row
from node.web.page.plain import number, table, words

Ago = Callable[[str, Any], int | None]
RECENT = 30
"""Verdicts, slashes and events that are shown."""
EVENTS = dict.fromkeys(
    (
        "role",
        "engine",
        "policy",
        "accepted",
        "refused",
        "verdict",
        "certified",
        "in the table",
        "claimed",
        "slashed",
        "over",
    ),
    "",
) | {
    "joined": "joined the pool",
    "trouble": "trouble: intellect-node status tells this node's owner which",
    "paused": "paused: it takes no new work for a while",
    "resumed": "resumed",
}
"""Events that are shown, by name, in their own words or in these: what failed may hold a path, or a URL with a key."""
MEMBER_COLUMNS = (
    "address", "role", "state", "activity", "step", "seen", "rate", "connected", "accepted", "rejected", "units",
    "reason", "used", "left_out",
)  # fmt: skip
DECISION_COLUMNS = ("place", "number", "at", "node", "step", "index", "accepted", "reason", "detail")


def sections(status: Status, ago: Ago) -> dict[str, Any]:
    """Everything but the tables, by name. ago: the moment of a name, so many seconds ago, in unix seconds."""
    return {name: make(status, ago) for name, make in _SECTIONS.items()}


def members(status: Status, ago: Ago) -> Iterator[dict[str, Row]]:
    """The table of members by address, in MEMBER_COLUMNS: some at a time."""
    counted = status.contributions.members if status.contributions else {}
    uses = status.uses.workers if status.uses else {}
    rows = status.swarm[:2000]  # rows of the table of members; the swarm may be larger, the page says so
    at_once = 250  # so that the event loop turns between two portions
    for first in range(0, len(rows), at_once):
        some = rows[first : first + at_once]
        yield {
            row.address: _member(row, counted.get(row.address, ContributionPart()), uses.get(row.address), ago)
            for row in some
        }


def decisions(status: Status) -> dict[Hashable, Row]:
    """The newest decisions about files, in DECISION_COLUMNS. Each takes the place of one that is too old, so that only
    it counts as changed."""
    told = status.contributions.recent if status.contributions else []
    rows = [_decision(one) for one in told[-RECENT:]]
    return {row[0]: row for row in rows}


def _decision(one: DecisionPart) -> Row:
    return (
        # A place in a ring: a viewer is sent the one row that changed, not thirty that moved up.
        one.number % RECENT,
        one.number,
        number(one.at),
        words(one.node, 42),
        number(one.step),
        number(one.index),
        one.accepted,
        words(one.reason, 40),
        words(one.detail),
    )


def _member(row: MemberPart, counted: ContributionPart, uses: WorkerUsesPart | None, ago: Ago) -> Row:
    return (
        words(row.address, 42),
        words(row.role, 16),
        words(row.state, 16),
        words(row.activity, 24),
        number(row.step),
        ago(row.address, row.seen_seconds_ago),
        round(number(row.tokens_per_second) or 0),
        row.connected,
        counted.accepted,
        counted.rejected,
        counted.units,
        words(counted.reason, 40),
        uses.used if uses else None,
        uses.left_out if uses else None,
    )


def _numbers(told: object, *names: str) -> dict[str, float | int | None]:
    return {name: number(getattr(told, name)) for name in names}


def _node(status: Status, ago: Ago) -> dict[str, Any]:
    node, error = status.node, status.last_error
    return {
        "address": words(node.address, 42),
        "role": words(node.role, 16),
        "state": words(node.state, 24),
        "phase": _phase(node.phase, ago),
        "since": ago("started", node.uptime_seconds),
        "version": words(node.version, 40),
        "engine": words(node.engine, 64),
        "waiting": words(status.work.waiting) if status.work else "",
        "restarts": {words(one.name, 24): number(one.restarts) for one in status.processes},
        "error": {"what": words(error.what), "remedy": words(error.remedy)} if error else None,
    }


def _phase(phase: PhasePart | None, ago: Ago) -> dict[str, Any] | None:
    if phase is None:
        return None
    name, text = words(phase.name, 32), words(phase.text)
    since = ago(f"phase {name}", phase.since_seconds)
    return {"name": name, "text": text, "since": since, "progress": number(phase.progress)}


def _run(status: Status, _: Ago) -> dict[str, Any]:
    run, chain = status.run or RunPart(), status.network
    return {
        "name": words(run.name, 80),
        "step": number(run.step),
        "total": number(run.steps_total),
        "goal": number(run.target_reward),
        "over": run.over,
        "final": number(run.final_reward),
        "held": number(run.policies_held),
        "network": words(chain.name, 40),
        "chain": number(chain.chain_id),
        "pool": number(chain.pool),
        "chain_ok": chain.rpc_ok,
        "block": number(chain.block),
        "peers": number(status.network_stats.get("peers")),
        "members": len(status.swarm),
    }


def _training(status: Status, _: Ago) -> dict[str, Any] | None:
    training = status.training
    if training is None:
        return None
    latest = training.latest
    return {
        **_numbers(training, "step", "seconds_per_step", "loss", "entropy", "grad_norm"),
        "rate": number(training.tokens_per_second),
        "queued": number(training.queued_rollouts),
        "staleness": table(training.staleness),
        "seconds": table(latest.get("seconds")),
        "file_seconds": table(latest.get("file_seconds")),
        "mismatch": number(latest.get("mismatch_kl")),
        "by_environment": table(latest.get("eval_reward_by_environment")),
        "alarms": [
            {"name": words(one.name, 40), "step": number(one.step), "text": words(one.text)}
            for one in training.alarms[:RECENT]
        ],
        "ended_by": words(training.ended_by),
        "memory": words(training.memory),
        "done": training.done,
    }


def _verdicts(status: Status, _: Ago) -> dict[str, Any] | None:
    told = status.contributions
    if told is None:
        return None
    return {**_numbers(told, "accepted", "rejected", "since"), "by_reason": table(told.by_reason)}


def _slashes(status: Status, _: Ago) -> list[dict[str, Any]]:
    return [
        {
            "node": words(one.node, 42),
            "amount": _tokens(one.amount_wei),
            "reason": words(one.reason, 40),
            "transaction": words(one.transaction, 66),
            "block": number(one.block),
        }
        for one in status.slashed[-RECENT:]
    ]


def _audit(status: Status, _: Ago) -> dict[str, Any] | None:
    audit, leader = status.validator_audits, status.leader or LeaderPart()
    if audit is None:
        return None
    return {
        **_numbers(audit, "power", "cheated_share", "checked_share"),
        "wanted": number(audit.power_wanted),
        "disputes": table(audit.disputes),
        "quarantined": [
            {"address": words(one.address, 42), "why": words(one.why)} for one in audit.quarantined[:RECENT]
        ],
        "distrust": "" if leader.trusted else words(leader.why) or "it contradicted itself",
        "audited": _audited(leader.step_verdicts),
    }


def _audited(steps: StepVerdictsPart) -> dict[str, Any] | None:
    """Of the trainer's steps, what audits found; None before the first."""
    if not steps.steps:
        return None
    counts = _numbers(steps, "held", "steps", "last_step")
    return {**counts, "by": words(steps.last_by, 42), "says": words(steps.last_says)}


PAID = ("earned", "paid", "due", "waiting", "missed", "unclear")


def _money(status: Status, _: Ago) -> dict[str, Any]:
    pay, stake = status.pay, status.stake or StakePart()
    told: dict[str, Any] = {"bonded": _tokens(stake.bonded_wei), "slashed": _tokens(stake.slashed_wei)}
    if pay is None:
        return told | {"known": False}
    amounts = {name: _tokens(getattr(pay, f"{name}_wei")) for name in PAID}
    pool = {"escrow": _tokens(pay.escrow_wei), "per_unit": _tokens(pay.reward_per_unit_wei)}
    return {
        **told,
        **amounts,
        **pool,
        "known": True,
        "provider": words(pay.provider, 42),
        "until": number(pay.waiting_until),
        "lasts": number(pay.escrow_epochs),
        "warnings": [words(one) for one in pay.warnings[:RECENT]],
    }


def _tokens(wei: str | None) -> float | None:
    """Whole tokens of an amount that is written in wei."""
    try:
        return round(int(wei or "") / 1e18, 6)
    except ValueError:
        return None


def _work(status: Status, _: Ago) -> dict[str, Any]:
    work = status.work or WorkPart()
    files = _numbers(work, "files_committed", "files_accepted", "files_rejected", "units")
    pace = _numbers(work, "tokens_per_second", "last_reward_estimate")
    return {**files, **pace, "by_reason": table(work.rejected_by_reason)}


def _events(status: Status, _: Ago) -> list[dict[str, Any]]:
    told = [one for one in status.events if one.name in EVENTS]
    return [
        {"at": number(one.at), "name": one.name, "text": EVENTS[one.name] or words(one.text)} for one in told[-RECENT:]
    ]


def _rounds(status: Status, _: Ago) -> dict[str, Any] | None:
    """Of a run that pre-trains; None of others."""
    told = status.pretraining
    if told is None or not told.rounds:
        return None
    losses = _numbers(told, "round", "rounds", "loss", "eval_loss", "perplexity")
    pace = _numbers(told, "tokens_per_second", "bits_per_parameter", "contributions")
    # Rounds of the loss curve, and peers, of a run that pre-trains.
    points = [(number(at), number(loss)) for at, loss in told.losses[-1000:]]
    rows = [
        {
            **_numbers(one, "replica_id", "round"),
            "address": words(one.address, 42),
            "in": one.inside,
            "equal": one.equal,
        }
        for one in told.peers[:256]
    ]
    return {
        **losses,
        **pace,
        "outer_states": {"equal": told.outer_states.equal, "of": told.outer_states.of},
        "losses": [point for point in points if None not in point],
        "peers": rows,
        "of_rollouts": told.of_rollouts,
    }


_SECTIONS: dict[str, Callable[[Status, Ago], Any]] = {
    "node": _node,
    "run": _run,
    "training": _training,
    "verdicts": _verdicts,
    "slashes": _slashes,
    "audit": _audit,
    "money": _money,
    "work": _work,
    "events": _events,
    "rounds": _rounds,
}
