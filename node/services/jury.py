"""The pool's jury, as a service: every member counts verdicts, watches lots and hears disputes by itself."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Self

import msgspec
import trio

from node.recent import Recent
from node.services.base import Service
from node.services.station import Station
from node.services.workplace import Workplace
from node.swarm.ballots import Ballots, FileState
from node.swarm.jury import Jury
from node.swarm.membership import Membership
from node.swarm.register import Register, Work, WorkId
from node.swarm.taskbook import describe_task
from protocol.audit import AuditSpec, detection_power, window_of
from protocol.checks import reason_name
from protocol.identity import Address

LOOK_AGAIN = 5.0
"""Seconds between two looks at what the clock may have decided."""


class Counting(Service):
    name = "jury"

    def __init__(self, station: Station) -> None:
        self._station = station
        self._contributions = Contributions(station.jury.register, station.jury.ballots, station.clock.wall)

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._count)
            nursery.start_soon(self._count_by_the_clock)
            await self._station.jury.run()

    def status(self) -> dict[str, Any]:
        station = self._station
        audit = describe_audit(station.jury, station.membership, station.run.spec.audit)
        tasks = [describe_task(task, station.clock.monotonic()) for task in station.jury.tasks.tasks()]
        return {"audit": audit, "contributions": self._contributions.status(), "tasks": {"known": tasks}}

    async def _count(self) -> None:
        async for id in self._station.jury.watch():
            self._contributions.look(id)

    async def _count_by_the_clock(self) -> None:
        while True:
            await trio.sleep(LOOK_AGAIN)
            self._station.jury.look_at_results()
            self._contributions.look_again()


def describe_audit(jury: Jury, membership: Membership, audit: AuditSpec) -> dict[str, Any]:
    """power: chance that a cheat in `cheated_share` of a worker's groups was seen in `window`, for the worker that was
    checked least; pledged: the share of groups that the validators promise to recompute in the newest window."""
    lots, ballots = jury.lots, jury.ballots
    window = lots.last_full_window()
    powers = [row for row in lots.powers(window) if membership.is_member(row.node)]
    current = window_of(max(lots.newest_step, 0), audit)
    live = jury.validators()
    pledged = lots.pledged_share(current, set(ballots.electorate()))
    groups = round(sum(row.groups for row in powers) / len(powers)) if powers else 0
    return {
        "window": window,
        "trust": audit.trust,
        "cheated_share": audit.cheated_share,
        "power_wanted": audit.power,
        "power": round(min(row.power for row in powers), 4) if powers else None,
        "groups_per_worker": groups,
        "checked_share": _share(sum(row.checked for row in powers), sum(row.groups for row in powers)),
        "pledged_share": round(pledged, 4),
        "pledged_power": round(detection_power(pledged, groups, audit), 4),
        "validators": [
            {"address": one, "silent": ballots.is_silent(one), "believed": one not in ballots.quarantined}
            for one in live
        ],
        "quarantined": [
            {"address": one.validator, "why": one.why, "evidence": len(one.evidence)}
            for one in ballots.quarantined.values()
        ],
        "disputes": {
            "raised": ballots.disputes_raised,
            "resolved": ballots.disputes_resolved,
            "open": len(ballots.open_disputes()),
        },
        "trainer": describe_trust(jury),
        "lots": {"kept": lots.kept, "early": lots.early, "broken": lots.broken},
    }


def describe_trust(jury: Jury) -> dict[str, Any]:
    """Whether the trainer's word is taken here; if not, what it signed that cannot both be true."""
    fork = jury.policies.fork
    said = {"trusted": fork is None, "why": fork.what if fork else "", "evidence": len(fork.evidence) if fork else 0}
    return said | {"unstated": jury.policies.unstated, "audited": jury.steps.status()}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


# Who contributed what, by this node's own count of the validators' verdicts since it started.
# A total over restarts would count twice what the board repeats to a node that comes back.
# Bounded: one small record per member, the newest decisions, and the works whose decision may still change.
KEPT, OPEN = 2048, 1024
"""Of each member: works whose decision is remembered, so that one that changes is not counted twice; works that
somebody has judged and nothing has decided yet."""
SHOWN = 50
DECIDED = (FileState.ACCEPTED, FileState.REJECTED)


class Contribution(msgspec.Struct):
    """Of one member. accepted, rejected: files; units: of the accepted ones; reason: of the last rejection."""

    accepted: int = 0
    rejected: int = 0
    units: int = 0
    reason: str = ""


class Decision(msgspec.Struct, frozen=True):
    """What became of one file. number: of the decision, from 0 on; at: unix seconds; reason, detail: of a rejection, by
    one who rejected it."""

    number: int
    at: float
    node: Address
    step: int
    index: int
    accepted: bool
    reason: str = ""
    detail: str = ""


class Contributions:
    """wall: unix seconds."""

    def __init__(self, register: Register, ballots: Ballots, wall: Callable[[], float]) -> None:
        self._register = register
        self._ballots = ballots
        self._wall = wall
        self.since = wall()
        self.members: dict[Address, Contribution] = {}
        self.reasons: Counter[str] = Counter()
        self.recent: deque[Decision] = deque(maxlen=SHOWN)
        self._states: dict[Address, Recent[WorkId, FileState]] = {}
        self._open: dict[Address, Recent[WorkId, None]] = {}
        self._told = 0

    def look(self, id: WorkId) -> None:
        """Something was said of a work, or time has passed: count what is decided."""
        work = self._register.get(id)
        if work is None:
            return
        states = self._states.setdefault(work.node, Recent(KEPT))
        before, state = states.get(id), self._ballots.state(id)
        waiting = self._open.setdefault(work.node, Recent(OPEN))
        if state in DECIDED:
            waiting.pop(id, None)
        elif before is None:
            waiting[id] = None
        if state == before or (before is None and state not in DECIDED):
            return
        states[id] = state
        if before in DECIDED:
            self._count(work, before, -1)
        if state in DECIDED:
            self._count(work, state, 1)
            self._tell(work, state)

    def look_again(self) -> None:
        """Ask about what was not decided when it was last spoken of."""
        for waiting in self._open.values():
            for id in list(waiting):
                if self._register.get(id) is None:
                    del waiting[id]
                self.look(id)

    def status(self) -> dict[str, Any]:
        """For /status."""
        members = {address: msgspec.structs.asdict(one) for address, one in self.members.items()}
        return {
            "since": round(self.since, 1),
            "accepted": sum(one.accepted for one in self.members.values()),
            "rejected": sum(one.rejected for one in self.members.values()),
            "by_reason": dict(self.reasons),
            "members": members,
            "recent": [msgspec.structs.asdict(one) for one in self.recent],
        }

    def _count(self, work: Work, state: FileState | None, by: int) -> None:
        one = self.members.setdefault(work.node, Contribution())
        if state is FileState.ACCEPTED:
            one.accepted += by
            one.units += by * work.commitment.units
        else:
            one.rejected += by

    def _tell(self, work: Work, state: FileState) -> None:
        accepted = state is FileState.ACCEPTED
        reason, detail = ("", "") if accepted else self._why(work)
        if not accepted:
            self.reasons[reason] += 1
            self.members[work.node].reason = reason
        index = work.commitment.index
        at = round(self._wall(), 1)
        self.recent.append(Decision(self._told, at, work.node, work.step, index, accepted, reason, detail))
        self._told += 1

    def _why(self, work: Work) -> tuple[str, str]:
        """The reason that most of those who rejected it gave, and one's words for it."""
        said = list(self._ballots.rejecting(work.id).values())
        if not said:
            return "disputed", ""
        reason, _ = Counter(one.verdict.reason for one in said).most_common(1)[0]
        detail = next(one.detail for one in said if one.verdict.reason == reason)
        return reason_name(reason), detail
