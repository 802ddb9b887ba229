"""What /status says: the daemon's own sections and those of the services that run, as `node.status_schema` names them.

A section that no service fills has its empty form. Knows nothing of what the services are.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import trio

from node.bounded_dict import BoundedDict
from node.chain.profile import NetworkProfile
from node.config import program_version
from node.member import Participant
from node.network.interface import Network, TcpPath
from node.processes.opening import Opening
from node.services.base import ServiceManager
from node.services.context import Context
from node.status_schema import DaemonStatus, MemberPart, PathPart
from node.swarm.membership import Membership
from protocol import liveness
from protocol.checks import reason_name
from protocol.identity import Address, NodeKey


class StatusPage:
    """Filled in as the daemon comes up; always renders."""

    def __init__(self, manager: ServiceManager) -> None:
        self._manager = manager
        self._started = time.monotonic()
        self._version = program_version()  # read from disk: once
        self._key: NodeKey | None = None
        self._directory: Path | None = None
        self._profile: NetworkProfile | None = None
        self._pool = -1
        self._role = ""
        self._member: Participant | None = None
        self._context: Context | None = None
        self._opening: Opening | None = None
        self._checked: BoundedDict[object, None] = BoundedDict(64, refresh=True)

    # filled in by the daemon

    def wait_for_files(self, opening: Opening) -> None:
        self._opening = opening

    def identify(self, key: NodeKey, directory: Path) -> None:
        self._key, self._directory = key, directory

    def place(self, profile: NetworkProfile, pool: int, role: str) -> None:
        self._profile, self._pool, self._role = profile, pool, role

    def connect(self, member: Participant) -> None:
        self._member = member

    def work_for(self, context: Context) -> None:
        self._context = context

    # the page

    def figures(self) -> dict[str, Any]:
        """The same without a row for each member, of which there may be ten thousand: how many are in which state."""
        return msgspec.to_builtins(self._page([])) | {"members": self._states()}

    def render(self) -> DaemonStatus:
        return self._page(self._swarm())

    def _page(self, swarm: list[MemberPart]) -> DaemonStatus:
        beat = self._manager.beat()
        page: dict[str, Any] = {
            "node": self._node(str(beat.get("engine", "")), bool(beat.get("finished")), str(beat.get("state", ""))),
            "network": self._chain(),
            "run": self._run(),
            "stake": self._stake(),
            "work": {"tokens_per_second": float(beat.get("rate", 0.0))},
            "verdicts": {},
            "slashed": self._slashed(),
            "network_stats": msgspec.structs.asdict(self._member.network.stats()) if self._member else {},
            "board": dict(self._member.board.counts) if self._member else {},
            "services": self._manager.names,
            "events": [msgspec.structs.asdict(event) for event in self._manager.progress.events],
        }
        for service in self._manager.services:
            for name, section in service.status().items():
                page[name] = joined(page.get(name), section)
        # Looked through once for each shape: that takes longer than to make the page, and no program's words change.
        shape = frozenset((name, _shape(section)) for name, section in page.items())
        status = msgspec.convert(page, DaemonStatus) if shape in self._checked else checked(page)
        self._checked[shape] = None
        return msgspec.structs.replace(status, swarm=swarm)

    def _node(self, engine: str, finished: bool, said: str) -> dict[str, Any]:
        """said: its state, by a service that knows better."""
        state, progress = self._manager.state, self._manager.progress
        state = said if said and state == "working" else state
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
            "waited_for_files": self._opening.waited if self._opening else 0,
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
        newest = context.policy_cache.newest if context else None
        return {
            "name": context.run.spec.name if context else "",
            "run_root": context.run.root.hex() if context else "",
            "step": newest.step if newest else -1,
            "steps_total": context.run.spec.recipe.steps if context else 0,
            "target_reward": context.run.spec.recipe.target_reward if context else None,
            "policy_root": newest.root.hex() if newest else "",
            "policies_held": context.policy_cache.count if context else 0,
            "over": False,
            "reward": None,
            "final_reward": None,
        }

    def _stake(self) -> dict[str, str]:
        records = self._membership.slashed if self._membership else []
        own = sum(record.amount for record in records if self._key and record.node == self._key.address)
        return {"bonded_wei": "0", "slashed_wei": str(own)}

    def _swarm(self) -> list[MemberPart]:
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

    def _row(self, member: liveness.LiveMember, now: float, way: str, path: TcpPath | None) -> MemberPart:
        beat = member.beat
        own = self._key is not None and member.address == self._key.address
        return MemberPart(
            address=member.address,
            role=beat.role if beat else "",
            state="healthy" if own and member.gone is None else str(member.state(now)),
            activity=beat.state if beat else "",
            contact=beat.contact if beat else "",
            contacts=[beat.contact, *beat.also] if beat else [],
            step=beat.policy_step if beat else -1,
            seen_seconds_ago=round(now - member.seen_at, 1) if member.seen_at is not None else None,
            tokens_per_second=beat.rate if beat else 0.0,
            connected=bool(way) or own,
            way="" if own else way,
            path=None if path is None else PathPart(**msgspec.structs.asdict(path)),
            hardware=beat.engine.partition("/")[0] if beat else "",
            counts_as=self._counts_as(member) if beat and not own else "",
            version=beat.version if beat else "",
            clock_ahead_seconds=None if own else _clock_ahead(member, now),
        )

    def _counts_as(self, member: liveness.LiveMember) -> str:
        return self._member.claims.counts_as(member.address, member.beat.engine) if self._member and member.beat else ""

    def _slashed(self) -> list[dict[str, Any]]:
        records = self._membership.slashed if self._membership else []
        return [
            {
                "node": record.node,
                "provider": record.provider,
                "amount_wei": str(record.amount),
                "reason": reason_name(record.reason),
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


def _shape(section: Any) -> object:
    """What fields it has, however many rows."""
    # No table by address or by step: each page would be another shape, which is kept.
    if isinstance(section, dict) and len(section) < 64 and str(next(iter(section), "name"))[:1].isalpha():
        return frozenset((name, _shape(value)) for name, value in section.items())
    return type(section)


def checked(page: dict[str, Any]) -> DaemonStatus:
    """The page as the schema has it. Raises TypeError where a service says what no reader could find there."""
    status = msgspec.convert(page, DaemonStatus)
    if lost := next(_lost(msgspec.to_builtins(page), msgspec.to_builtins(status)), None):
        raise TypeError(f"/status has no field {lost}: name it in node/status_schema.py")
    return status


def _lost(said: Any, kept: Any, place: str = "") -> Iterator[str]:
    """What of it is not there any more."""
    # Of a table that are looked at: one function made them all, and ten thousand would hold up the event loop.
    rows = 64
    if isinstance(said, dict) and isinstance(kept, dict):
        for name, value in islice(said.items(), rows):
            where = f"{place}.{name}".removeprefix(".")
            if name not in kept:
                yield where
            else:
                yield from _lost(value, kept[name], where)
    elif isinstance(said, list | tuple) and isinstance(kept, list | tuple):
        for one, other in islice(zip(said, kept, strict=True), rows):
            yield from _lost(one, other, place)


def _ways(network: Network) -> dict[Address, str]:
    """How each connected peer is: direct, punched (both dialled at once, since neither can be dialled) or relayed."""
    relayed, punched = network.relayed(), network.punched()
    named = {peer: "punched" if peer in punched else "direct" for peer in network.connected()}
    return named | dict.fromkeys(relayed, "relayed")


def _clock_ahead(member: liveness.LiveMember, now: float) -> float | None:
    """This machine's clock minus the member's when it was heard last, seconds: a heartbeat bears its author's time."""
    if member.beat is None or member.seen_at is None:
        return None
    return round(time.time() - (now - member.seen_at) - member.beat.at / 1000, 1)
