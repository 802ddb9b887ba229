"""Takes the pay of files that were rejected after they had gone on chain.

A worker publishes the leaves of each epoch's tree beside its root. When the quorum rejects a file that stands among
them (a late verdict, a dispute, optimistic training), the validators' signatures and the leaf's path take its units
out of the epoch, as long as that is not mature.
"""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
import trio

from node.chain.errors import Reverted
from node.recent import Recent
from node.services.court.turns import seconds_to_wait
from node.services.station import Station
from node.swarm.ballots import FileState
from node.swarm.register import Work, WorkId
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import WorkPublished
from protocol.statements import Outcome, WorkCommitment
from protocol.work import MAX_LEAVES_BYTES, checked_leaves, leaf_hash, proof, works_of

log = structlog.get_logger()
POLL = 2.0
FETCH_TIMEOUT = 30.0
KEPT = 1024
KEPT_LEAVES = 65_536
"""Of one worker: it crowds out its own old epochs, not those of others."""
QUEUE = 16
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


class _Epoch(msgspec.Struct, frozen=True):
    node: Address
    number: int
    works: tuple[WorkId, ...]


class _Place(msgspec.Struct, frozen=True):
    epoch: _Epoch
    number: int


class _Watched(msgspec.Struct):
    """A work that may have to be taken out. due: when it is this validator's turn, by the clock."""

    due: float
    tried: int = 0


class Invalidating:
    """Runs beside a validator's judging."""

    def __init__(self, station: Station, canceller: Canceller) -> None:
        self._station = station
        self._canceller = canceller
        self._register = station.jury.register
        self._epochs: OrderedDict[tuple[Address, int], _Epoch] = OrderedDict()
        self._places: dict[WorkId, list[_Place]] = {}
        self._watched: Recent[WorkId, _Watched] = Recent(WATCHED)
        self._queues: dict[Address, trio.MemorySendChannel[WorkPublished]] = {}
        self.invalidated = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect, nursery)
            nursery.start_soon(self._follow_jury)
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
            self._watched[id] = _Watched(trio.current_time() + seconds_to_wait(self._station, id))

    async def _collect(self, nursery: trio.Nursery) -> None:
        async for signed in self._station.board.subscribe(WorkPublished):
            message = signed.message
            queue = self._queues.get(signed.author)
            if queue is None:
                queue, work = trio.open_memory_channel[WorkPublished](QUEUE)
                self._queues[signed.author] = queue
                nursery.start_soon(self._fetch_all, signed.author, work)
            try:
                queue.send_nowait(message)
            except trio.WouldBlock:
                log.info("leaves.skipped", node=signed.author, epoch=message.epoch)

    async def _fetch_all(self, node: Address, work: trio.MemoryReceiveChannel[WorkPublished]) -> None:
        """One worker's leaves, in order: who does not deliver them holds up nobody else's."""
        async for message in work:
            await self._fetch(node, message)

    async def _fetch(self, node: Address, message: WorkPublished) -> None:
        try:
            path = await self._station.blobs.fetch(
                message.leaves_root,
                [node],
                max_size=min(message.leaves_size, MAX_LEAVES_BYTES),
                timeout=FETCH_TIMEOUT,
            )
            self.note(node, message, await trio.to_thread.run_sync(_works, node, message, path))
        except (IntellectError, OSError) as error:
            log.info("leaves.unusable", node=node, epoch=message.epoch, why=str(error))

    def note(self, node: Address, message: WorkPublished, works: Sequence[WorkId]) -> None:
        """Keep which works an epoch is made of, once they are known to be those of its root."""
        key = (node, message.epoch)
        self._forget(key)
        self._epochs[key] = epoch = _Epoch(node, message.epoch, tuple(works))
        for number, id in enumerate(works):
            self._places.setdefault(id, []).append(_Place(epoch, number))
            if self._register.get(id):
                self._watch(id)
        mine = [key for key in self._epochs if key[0] == node]
        while len(mine) > 1 and sum(len(self._epochs[key].works) for key in mine) > KEPT_LEAVES:
            self._forget(mine.pop(0))
        while len(self._epochs) > KEPT:
            self._forget(next(iter(self._epochs)))

    def _forget(self, key: tuple[Address, int]) -> None:
        epoch = self._epochs.pop(key, None)
        for id in epoch.works if epoch else ():
            left = [place for place in self._places.pop(id, ()) if place.epoch is not epoch]
            if left:
                self._places[id] = left

    async def _look_at(self, id: WorkId, watched: _Watched) -> None:
        ballots, work = self._station.jury.ballots, self._register.get(id)
        state = ballots.state(id)
        if work is None or state is FileState.ACCEPTED or watched.tried >= TRIES:
            self._watched.pop(id, None)
            return
        places = self._places.get(id, ())
        if places and state is FileState.REJECTED and ballots.undisputed(id) and trio.current_time() >= watched.due:
            for place in list(places):
                await self._invalidate(work, watched, place)

    async def _invalidate(self, work: Work, watched: _Watched, place: _Place) -> None:
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


def _works(node: Address, message: WorkPublished, path: Path) -> list[WorkId]:
    """Which works stand behind an epoch's root; `path`: what the node gave as its leaves. Raises ProtocolError."""
    leaves = checked_leaves(message.pool, node, message.root, path.read_bytes())
    return works_of(message.pool, node, leaves)


def _path(epoch: _Epoch, number: int) -> tuple[bytes, ...]:
    return proof([leaf_hash(id) for id in epoch.works], number)
