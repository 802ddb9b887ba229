"""Takes the pay of files that were rejected after they had gone on chain.

A worker publishes the leaves of each epoch's tree beside its root. When the quorum rejects a file that stands among
them (a late verdict, a dispute, optimistic training), the validators' signatures and the leaf's path take its units
out of the epoch, as long as that is not mature.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog
import trio

from node.chain.errors import Reverted
from node.services.court.turns import seconds_to_wait
from node.services.station import Station
from node.swarm.ballots import FileState
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import RolloutCommitted, WorkPublished
from protocol.statements import Outcome, WorkCommitment
from protocol.work import MAX_LEAVES, MAX_LEAVES_BYTES, Leaf, checked_leaves, proof, tree_of

log = structlog.get_logger()
POLL = 2.0
FETCH_TIMEOUT = 30.0
KEPT = 1024
KEPT_LEAVES = 65_536
"""Of one worker: it crowds out its own old epochs, not those of others."""
QUEUE = 16
BREATH = 256
"""Leaves that are looked at in one go."""
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
    leaves: tuple[Leaf, ...]


class Annulment:
    """Runs beside a validator's judging. find: the commitment to a file, by its root."""

    def __init__(
        self, station: Station, canceller: Canceller, find: Callable[[bytes], RolloutCommitted | None]
    ) -> None:
        self._station = station
        self._canceller = canceller
        self._find = find
        self._epochs: OrderedDict[tuple[Address, int], _Epoch] = OrderedDict()
        self._tried: Counter[bytes] = Counter()
        self._due: OrderedDict[bytes, float] = OrderedDict()
        self._queues: dict[Address, trio.MemorySendChannel[WorkPublished]] = {}
        self.annulled = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect, nursery)
            while True:
                await trio.sleep(POLL)
                for epoch in list(self._epochs.values()):
                    await self._look_through(epoch)

    async def _collect(self, nursery: trio.Nursery) -> None:
        async for signed in self._station.board.subscribe(WorkPublished):
            message = signed.message
            assert isinstance(message, WorkPublished)  # noqa: S101 - the subscription's type
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
            leaves = await trio.to_thread.run_sync(lambda: checked_leaves(node, message.root, path.read_bytes()))
            self.note(node, message, leaves)
        except (IntellectError, OSError) as error:
            log.info("leaves.unusable", node=node, epoch=message.epoch, why=str(error))

    def note(self, node: Address, message: WorkPublished, leaves: tuple[Leaf, ...]) -> None:
        """Keep the leaves of an epoch, once they are known to be those of its root."""
        self._epochs[node, message.epoch] = _Epoch(node, message.epoch, leaves)
        mine = [key for key in self._epochs if key[0] == node]
        while len(mine) > 1 and sum(len(self._epochs[key].leaves) for key in mine) > KEPT_LEAVES:
            del self._epochs[mine.pop(0)]
        while len(self._epochs) > KEPT:
            self._epochs.popitem(last=False)

    async def _look_through(self, epoch: _Epoch) -> None:
        ballots = self._station.jury.ballots
        for place, (root, _) in enumerate(epoch.leaves):
            if place % BREATH == 0:
                await trio.lowlevel.checkpoint()
            rejected = ballots.state(root) is FileState.REJECTED and ballots.undisputed(root)
            if rejected and self._tried[root] < TRIES and self._is_our_turn(root):
                await self._annul(epoch, place, root)

    def _is_our_turn(self, root: bytes) -> bool:
        now = trio.current_time()
        if root not in self._due:
            self._due[root] = now + seconds_to_wait(self._station, root)
        while len(self._due) > MAX_LEAVES:
            self._due.popitem(last=False)
        return now >= self._due[root]

    async def _annul(self, epoch: _Epoch, place: int, root: bytes) -> None:
        message = self._find(root)
        reason, signatures = self._quorum(root)
        if message is None or len(signatures) < self._station.quorum:
            return
        self._tried[root] += 1
        path = proof(tree_of(epoch.node, epoch.leaves), place)
        try:
            await self._canceller.invalidate(message.commitment, epoch.number, path, reason, signatures)
        except IntellectError as error:
            if isinstance(error, Reverted) and error.name in DONE:
                self._tried[root] = TRIES
            log.warning("work.not_invalidated", node=epoch.node, epoch=epoch.number, why=error.why)
            return
        self._tried[root] = TRIES
        self.annulled += 1
        log.warning("work.invalidated", node=epoch.node, epoch=epoch.number, root=root.hex()[:16], reason=reason)

    def _quorum(self, root: bytes) -> tuple[int, list[bytes]]:
        """The reason that most believed validators reject a file for (outcome 1), and their signatures."""
        in_office = self._station.membership.is_validator  # one signature of somebody who left spoils the others
        votes = [vote for author, vote in self._station.jury.ballots.rejecting(root).items() if in_office(author)]
        plain = [vote for vote in votes if vote.verdict.outcome == Outcome.REJECT and vote.signature]
        if not plain:
            return 0, []
        reason = Counter(vote.verdict.reason for vote in plain).most_common(1)[0][0]
        return reason, [vote.signature for vote in plain if vote.verdict.reason == reason]
