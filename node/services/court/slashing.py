"""The quorum's hand: carries what validators agree on to the chain, and nothing that one of them still disputes.

An objective fault needs the pool's quorum, and that every living validator has spoken or had the time to. A conviction
by a worker's whole record needs, besides, two validators that look with different kinds of engines: the same arithmetic
on two machines sees twice the same (protocol.engines).
"""

from collections.abc import Sequence
from typing import Protocol

import structlog
import trio

from node.recent import Recent
from node.services.court.invalidating import Canceller
from node.services.court.turns import seconds_to_wait
from node.services.station import Station
from node.swarm.ballots import FileState
from node.swarm.register import Work, WorkId
from protocol.checks import OBJECTIVE, PUBLIC_HEARSAY, Reason
from protocol.engines import kind
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import VerdictIssued
from protocol.statements import Outcome, Verdict, WorkCommitment, work_id

log = structlog.get_logger()
TRIES = 20
POLL = 1.0
PENDING = 1024
KINDS_TO_CONVICT = 2


class OnChainCourt(Canceller, Protocol):
    """The part of node.chain that executes a quorum's verdict."""

    async def slash(
        self, commitment: WorkCommitment, node_signature: bytes, reason: int, verdicts: Sequence[bytes]
    ) -> object: ...
    async def evidence(
        self, first: WorkCommitment, first_signature: bytes, second: WorkCommitment, second_signature: bytes
    ) -> object: ...


class Slashing:
    """Executes verdicts until cancelled."""

    def __init__(self, station: Station, court: OnChainCourt) -> None:
        self._station = station
        self._court = court
        self._register = station.jury.register
        self._pending: dict[
            Address, Recent[tuple[WorkId, int], Verdict]
        ] = {}  # by who accuses: nobody crowds out others
        self._executed: set[Address] = set()
        self._evidenced: set[Address] = set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._register.follow_rivals(lambda one, other: nursery.start_soon(self._report_equivocation, one, other))
            nursery.start_soon(self._collect)
            while True:
                for verdict in self._ripe():
                    self._executed.add(verdict.node)
                    nursery.start_soon(self._execute, verdict)
                await trio.sleep(POLL if any(self._pending.values()) else POLL / 4)

    async def _report_equivocation(self, first: Work, second: Work) -> None:
        """Two different commitments for one slot, signed by one key, are evidence by themselves."""
        node = first.node
        if node in self._evidenced:
            return
        self._evidenced.add(node)
        log.warning("worker.equivocated", node=node, index=first.commitment.index)
        one, other = first.signed.message, second.signed.message
        await trio.sleep(seconds_to_wait(self._station, first.id))
        for attempt in range(TRIES):
            if self._station.membership.is_evicted(node):
                return
            try:
                await self._court.evidence(one.commitment, one.signature, other.commitment, other.signature)
                return
            except IntellectError as error:
                log.warning("evidence.failed", node=node, why=error.why, attempt=attempt)
                await trio.sleep(min(2.0**attempt, 30.0))
        self._evidenced.discard(node)

    async def _collect(self) -> None:
        async for signed in self._station.board.subscribe(VerdictIssued):
            verdict = signed.message.verdict
            slashable = verdict.reason in OBJECTIVE or verdict.reason == Reason.CONVICTED or self._heard_by_all(verdict)
            if verdict.outcome == Outcome.SLASH and slashable:
                self._accuse(signed.author, verdict)

    def _accuse(self, by: Address, verdict: Verdict) -> None:
        self._pending.setdefault(by, Recent(PENDING))[work_id(verdict), verdict.reason] = verdict

    def _ripe(self) -> list[Verdict]:
        """Accusations that a quorum shares and nobody disputes."""
        ripe: dict[Address, Verdict] = {}
        for pending in self._pending.values():
            for key, verdict in list(pending.items()):
                if verdict.node in self._executed or self._station.membership.is_evicted(verdict.node):
                    del pending[key]
                elif verdict.node not in ripe and self._may_execute(key[0], verdict):
                    ripe[verdict.node] = verdict
                    del pending[key]
        return list(ripe.values())

    def _may_execute(self, id: WorkId, verdict: Verdict) -> bool:
        ballots = self._station.jury.ballots
        accusing = ballots.accusations(id, verdict.reason)
        if len(accusing) < self._station.quorum or not ballots.undisputed(id):
            return False
        if self._heard_by_all(verdict) and not accusing.keys() >= set(ballots.electorate()):
            return False
        if verdict.reason == Reason.CONVICTED:
            return len({kind(vote.verifier) for vote in accusing.values()}) >= KINDS_TO_CONVICT
        return ballots.state(id) is FileState.REJECTED

    def _heard_by_all(self, verdict: Verdict) -> bool:
        """Whether this rests on what was heard, and costs the stake unless somebody heard otherwise."""
        return verdict.reason in PUBLIC_HEARSAY and self._station.run.spec.audit.hearsay_slashes

    async def _execute(self, verdict: Verdict) -> None:
        id = work_id(verdict)
        work = self._register.get(id)
        if work is None:
            self._executed.discard(verdict.node)
            return
        message = work.signed.message
        await trio.sleep(seconds_to_wait(self._station, id))
        for attempt in range(TRIES):
            if self._station.membership.is_evicted(verdict.node):
                return
            if not self._may_execute(id, verdict):  # while it waited somebody objected, or is not believed any more
                self._accuse(self._station.key.address, verdict)
                break
            accusing = self._station.jury.ballots.accusations(id, verdict.reason)
            in_office = self._station.membership.is_validator  # one signature of somebody who left spoils the others
            signatures = [vote.signature for author, vote in accusing.items() if in_office(author)]
            try:
                await self._court.slash(message.commitment, message.signature, verdict.reason, signatures)
                return
            except IntellectError as error:
                log.warning("slash.failed", node=verdict.node, why=error.why, attempt=attempt)
                await trio.sleep(min(2.0**attempt, 30.0))
        self._executed.discard(verdict.node)
