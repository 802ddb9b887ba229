"""What /status says: one dictionary, the daemon's own sections and those of the services that run.

The schema is versioned: fields are added, never changed in meaning. A section that no service fills has its empty
form. Knows nothing of what the services are.
"""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import trio

from node.chain.profile import NetworkProfile
from node.config import program_version
from node.member import Member
from node.network.interface import Network, TcpPath
from node.services.base import Crew
from node.services.context import Context
from node.swarm.membership import Membership
from protocol import liveness
from protocol.identity import Address, NodeKey

SCHEMA_VERSION = 1


class StatusPage:
    """Filled in as the daemon comes up; always renders."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._started = time.monotonic()
        self._version = program_version()  # read from disk: once
        self._key: NodeKey | None = None
        self._directory: Path | None = None
        self._profile: NetworkProfile | None = None
        self._pool = -1
        self._role = ""
        self._member: Member | None = None
        self._context: Context | None = None

    # filled in by the daemon

    def identify(self, key: NodeKey, directory: Path) -> None:
        self._key, self._directory = key, directory

    def place(self, profile: NetworkProfile, pool: int, role: str) -> None:
        self._profile, self._pool, self._role = profile, pool, role

    def connect(self, member: Member) -> None:
        self._member = member

    def work_for(self, context: Context) -> None:
        self._context = context

    # the page

    def figures(self) -> dict[str, Any]:
        """The same without a row for each member, of which there may be ten thousand: how many are in which state."""
        return self._page([]) | {"members": self._states()}

    def render(self) -> dict[str, Any]:
        return self._page(self._swarm())

    def _page(self, swarm: list[dict[str, Any]]) -> dict[str, Any]:
        beat = self._crew.beat()
        page: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "node": self._node(str(beat.get("engine", "")), bool(beat.get("finished"))),
            "network": self._chain(),
            "run": self._run(),
            "stake": self._stake(),
            "pay": None,
            "swarm": swarm,
            "work": _no_work(float(beat.get("rate", 0.0))),
            "training": None,
            "contributions": None,
            "verdicts": {"accepted": 0, "rejected": 0, "by_reason": {}, "recent": []},
            "audit": None,
            "trainer": None,
            "auditing": None,
            "uses": None,
            "chair": None,
            "tasks": {"known": [], "work": None, "own": []},
            "slashed": self._slashed(),
            "network_stats": msgspec.structs.asdict(self._member.network.stats()) if self._member else {},
            "board": dict(self._member.board.counts) if self._member else {},
            "engine": None,
            "processes": [],
            "restarts": {},
            "services": self._crew.names,
            "blobs": None,
            "last_error": None,
            "events": [msgspec.structs.asdict(event) for event in self._crew.progress.events],
        }
        for service in self._crew.services:
            for name, section in service.status().items():
                page[name] = joined(page.get(name), section)
        return page

    def _node(self, engine: str, finished: bool) -> dict[str, Any]:
        state, progress = self._crew.state, self._crew.progress
        return {
            "address": self._key.address if self._key else "",
            "peer_id": self._key.peer_id if self._key else "",
            "role": self._role,
            "state": "finished" if finished and state == "working" else state,
            "pid": os.getpid(),
            "uptime_seconds": round(time.monotonic() - self._started, 1),
            "version": self._version,
            "contacts": list(self._member.network.contacts()) if self._member else [],
            "engine": engine,
            "state_dir": str(self._directory or ""),
            "phase": msgspec.structs.asdict(progress.phase),
            "phases": [msgspec.structs.asdict(phase) for phase in progress.phases],
        }

    def _chain(self) -> dict[str, Any]:
        return {
            "name": self._profile.name if self._profile else "",
            "chain_id": self._profile.chain_id if self._profile else 0,
            "pool": self._pool,
            "block": 0,
            "rpc_ok": False,
        }

    def _run(self) -> dict[str, Any]:
        context = self._context
        newest = context.shelf.newest if context else None
        return {
            "name": context.run.spec.name if context else "",
            "run_root": context.run.root.hex() if context else "",
            "step": newest.step if newest else -1,
            "steps_total": context.run.spec.recipe.steps if context else 0,
            "target_reward": context.run.spec.recipe.target_reward if context else None,
            "policy_root": newest.root.hex() if newest else "",
            "policies_held": context.shelf.count if context else 0,
            "over": False,
            "reward": None,
            "final_reward": None,
        }

    def _stake(self) -> dict[str, str]:
        records = self._membership.slashed if self._membership else []
        own = sum(record.amount for record in records if self._key and record.node == self._key.address)
        return {"bonded_wei": "0", "slashed_wei": str(own)}

    def _swarm(self) -> list[dict[str, Any]]:
        if self._member is None:
            return []
        now, table, network = trio.current_time(), self._member.membership.table, self._member.network
        ways, paths = _ways(network), network.paths()
        return [
            self._row(member, now, ways.get(member.address, ""), paths.get(member.address)) for member in table.all()
        ]

    def _states(self) -> dict[str, int]:
        if self._member is None:
            return {}
        now = trio.current_time()
        return Counter(str(member.state(now)) for member in self._member.membership.table.all())

    def _row(self, member: liveness.Member, now: float, way: str, path: TcpPath | None) -> dict[str, Any]:
        beat = member.beat
        own = self._key is not None and member.address == self._key.address
        return {
            "address": member.address,
            "role": beat.role if beat else "",
            "state": "healthy" if own and member.gone is None else str(member.state(now)),
            "doing": beat.state if beat else "",
            "contact": beat.contact if beat else "",
            "contacts": [beat.contact, *beat.also] if beat else [],
            "step": beat.policy_step if beat else -1,
            "seen_seconds_ago": round(now - member.seen_at, 1) if member.seen_at is not None else None,
            "tokens_per_second": beat.rate if beat else 0.0,
            "connected": bool(way) or own,
            "way": "" if own else way,
            "path": None if path is None else msgspec.to_builtins(path),
            "hardware": beat.engine.partition("/")[0] if beat else "",
            "counts_as": self._counts_as(member) if beat and not own else "",
            "clock_ahead_seconds": None if own else _clock_ahead(member, now),
        }

    def _counts_as(self, member: liveness.Member) -> str:
        return self._member.claims.counts_as(member.address, member.beat.engine) if self._member and member.beat else ""

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

    @property
    def _membership(self) -> Membership | None:
        return self._member.membership if self._member else None


def joined(section: Any, more: Any) -> Any:
    """A section with what one more service says of it: fields beside fields, rows after rows, else the newer word."""
    if isinstance(section, dict) and isinstance(more, dict):
        return section | more
    return section + more if isinstance(section, list) and isinstance(more, list) else more


def _ways(network: Network) -> dict[Address, str]:
    """How each connected peer is: direct, punched (both dialled at once, since neither can be dialled) or relayed."""
    relayed, punched = network.relayed(), network.punched()
    named = {peer: "punched" if peer in punched else "direct" for peer in network.connected()}
    return named | dict.fromkeys(relayed, "relayed")


def _clock_ahead(member: liveness.Member, now: float) -> float | None:
    """This machine's clock minus the member's when it was heard last, seconds: a heartbeat bears its author's time."""
    if member.beat is None or member.seen_at is None:
        return None
    return round(time.time() - (now - member.seen_at) - member.beat.at / 1000, 1)


def _no_work(rate: float) -> dict[str, Any]:
    return {
        "files_committed": 0,
        "files_accepted": 0,
        "files_rejected": 0,
        "rejected_by_reason": {},
        "units": 0,
        "tokens_per_second": rate,
        "generate_seconds": 0.0,
        "last_reward_estimate": None,
        "waiting": None,
    }
