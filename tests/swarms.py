"""What /status of a node in a made-up swarm says, of any size and step: for tests and the benchmark of the page."""

import math
import random
from typing import Any

from node.status import checked
from node.status_schema import DaemonStatus
from protocol.liveness import heartbeat_interval

SECONDS = {
    "wait": 0.11,
    "load": 0.01,
    "pack": 0.004,
    "forward_backward": 0.17,
    "optimizer": 0.02,
    "step": 0.194,
    "publish": 0.03,
    "announce": 0.02,
    "eval": 0.06,
}
PACE = 0.5
"""Seconds of a step."""
WHY = "problem 3 is not the one that was drawn"


def address(number: int) -> str:
    return "0x" + random.Random(number).randbytes(20).hex()


def status(
    members: int = 7, step: int = 71, total: int = 150, role: str = "trainer", at: float = 0.0
) -> dict[str, Any]:
    """at: seconds since the node started; everything that moves moves with it and with `step`, which members tell of in
    their heartbeats: as seldom as a swarm of that size sends them."""
    rows = [_row(number, step, at, heartbeat_interval(members, 2.0)) for number in range(members)]
    return {
        "schema_version": 1,
        "node": {
            "address": rows[0]["address"],
            "role": role,
            "state": "working",
            "uptime_seconds": at,
            "version": "0.2.0",
            "engine": "torch-cpu-float32",
            "state_dir": "/secret/place",
            "phase": {
                "name": "working",
                "text": "training on what the pool accepts",
                "since_seconds": at,
                "progress": None,
            },
        },
        "network": {"name": "demo", "chain_id": 31337, "pool": 0, "block": 1200 + int(at), "rpc_ok": True},
        "run": {
            "name": "sort-four-digits",
            "run_root": "ab" * 32,
            "step": step,
            "steps_total": total,
            "target_reward": 0.7,
            "over": False,
            "reward": round(_reward(step), 4),
            "final_reward": None,
            "policies_held": 6,
        },
        "stake": {"bonded_wei": str(100 * 10**18), "slashed_wei": "0"},
        "pay": _pay(),
        "swarm": rows,
        "work": {"files_committed": 0, "tokens_per_second": 0.0, "rejected_by_reason": {}, "waiting": None},
        "training": _training(step) if role == "trainer" else None,
        "contributions": _contributions(rows, step),
        "uses": {"workers": {row["address"]: _uses(row) for row in rows if row["role"] == "worker"}},
        "validator_audits": {
            "power": 0.983,
            "power_wanted": 0.95,
            "cheated_share": 0.1,
            "checked_share": 0.31,
            "disputes": {"raised": 1, "resolved": 1, "open": 0},
            "quarantined": [],
        },
        "leader": {
            "trusted": True,
            "why": "",
            "step_verdicts": {
                "last_step": 69,
                "last_by": rows[1]["address"],
                "last_says": "held",
                "held": 9,
                "steps": 9,
            },
        },
        "slashed": _slashed(rows),
        "network_stats": {"peers": min(members - 1, 12)},
        "processes": [{"name": "learner", "pid": 4711, "restarts": 0}],
        "last_error": None,
        "events": [{"at": 1.79e9 + i, "name": "policy", "text": f"published the policy of step {i}"} for i in range(5)],
    }


def typed(told: dict[str, Any]) -> DaemonStatus:
    """As a daemon's status page has it: a field that no reader could find is an error."""
    return checked(told)


def _row(number: int, step: int, at: float, interval: float) -> dict[str, Any]:
    ago = (at + 0.618 * number * interval) % interval
    heard = max(step - math.ceil(ago / PACE), 0) if number else step
    kind = "trainer" if number == 0 else "validator" if number % 40 == 1 else "worker"
    state = (
        "evicted" if number == 6 else "dead" if number % 31 == 30 else "unhealthy" if number % 37 == 36 else "healthy"
    )
    return {
        "address": address(number),
        "role": kind,
        "state": state,
        "activity": "working",
        "step": heard,
        "seen_seconds_ago": round(ago, 1),
        "tokens_per_second": 4000 + (number * 37 + heard) % 1500 if kind == "worker" else 0.0,
        "connected": number < 14,
    }


def _reward(step: int) -> float:
    return 0.36 + 0.36 * (1 - math.exp(-step / 40))


def _training(step: int) -> dict[str, Any]:
    held_back, training = random.Random(5), random.Random(6)
    steps = range(max(step - 399, 0), step + 1)
    return {
        "step": step,
        "reward_eval": [[one, round(_reward(one) + held_back.gauss(0, 0.025), 4)] for one in steps],
        "reward_train": [[one, round(_reward(one) - 0.05 + training.gauss(0, 0.04), 4)] for one in steps],
        "staleness": {"0": 130, "1": 7210, "2": 310, "dropped": 8},
        "queued_rollouts": 64,
        "seconds_per_step": 0.41,
        "tokens_per_second": 5210.0,
        "loss": 0.012,
        "grad_norm": 0.44,
        "entropy": 0.61,
        "alarms": [],
        "latest": {
            "step": step,
            "seconds": SECONDS,
            "file_seconds": {"commit": 0.5, "verify": 0.31, "fetch": 0.04, "queue": 0.2},
            "staleness": {"0": 2, "1": 28, "2": 2},
            "tokens_per_second": 5100.0 + step % 90,
            "mismatch_kl": 0.02,
        },
        "done": False,
    }  # fmt: skip


def _pay() -> dict[str, Any]:
    amounts = {"earned": 12.5, "paid": 8.0, "due": 1.5, "waiting": 3.0, "escrow": 940.0}
    return {f"{name}_wei": str(int(amount * 10**18)) for name, amount in amounts.items()} | {
        "provider": address(1000000),
        "reward_per_unit_wei": str(10**15),
        "waiting_until": 1790000000,
        "escrow_epochs": 12.5,
        "warnings": [],
    }


def _uses(row: dict[str, Any]) -> dict[str, int]:
    return {"accepted": 2 * row["step"], "used": row["step"], "left_out": 3 if row["state"] == "evicted" else 0}


def _contributions(rows: list[dict[str, Any]], step: int) -> dict[str, Any]:
    workers = [row for row in rows if row["role"] == "worker"]
    counts = {
        row["address"]: {
            "accepted": 0 if row["state"] == "evicted" else row["step"] * 2 + i % 7,
            "rejected": 4 if row["state"] == "evicted" else 0,
            "units": 0 if row["state"] == "evicted" else 64 * (row["step"] * 2 + i % 7),
            "reason": "wrong_problems" if row["state"] == "evicted" else "",
        }
        for i, row in enumerate(workers)
    }
    decided = range(max(3 * step - 20, 0), 3 * step)  # three files are decided in a step
    recent = [_verdict(workers[i % len(workers)], i) for i in decided if workers]
    return {
        "since": 1.79e9,
        "accepted": sum(one["accepted"] for one in counts.values()),
        "rejected": sum(one["rejected"] for one in counts.values()),
        "by_reason": {"wrong_problems": 4},
        "members": counts,
        "recent": recent,
    }


def _verdict(row: dict[str, Any], i: int) -> dict[str, Any]:
    accepted = row["state"] != "evicted"
    why = {"reason": "", "detail": ""} if accepted else {"reason": "wrong_problems", "detail": WHY}
    place = {"at": 1.79e9 + i, "node": row["address"], "step": i // 3, "index": i % 3}
    return {"number": i, "accepted": accepted, **place, **why}


def _slashed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "node": row["address"],
            "amount_wei": str(50 * 10**18),
            "reason": "wrong_problems",
            "transaction": "0x" + "5c" * 32,
            "block": 1100,
        }
        for row in rows
        if row["state"] == "evicted"
    ]
