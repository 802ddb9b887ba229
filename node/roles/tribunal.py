"""The quorum's hand: carries what validators agree on to the chain, and nothing that one of them still disputes.

An objective fault needs the pool's quorum, and that every living validator has spoken or had the time to. A conviction
by a worker's whole record needs, besides, two validators that look with different kinds of engines: the same arithmetic
on two machines sees twice the same (protocol.engines).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog
import trio

from node.roles.annulment import Canceller
from node.roles.common import Station
from node.roles.turns import seconds_to_wait
from node.swarm.ballots import FileState
from protocol.checks import OBJECTIVE, PUBLIC_HEARSAY, Reason
from protocol.engines import kind
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import RolloutCommitted, VerdictIssued
from protocol.statements import Outcome, Verdict, WorkCommitment

log = structlog.get_logger()
TRIES = 20
POLL = 1.0
PENDING = 1024
KINDS_TO_CONVICT = 2


class Judge(Canceller, Protocol):
    """The part of node.chain that executes a quorum's verdict."""

    async def slash(
        self, commitment: WorkCommitment, node_signature: bytes, reason: int, verdicts: Sequence[bytes]
    ) -> object: ...
    async def evidence(
        self, first: WorkCommitment, first_signature: bytes, second: WorkCommitment, second_signature: bytes
    ) -> object: ...


class Tribunal:
    """Executes verdicts until cancelled. find: the commitment to a file, by its root."""

    def __init__(self, station: Station, judge: Judge, find: Callable[[bytes], RolloutCommitted | None]) -> None:
        self._station = station
        self._judge = judge
        self._find = find
        self._pending: OrderedDict[tuple[bytes, int], Verdict] = OrderedDict()
        self._executed: set[Address] = set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect)
            while True:
                for verdict in self._ripe():
                    self._executed.add(verdict.node)
                    nursery.start_soon(self._execute, verdict)
                await trio.sleep(POLL if self._pending else POLL / 4)

    async def report_equivocation(self, first: RolloutCommitted, second: RolloutCommitted) -> None:
        """Two contradicting commitments signed by one key are evidence by themselves."""
        node = first.commitment.node
        if node in self._executed:
            return
        self._executed.add(node)
        log.warning("worker.equivocated", node=node, index=first.commitment.index)
        try:
            await self._judge.evidence(first.commitment, first.signature, second.commitment, second.signature)
        except IntellectError as error:
            self._executed.discard(node)
            log.warning("evidence.failed", node=node, why=error.why)

    async def _collect(self) -> None:
        async for signed in self._station.board.subscribe(VerdictIssued):
            message = signed.message
            assert isinstance(message, VerdictIssued)  # noqa: S101 - the subscription's type
            verdict = message.verdict
            slashable = verdict.reason in OBJECTIVE or verdict.reason == Reason.CONVICTED or self._heard_by_all(verdict)
            if verdict.outcome == Outcome.SLASH and slashable:
                self._pending[verdict.file_root, verdict.reason] = verdict
            while len(self._pending) > PENDING:
                self._pending.popitem(last=False)

    def _ripe(self) -> list[Verdict]:
        """Accusations that a quorum shares and nobody disputes."""
        ripe: dict[Address, Verdict] = {}
        for key, verdict in list(self._pending.items()):
            if verdict.node in self._executed or not self._station.membership.is_member(verdict.node):
                del self._pending[key]
            elif verdict.node not in ripe and self._may_execute(verdict):
                ripe[verdict.node] = verdict
                del self._pending[key]
        return list(ripe.values())

    def _may_execute(self, verdict: Verdict) -> bool:
        ballots = self._station.jury.ballots
        accusing = ballots.accusations(verdict.file_root, verdict.reason)
        if len(accusing) < self._station.quorum or not ballots.undisputed(verdict.file_root):
            return False
        if self._heard_by_all(verdict) and not accusing.keys() >= set(ballots.electorate()):
            return False
        if verdict.reason == Reason.CONVICTED:
            return len({kind(vote.verifier) for vote in accusing.values()}) >= KINDS_TO_CONVICT
        return ballots.state(verdict.file_root) is FileState.REJECTED

    def _heard_by_all(self, verdict: Verdict) -> bool:
        """Whether this rests on what was heard, and costs the stake unless somebody heard otherwise."""
        return verdict.reason in PUBLIC_HEARSAY and self._station.run.spec.audit.hearsay_slashes

    async def _execute(self, verdict: Verdict) -> None:
        message = self._find(verdict.file_root)
        if message is None or message.commitment.node != verdict.node:
            self._executed.discard(verdict.node)
            return
        await trio.sleep(seconds_to_wait(self._station, verdict.file_root))
        for attempt in range(TRIES):
            if not self._station.membership.is_member(verdict.node):
                return
            if not self._may_execute(verdict):  # while it waited somebody objected, or is not believed any more
                self._pending[verdict.file_root, verdict.reason] = verdict
                break
            accusing = self._station.jury.ballots.accusations(verdict.file_root, verdict.reason)
            in_office = self._station.membership.is_validator  # one signature of somebody who left spoils the others
            signatures = [vote.signature for author, vote in accusing.items() if in_office(author)]
            try:
                await self._judge.slash(message.commitment, message.signature, verdict.reason, signatures)
                return
            except IntellectError as error:
                log.warning("slash.failed", node=verdict.node, why=error.why, attempt=attempt)
                await trio.sleep(min(2.0**attempt, 30.0))
        self._executed.discard(verdict.node)
