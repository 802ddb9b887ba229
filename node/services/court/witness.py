"""What one validator can testify: what it knows to count for whom, and since when it has not looked away.

What is heard of and what counts (`Duties`) goes into the journal as it happens, with the chain's time. The record is
unbroken from a block on: a restart of more than a moment, or a time in which nobody was heard, begins it anew. Of what
came before, nothing is said.
"""

from typing import Protocol

import msgspec
import structlog
import trio

from node.chain.client import Block
from node.recent import Recent
from node.services.duties import Duties
from node.services.station import Station
from node.swarm.ballots import FileState
from node.swarm.hearing import is_cut_off, voices
from node.swarm.register import BACKLOG_SECONDS, Work, WorkId
from protocol.identity import Address
from protocol.messages import VerdictIssued
from protocol.statements import Outcome
from protocol.work import EpochFault, Leaf

log = structlog.get_logger()
POLL = 2.0
NEW = 4096
"""Works that wait to be written down."""
MOST_HEARD = 65_536
"""Works that are remembered of one node."""
BRIDGED = 60.0
"""Seconds away after which the board still tells all that was missed."""
RECORD = "unbroken_record"


class Record(msgspec.Struct, array_like=True):
    """Since when this node has heard everything: the block of then, and its successor's time (0 until there is one);
    up to when, by the chain's clock and by ours."""

    block: int
    since: int
    until: int
    wall: float


class Clock(Protocol):
    """The part of node.chain that knows the time."""

    async def block(self, number: int | None = None) -> Block: ...


class Witness:
    """What one validator has seen of others' work."""

    def __init__(self, station: Station, clock: Clock, duties: Duties) -> None:
        self._station = station
        self._journal = station.journal
        self._register = station.jury.register
        self._clock = clock
        self._new: Recent[WorkId, tuple[Address, int]] = Recent(NEW)
        self._counted: Recent[WorkId, tuple[Address, int]] = Recent(NEW)
        self._record: Record | None = None
        self._started = self._opened = self._station.clock.monotonic()
        self._missed = False
        self.now = 0
        """The chain's time, of its newest block; 0 before it was asked."""
        self._register.follow(self._hear)
        duties.follow(self._count)

    async def run(self) -> None:
        while True:
            await self.note_what_counts()
            await trio.sleep(POLL)

    # what counts

    def _hear(self, work: Work) -> None:
        self._new[work.id] = (work.node, work.commitment.units)

    def _count(self, node: Address, id: WorkId, units: int) -> None:
        self._counted[id] = (node, units)

    async def note_what_counts(self) -> None:
        """Write down what was heard of and what has come to count since the last look."""
        if not self.now:
            return  # when, nobody knows yet
        rows = [(id, *what, self.now, False) for id, what in self._new.items()]
        rows += [(id, *what, self.now, True) for id, what in self._counted.items()]
        self._new.clear()
        self._counted.clear()
        if rows:
            await self._journal.do(self._journal.note_heard, rows, MOST_HEARD)

    def serves(self, node: Address) -> bool:
        """Whether its leaves may stand for judging or training."""
        return self._station.membership.may_validate(node) or self._station.membership.is_trainer(node)

    async def fault_of(self, node: Address, leaf: Leaf, id: WorkId, *, late: bool) -> EpochFault | None:
        """What may be said of a leaf that is not known to count, at this moment. What a validator or the trainer did is
        known from their own messages alone, which gossip may have lost: if there is something that it can stand for,
        that costs pay and no stake."""
        if not await self._is_doubtful(id, late=late):
            return None
        if self.serves(node) and await self._exists(leaf):
            return EpochFault.UNHEARD if late else None
        return EpochFault.INVENTED

    async def _exists(self, leaf: Leaf) -> bool:
        """Whether the work that a judgement names, or the policy, was ever heard of."""
        if leaf.file_root == leaf.policy_root:
            return self._station.jury.policies.find(leaf.policy_root) is not None
        known = self._register.get(leaf.file_root) is not None
        return known or await self._journal.do(self._journal.was_heard, leaf.file_root)

    async def _is_doubtful(self, id: WorkId, *, late: bool) -> bool:
        """Whether a work that is not known to be accepted may be called invented: nobody committed to it; or, when it
        is late, no quorum has accepted it. Never one that this node itself has found good, nor one that was refused or
        is disputed: that costs its own pay, and is others' business."""
        work = self._register.get(id)
        if work is not None and (not late or self._station.jury.ballots.state(id) is not FileState.OPEN):
            return False
        if work is None and await self._journal.do(self._journal.was_heard, id):
            return False  # before a restart; its votes may have come meanwhile
        said = await self._journal.do(self._journal.said, "verdict", id)
        if said is None:
            return True
        return self._station.board.opened(said, VerdictIssued).message.verdict.outcome != Outcome.ACCEPT

    async def units_of(self, node: Address) -> int:
        """The most units that a node can have work for: everything of it that was accepted or is not decided yet. Who
        judges or trains is paid no more than everybody's work together."""
        if self.serves(node):
            return await self._journal.do(self._journal.units_heard)
        known = await self._journal.do(self._journal.heard_of, node)
        for work in self._register.of(node):
            refused = self._station.jury.ballots.state(work.id) is FileState.REJECTED
            known[work.id] = 0 if refused else work.commitment.units
        return sum(known.values())

    # since when

    async def look(self) -> Block:
        """Ask for the time, and note that the record goes on, or where it begins anew."""
        block = await self._clock.block()
        if self._record is None:
            await self._begin(block)
        told = voices(self._station.board, self._station.membership)
        if (
            is_cut_off(told, self._station.clock.monotonic())
            and self._station.clock.monotonic() - self._started > BRIDGED
        ):
            self._missed = True
        elif self._missed:
            self._missed = False
            self._begin_anew(block)
        self.now = max(self.now, block.timestamp)
        record = self._record
        assert record is not None  # noqa: S101 - begun above
        if not record.since and block.number > record.block:
            record.since = block.timestamp
        if not self._missed:
            record.until, record.wall = self.now, self._station.clock.wall()
            await self._journal.do(self._journal.remember, RECORD, msgspec.msgpack.encode(record))
        return block

    async def _begin(self, block: Block) -> None:
        kept = await self._journal.do(self._journal.recall, RECORD)
        before = msgspec.msgpack.decode(kept, type=Record) if kept else None
        if (
            before is not None
            and max(block.timestamp - before.until, self._station.clock.wall() - before.wall) <= BRIDGED
        ):
            self._record = before
        else:
            self._begin_anew(block)

    def _begin_anew(self, block: Block) -> None:
        self._record = Record(block.number, 0, block.timestamp, self._station.clock.wall())
        self._opened = self._station.clock.monotonic()
        log.info("audit.record_begins", block=block.number)

    def has_seen(self, joined: int | None, since: int) -> bool:
        """Whether nothing of a node can have escaped this one that was accepted after `since` (the chain's time).
        joined: the block before which there was nothing of it."""
        record = self._record
        if record is None or self._missed:
            return False
        return (joined is not None and joined > record.block) or (record.since > 0 and record.since <= since)

    def knows_all_of(self, policy_root: bytes) -> bool:
        """Whether all work for a policy was committed since the record began."""
        known = self._station.jury.policies.find(policy_root)
        return known is not None and not self._missed and known.at - self._opened >= BACKLOG_SECONDS
