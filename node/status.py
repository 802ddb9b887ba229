"""What /status says: one dictionary, drawn from the services that run.

The schema is versioned: fields are added, never changed in meaning. Knows every service's public counters and
nothing of how they come about.
"""

import os
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import msgspec
import trio

from node.chain.profile import NetworkProfile
from node.services.generating import Worker
from node.services.judging.judge import Validator
from node.services.membership.events import PoolEvents
from node.services.station import Station
from node.services.training.trainer import Trainer
from node.swarm.board import Board
from node.swarm.membership import Membership
from node.swarm.power import describe_audit
from protocol.checks import Reason
from protocol.identity import NodeKey
from protocol.liveness import Member
from protocol.lots import LotPledge

SCHEMA_VERSION = 1


class NetworkView(Protocol):
    """The part of node.network that the status shows."""

    def contacts(self) -> tuple[str, ...]: ...
    def connected(self) -> frozenset[Any]: ...
    def stats(self) -> Any: ...


class Child(Protocol):
    """A child process."""

    name: str

    @property
    def pid(self) -> int | None: ...


def program_version() -> str:
    try:
        return version("intellect-node")
    except PackageNotFoundError:
        return "0+source"


class StatusPage:
    """Filled in as the daemon comes up; always renders."""

    def __init__(self) -> None:
        self.state = "starting"
        self._started = time.monotonic()
        self._key: NodeKey | None = None
        self._directory: Path | None = None
        self._profile: NetworkProfile | None = None
        self._pool = -1
        self._role = ""
        self._network: NetworkView | None = None
        self._membership: Membership | None = None
        self._board: Board | None = None
        self._events: PoolEvents | None = None
        self._station: Station | None = None
        self._actor: Trainer | Worker | Validator | None = None
        self._children: Sequence[Child] = ()

    # filled in by the daemon

    def identify(self, key: NodeKey, directory: Path) -> None:
        self._key, self._directory = key, directory

    def place(self, profile: NetworkProfile, pool: int, role: str) -> None:
        self._profile, self._pool, self._role = profile, pool, role

    def connect(self, network: NetworkView, membership: Membership, board: Board, events: PoolEvents) -> None:
        self._network, self._membership, self._board, self._events = network, membership, board, events

    def work_for(self, station: Station) -> None:
        self._station = station

    def play(self, actor: Trainer | Worker | Validator, children: Sequence[Child]) -> None:
        self._actor, self._children = actor, children
        self.state = "working"

    # for the heartbeat

    @property
    def rate(self) -> float:
        return round(self._actor.rate.per_second, 1) if self._actor else 0.0

    @property
    def finished(self) -> bool:
        return isinstance(self._actor, Trainer) and self._actor.done

    @property
    def pledges(self) -> tuple[LotPledge, ...]:
        return self._actor.lottery.pledges if isinstance(self._actor, Validator) else ()

    @property
    def engine(self) -> str:
        return getattr(self._children[0], "engine_name", "") if self._children else ""

    # the page

    def render(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "node": self._node(),
            "network": self._chain(),
            "run": self._run(),
            "stake": self._stake(),
            "swarm": self._swarm(),
            "work": self._work(),
            "training": self._training(self._actor) if isinstance(self._actor, Trainer) else None,
            "verdicts": self._verdicts(),
            "audit": self._audit(),
            "slashed": self._slashed(),
            "network_stats": self._traffic(),
            "board": dict(self._board.counts) if self._board else {},
            "processes": [{"name": child.name, "pid": child.pid} for child in self._children],
            "last_error": None,
        }

    def _node(self) -> dict[str, Any]:
        return {
            "address": self._key.address if self._key else "",
            "peer_id": self._key.peer_id if self._key else "",
            "role": self._role,
            "state": "finished" if self.finished and self.state == "working" else self.state,
            "pid": os.getpid(),
            "uptime_seconds": round(time.monotonic() - self._started, 1),
            "version": program_version(),
            "contacts": list(self._network.contacts()) if self._network else [],
            "engine": self.engine,
            "state_dir": str(self._directory or ""),
        }

    def _chain(self) -> dict[str, Any]:
        return {
            "name": self._profile.name if self._profile else "",
            "chain_id": self._profile.chain_id if self._profile else 0,
            "pool": self._pool,
            "block": self._events.block if self._events else 0,
            "rpc_ok": self._events.healthy if self._events else False,
        }

    def _run(self) -> dict[str, Any]:
        station = self._station
        newest = station.shelf.newest if station else None
        return {
            "name": station.run.spec.name if station else "",
            "run_root": station.run.root.hex() if station else "",
            "step": newest.step if newest else -1,
            "steps_total": station.run.spec.recipe.steps if station else 0,
            "policy_root": newest.root.hex() if newest else "",
            "policies_held": station.shelf.count if station else 0,
        }

    def _stake(self) -> dict[str, str]:
        slashed = self._membership.slashed if self._membership and self._key else []
        own = sum(record.amount for record in slashed if self._key and record.node == self._key.address)
        bonded = self._events.bonded if self._events else 0
        return {"bonded_wei": str(bonded), "slashed_wei": str(own)}

    def _swarm(self) -> list[dict[str, Any]]:
        if not self._membership:
            return []
        now = trio.current_time()
        connected = self._network.connected() if self._network else frozenset()
        return [self._member(member, now, member.address in connected) for member in self._membership.table.all()]

    def _member(self, member: Member, now: float, connected: bool) -> dict[str, Any]:
        beat = member.beat
        own = self._key is not None and member.address == self._key.address
        return {
            "address": member.address,
            "role": beat.role if beat else "",
            "state": "healthy" if own and member.gone is None else str(member.state(now)),
            "doing": beat.state if beat else "",
            "step": beat.policy_step if beat else -1,
            "seen_seconds_ago": round(now - member.seen_at, 1) if member.seen_at is not None else None,
            "tokens_per_second": beat.rate if beat else 0.0,
            "connected": connected or own,
        }

    def _work(self) -> dict[str, Any]:
        actor = self._actor
        counts = actor.counts if isinstance(actor, Worker) else {}
        return {
            "files_committed": sum(counts.values()),
            "files_accepted": counts.get("accepted", 0),
            "files_rejected": counts.get("rejected", 0),
            "rejected_by_reason": dict(actor.refused) if isinstance(actor, Worker) else {},
            "units": actor.units if isinstance(actor, Worker) else 0,
            "tokens_per_second": self.rate,
            "generate_seconds": round(actor.generate_seconds, 2) if isinstance(actor, Worker) else 0.0,
            "last_reward_estimate": actor.last_reward if isinstance(actor, Worker) else None,
        }

    def _training(self, trainer: Trainer) -> dict[str, Any]:
        last = trainer.metrics[-1] if trainer.metrics else None
        staleness: dict[str, int] = {str(age): trainer.staleness[age] for age in sorted(trainer.staleness)}
        return {
            "step": trainer.step,
            "reward_eval": [[m.step, m.eval_reward] for m in trainer.metrics if m.eval_reward is not None],
            "reward_train": [[m.step, m.reward_mean] for m in trainer.metrics if m.reward_mean is not None],
            "staleness": {**staleness, "dropped": trainer.dropped},
            "queued_rollouts": trainer.queued,
            "seconds_per_step": round(trainer.seconds / trainer.step, 3) if trainer.step > 0 else None,
            "tokens_per_second": self.rate,
            "loss": last.loss if last else None,
            "grad_norm": last.grad_norm if last else None,
            "entropy": last.entropy if last else None,
            "alarms": [msgspec.to_builtins(alarm) for alarm in trainer.alarms],
            "latest": trainer.latest,
            "ended_by": trainer.ended_by,
            "done": trainer.done,
            "seconds": round(trainer.seconds, 2),
            "invalidated_files": trainer.invalidated,
        }

    def _verdicts(self) -> dict[str, Any]:
        actor = self._actor
        if not isinstance(actor, Validator):
            return {"accepted": 0, "rejected": 0, "by_reason": {}, "recent": []}
        now = time.monotonic()
        recent = []
        for judged in actor.recent:
            row = msgspec.structs.asdict(judged)
            row["reason"] = Reason(judged.reason).name.lower()
            row["seconds_ago"] = round(now - row.pop("at"), 1)
            recent.append(row)
        return {
            "accepted": actor.outcomes["accepted"],
            "rejected": actor.outcomes["rejected"],
            "by_reason": dict(actor.reasons),
            "withheld": actor.outcomes["withheld"],
            "skipped": actor.outcomes["skipped"],
            "recent": recent,
        }

    def _audit(self) -> dict[str, Any] | None:
        station = self._station
        return describe_audit(station.jury, station.membership, station.run.spec.audit) if station else None

    def _slashed(self) -> list[dict[str, Any]]:
        records = self._membership.slashed if self._membership else []
        return [
            {
                "node": record.node,
                "provider": record.provider,
                "amount_wei": str(record.amount),
                "reason": record.reason_name,
                "transaction": record.transaction,
                "block": record.block,
            }
            for record in records
        ]

    def _traffic(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self._network.stats()) if self._network else {}
