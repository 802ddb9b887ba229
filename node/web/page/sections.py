"""From what /status says to what the page shows: chosen fields only, cleaned, with times that do not run. Pure.

Nothing that only the owner should see is here: no path, no process id, no peer's address on the network, no reason
of an error (it may hold a URL with a key in it).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

from node.web.page.feed import Row
from node.web.page.plain import number, table, words

Status = Mapping[str, Any]
Ago = Callable[[str, Any], int | None]
RECENT = 30
"""Verdicts, slashes and events that are shown."""
MEMBERS = 2000
"""Rows of the table of members; the swarm may be larger, the page says so."""
# So that the event loop turns between two portions.
AT_ONCE = 250
POINTS, PEERS = 1000, 256
"""Rounds of the loss curve, and peers, of a run that pre-trains."""
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
) | {"joined": "joined the pool", "trouble": "trouble: intellect-node status tells this node's owner which"}
"""Events that are shown, by name, in their own words or in these: what failed may hold a path, or a URL with a key."""
MEMBER_COLUMNS = (
    "address", "role", "state", "doing", "step", "seen", "rate", "connected", "accepted", "rejected", "units", "reason",
    "used", "left_out",
)  # fmt: skip
DECISION_COLUMNS = ("place", "number", "at", "node", "step", "index", "accepted", "reason", "detail")


def sections(status: Status, ago: Ago) -> dict[str, Any]:
    """Everything but the tables, by name. ago: the moment of a name, so many seconds ago, in unix seconds."""
    return {name: make(status, ago) for name, make in _SECTIONS.items()}


def members(status: Status, ago: Ago) -> Iterator[dict[str, Row]]:
    """The table of members by address, in MEMBER_COLUMNS: some at a time."""
    counted = (status.get("contributions") or {}).get("members") or {}
    uses = (status.get("uses") or {}).get("workers") or {}
    rows = _swarm(status)[:MEMBERS]
    for first in range(0, len(rows), AT_ONCE):
        some = rows[first : first + AT_ONCE]
        yield {
            row["address"]: _member(row, counted.get(row["address"]) or {}, uses.get(row["address"]) or {}, ago)
            for row in some
        }


def decisions(status: Status) -> dict[Hashable, Row]:
    """The newest decisions about files, in DECISION_COLUMNS. Each takes the place of one that is too old, so that only
    it counts as changed."""
    told = (status.get("contributions") or {}).get("recent") or []
    rows = [_decision(one) for one in told[-RECENT:] if isinstance(one.get("number"), int)]
    return {row[0]: row for row in rows}


def _decision(one: Mapping[str, Any]) -> Row:
    return (
        # A place in a ring: a viewer is sent the one row that changed, not thirty that moved up.
        one["number"] % RECENT,
        one["number"],
        number(one.get("at")),
        words(one.get("node"), 42),
        number(one.get("step")),
        number(one.get("index")),
        bool(one.get("accepted")),
        words(one.get("reason"), 40),
        words(one.get("detail")),
    )


def _member(row: Mapping[str, Any], counted: Mapping[str, Any], uses: Mapping[str, Any], ago: Ago) -> Row:
    return (
        words(row["address"], 42),
        words(row.get("role"), 16),
        words(row.get("state"), 16),
        words(row.get("doing"), 24),
        number(row.get("step")),
        ago(row["address"], row.get("seen_seconds_ago")),
        round(number(row.get("tokens_per_second")) or 0),
        bool(row.get("connected")),
        number(counted.get("accepted")) or 0,
        number(counted.get("rejected")) or 0,
        number(counted.get("units")) or 0,
        words(counted.get("reason"), 40),
        number(uses.get("used")) if uses else None,
        number(uses.get("left_out")) if uses else None,
    )


def _swarm(status: Status) -> list[Mapping[str, Any]]:
    return [row for row in status.get("swarm") or [] if isinstance(row.get("address"), str)]


def _numbers(told: Mapping[str, Any], *names: str) -> dict[str, float | int | None]:
    return {name: number(told.get(name)) for name in names}


def _node(status: Status, ago: Ago) -> dict[str, Any]:
    node, work = status.get("node") or {}, status.get("work") or {}
    error = status.get("last_error") or {}
    return {
        "address": words(node.get("address"), 42),
        "role": words(node.get("role"), 16),
        "state": words(node.get("state"), 24),
        "phase": _phase(node.get("phase") or {}, ago),
        "since": ago("started", node.get("uptime_seconds")),
        "version": words(node.get("version"), 40),
        "engine": words(node.get("engine"), 64),
        "waiting": words(work.get("waiting")),
        "restarts": {words(one.get("name"), 24): number(one.get("restarts")) for one in status.get("processes") or []},
        "error": {"what": words(error.get("what")), "remedy": words(error.get("remedy"))} if error else None,
    }


def _phase(phase: Mapping[str, Any], ago: Ago) -> dict[str, Any] | None:
    if not phase:
        return None
    name, text = words(phase.get("name"), 32), words(phase.get("text"))
    since = ago(f"phase {name}", phase.get("since_seconds"))
    return {"name": name, "text": text, "since": since, "progress": number(phase.get("progress"))}


def _run(status: Status, _: Ago) -> dict[str, Any]:
    run, chain, stats = (status.get(name) or {} for name in ("run", "network", "network_stats"))
    return {
        "name": words(run.get("name"), 80),
        "step": number(run.get("step")),
        "total": number(run.get("steps_total")),
        "goal": number(run.get("target_reward")),
        "over": bool(run.get("over")),
        "final": number(run.get("final_reward")),
        "held": number(run.get("policies_held")),
        "network": words(chain.get("name"), 40),
        "chain": number(chain.get("chain_id")),
        "pool": number(chain.get("pool")),
        "chain_ok": bool(chain.get("rpc_ok")),
        "block": number(chain.get("block")),
        "peers": number(stats.get("peers")),
        "members": len(_swarm(status)),
    }


def _training(status: Status, _: Ago) -> dict[str, Any] | None:
    training = status.get("training")
    if not training:
        return None
    latest = training.get("latest") or {}
    return {
        **_numbers(training, "step", "seconds_per_step", "loss", "entropy", "grad_norm"),
        "rate": number(training.get("tokens_per_second")),
        "queued": number(training.get("queued_rollouts")),
        "staleness": table(training.get("staleness")),
        "seconds": table(latest.get("seconds")),
        "file_seconds": table(latest.get("file_seconds")),
        "mismatch": number(latest.get("mismatch_kl")),
        "by_environment": table(latest.get("eval_reward_by_environment")),
        "alarms": [
            {"name": words(one.get("name"), 40), "step": number(one.get("step")), "text": words(one.get("text"))}
            for one in (training.get("alarms") or [])[:RECENT]
        ],
        "ended_by": words(training.get("ended_by")),
        "done": bool(training.get("done")),
    }


def _verdicts(status: Status, _: Ago) -> dict[str, Any] | None:
    told = status.get("contributions")
    if not told:
        return None
    return {**_numbers(told, "accepted", "rejected", "since"), "by_reason": table(told.get("by_reason"))}


def _slashes(status: Status, _: Ago) -> list[dict[str, Any]]:
    return [
        {
            "node": words(one.get("node"), 42),
            "amount": _tokens(one.get("amount_wei")),
            "reason": words(one.get("reason"), 40),
            "transaction": words(one.get("transaction"), 66),
            "block": number(one.get("block")),
        }
        for one in (status.get("slashed") or [])[-RECENT:]
    ]


def _audit(status: Status, _: Ago) -> dict[str, Any] | None:
    audit = status.get("audit")
    if not audit:
        return None
    trainer = audit.get("trainer") or {}
    return {
        **_numbers(audit, "power", "cheated_share", "checked_share"),
        "wanted": number(audit.get("power_wanted")),
        "disputes": table(audit.get("disputes")),
        "quarantined": [
            {"address": words(one.get("address"), 42), "why": words(one.get("why"))}
            for one in (audit.get("quarantined") or [])[:RECENT]
        ],
        "distrust": "" if trainer.get("trusted", True) else words(trainer.get("why")) or "it contradicted itself",
        "audited": _audited(trainer.get("audited") or {}),
    }


def _audited(steps: dict[str, Any]) -> dict[str, Any] | None:
    """Of the trainer's steps, what audits found; None before the first."""
    if not steps.get("steps"):
        return None
    counts = _numbers(steps, "held", "steps", "last_step")
    return {**counts, "by": words(steps.get("last_by"), 42), "says": words(steps.get("last_says"))}


def _money(status: Status, _: Ago) -> dict[str, Any]:
    pay, stake = status.get("pay"), status.get("stake") or {}
    told: dict[str, Any] = {"bonded": _tokens(stake.get("bonded_wei")), "slashed": _tokens(stake.get("slashed_wei"))}
    if not pay:
        return told | {"known": False}
    amounts = {name: _tokens(pay.get(f"{name}_wei")) for name in ("earned", "paid", "due", "waiting")}
    pool = {"escrow": _tokens(pay.get("escrow_wei")), "per_unit": _tokens(pay.get("reward_per_unit_wei"))}
    return {
        **told,
        **amounts,
        **pool,
        "known": True,
        "provider": words(pay.get("provider"), 42),
        "until": number(pay.get("waiting_until")),
        "lasts": number(pay.get("escrow_epochs")),
        "warnings": [words(one) for one in (pay.get("warnings") or [])[:RECENT]],
    }


def _tokens(wei: Any) -> float | None:
    """Whole tokens of an amount that is written in wei."""
    try:
        return round(int(wei) / 1e18, 6)
    except (TypeError, ValueError):
        return None


def _work(status: Status, _: Ago) -> dict[str, Any]:
    work = status.get("work") or {}
    files = _numbers(work, "files_committed", "files_accepted", "files_rejected", "units")
    pace = _numbers(work, "tokens_per_second", "last_reward_estimate")
    return {**files, **pace, "by_reason": table(work.get("rejected_by_reason"))}


def _events(status: Status, _: Ago) -> list[dict[str, Any]]:
    told = [one for one in status.get("events") or [] if one.get("name") in EVENTS]
    return [
        {"at": number(one.get("at")), "name": one["name"], "text": EVENTS[one["name"]] or words(one.get("text"))}
        for one in told[-RECENT:]
    ]


def _rounds(status: Status, _: Ago) -> dict[str, Any] | None:
    """Of a run that pre-trains; None of others."""
    told = status.get("pretraining") or {}
    if not told.get("rounds"):
        return None
    losses = _numbers(told, "round", "rounds", "loss", "eval_loss", "perplexity")
    pace = _numbers(told, "tokens_per_second", "bits_per_parameter", "contributions")
    pairs = [one for one in told.get("losses") or [] if isinstance(one, list | tuple) and len(one) == 2]
    points = [(number(at), number(loss)) for at, loss in pairs[-POINTS:]]
    peers = [one for one in (told.get("peers") or [])[:PEERS] if isinstance(one, Mapping)]
    rows = [
        {
            **_numbers(one, "seat", "round"),
            "address": words(one.get("address"), 42),
            "in": bool(one.get("in")),
            "equal": one.get("equal") if isinstance(one.get("equal"), bool) else None,
        }
        for one in peers
    ]
    return {
        **losses,
        **pace,
        "replicas": table(told.get("replicas")),
        "losses": [point for point in points if None not in point],
        "peers": rows,
        "of_rollouts": bool(told.get("of_rollouts")),
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
