"""Takes the pay of files that were rejected after they had gone on chain.

A worker publishes the leaves of each epoch's tree beside its root. When the quorum rejects a file that stands among
them (a late verdict, a dispute, optimistic training), the validators' signatures and the leaf's path take its units
out of the epoch, as long as that is not mature.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog
import trio

from node.chain.errors import Reverted
from node.recent import Recent
from node.services.court.turns import seconds_to_wait
from node.services.leaves import Leaves, Place, ShownEpoch
from node.services.station import Station
from node.swarm.ballots import FileState
from node.swarm.register import Work, WorkId
from protocol.errors import IntellectError
from protocol.statements import Outcome, WorkCommitment
from protocol.work import leaf_hash, proof

log = structlog.get_logger()
POLL = 2.0
WATCHED = 4096
"""Works that something was said of lately, or that stand in an epoch."""
TRIES = 5
DONE = ("AlreadyInvalidated", "AlreadyMature", "NothingCommitted", "WorkIsVoided")
"""What the contract answers when there is nothing (left) to take."""


class Canceller(Protocol):
    """The part of node.chain that takes a file out of an epoch."""

    async def invalidate(
        self,
        commitment: WorkCommitment,
        epoch: int,
        proof: Sequence[bytes],
        reason: int,
        verdicts: Sequence[bytes],
    ) -> object: ...


class _Watched(msgspec.Struct):
    """A work that may have to be taken out. due: when it is this validator's turn, by the clock."""

    due: float
    tried: int = 0


class Invalidating:
    """Runs beside a validator's judging."""

    def __init__(self, station: Station, canceller: Canceller, leaves: Leaves) -> None:
        self._station = station
        self._canceller = canceller
        self._register = station.jury.register
        self._leaves = leaves
        self._watched: Recent[WorkId, _Watched] = Recent(WATCHED)
        self.invalidated = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_jury)
            self._leaves.follow(self._note)
            while True:
                await trio.sleep(POLL)
                for id, watched in list(self._watched.items()):
                    await self._look_at(id, watched)
                    await trio.lowlevel.checkpoint()

    async def _follow_jury(self) -> None:
        """Whatever is said of a work may refuse it; only such work is looked at again."""
        async for id in self._station.jury.watch():
            self._watch(id)

    def _watch(self, id: WorkId) -> None:
        if id not in self._watched:
            self._watched[id] = _Watched(self._station.clock.monotonic() + seconds_to_wait(self._station, id))

    def _note(self, epoch: ShownEpoch) -> None:
        """What is known to be refused, or may be, stands in an epoch now."""
        for id in epoch.works:
            if self._register.get(id):
                self._watch(id)

    async def _look_at(self, id: WorkId, watched: _Watched) -> None:
        ballots, work = self._station.jury.ballots, self._register.get(id)
        state = ballots.state(id)
        if work is None or state is FileState.ACCEPTED or watched.tried >= TRIES:
            self._watched.pop(id, None)
            return
        if state is FileState.REJECTED and ballots.undisputed(id) and self._station.clock.monotonic() >= watched.due:
            for place in self._leaves.places(work.node, id):
                await self._invalidate(work, watched, place)

    async def _invalidate(self, work: Work, watched: _Watched, place: Place) -> None:
        reason, signatures = self._quorum(work.id)
        if len(signatures) < self._station.quorum:
            return
        watched.tried += 1
        epoch = place.epoch
        path = await trio.to_thread.run_sync(_path, epoch, place.number)
        try:
            await self._canceller.invalidate(work.commitment, epoch.number, path, reason, signatures)
        except IntellectError as error:
            if isinstance(error, Reverted) and error.name in DONE:
                watched.tried = TRIES
            log.warning("work.not_invalidated", node=epoch.node, epoch=epoch.number, why=error.why)
            return
        watched.tried = TRIES
        self.invalidated += 1
        log.warning("work.invalidated", node=work.node, epoch=epoch.number, work=work.id.hex()[:16], reason=reason)

    def _quorum(self, id: WorkId) -> tuple[int, list[bytes]]:
        """The reason that most believed validators reject a work for (outcome 1), and their signatures."""
        in_office = self._station.membership.is_validator  # one signature of somebody who left spoils the others
        votes = [vote for author, vote in self._station.jury.ballots.rejecting(id).items() if in_office(author)]
        plain = [vote for vote in votes if vote.verdict.outcome == Outcome.REJECT and vote.signature]
        if not plain:
            return 0, []
        reason = Counter(vote.verdict.reason for vote in plain).most_common(1)[0][0]
        return reason, [vote.signature for vote in plain if vote.verdict.reason == reason]


def _path(epoch: ShownEpoch, number: int) -> tuple[bytes, ...]:
    return proof([leaf_hash(id) for id in epoch.works], number)
