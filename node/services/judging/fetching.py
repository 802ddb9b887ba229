"""Which files this validator looks at, and how they come here: the first third of a verdict.

Every validator fetches only its share of the files, drawn by the same secret that draws groups, so that nobody knows
beforehand who looks at what. All validators take their files in one order (`_place`): those who are drawn for a file
then come to it at about the same time, however long their queues are. Behind that place, a file that too few looked at
is filled up by rank. Each worker's files wait in a queue of their own, so one who does not deliver delays nobody else.
"""

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import trio
from blake3 import blake3

from node.bounded_dict import BoundedDict
from node.changes import Bell, every
from node.services.context import Context, owed
from node.services.court.turns import place
from node.services.judging.lots import OwnLots
from node.services.judging.queue import FileQueue, Place
from node.services.leader_watch import hears_a_quorum
from node.swarm.facts import ShardClaimed, VerdictWanted, WorkKnown, WorkTouched
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.audit import share_of_files
from protocol.checks import Fault, Reason
from protocol.errors import OwnFailure
from protocol.identity import Address

log = structlog.get_logger()
QUEUE = 64
FILL_AFTER, FILL_STEP = 4.0, 1.0
"""Seconds until a file that too few have looked at is anybody's, and seconds between ranks. They count from when this
validator passed the file's place: before that, those who are drawn wait for it just as long."""


class CommittedFile(msgspec.Struct, frozen=True):
    """A committed file on its way to judgement. path: None if it could not be had, or was judged; fault: what was
    wrong before it was read; tries: inspections that failed on our side."""

    work: RegisteredWork
    path: Path | None = None
    fault: Fault | None = None
    recheck: bool = False
    tries: int = 0


class _Spare(msgspec.Struct):
    """A file that others are to look at. due: when this validator looks whether they do, monotonic seconds; None while
    it has not come to the file's place."""

    work: RegisteredWork
    place: Place
    due: float | None = None


def _place(work: RegisteredWork) -> Place:
    """Where a file stands in everybody's order: old policies first, of each policy every worker's first file, then the
    second ones. Among these the hash of worker and policy decides, which nobody can choose file by file."""
    step = work.newest_step if work.task is not None else work.step
    commitment = work.commitment
    return step, commitment.index, blake3(commitment.node.encode() + commitment.policy_root).digest(8)


class Fetching:
    """Fills `queue` until cancelled. skipped: told of files for which their worker's queue has no room."""

    def __init__(self, context: Context, lots: OwnLots, skipped: Callable[[], None]) -> None:
        self._context = context
        self._own = context.key.address
        self._lots = lots
        self._skipped = skipped
        self._audit = context.run.spec.audit
        self._register = context.state.register
        self._spared = Bell()
        self.queue: FileQueue[CommittedFile] = FileQueue(self._spared.ring)
        self._queues: dict[Address, trio.MemorySendChannel[RegisteredWork]] = {}
        self._spare: dict[Address, BoundedDict[WorkId, _Spare]] = {}  # by worker: nobody crowds out others
        self._lined: dict[WorkId, None] = {}  # in the workers' queues, which are bounded
        self._rechecked: set[WorkId] = set()
        self._asked = 0
        self._owing: set[Address] = set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._register.follow(lambda work: self._consider(work, nursery))
            self._register.follow_closed(self._close)
            nursery.start_soon(self._heed_requests, nursery)
            nursery.start_soon(self._heed_disputes)
            nursery.start_soon(self._heed_rejections, nursery)
            nursery.start_soon(self._fill_up, nursery)

    @property
    def waiting(self) -> int:
        """Files that wait here for a look."""
        return len(self.queue) + sum(line.statistics().current_buffer_used for line in self._queues.values())

    # which files

    def _consider(self, work: RegisteredWork, nursery: trio.Nursery) -> None:
        validators = self._context.state.validators()
        # Itself included: its own heartbeat may not have come back to it yet.
        # Enough validators draw each file for a quorum, and no more: what all did would cost all of them.
        share = share_of_files(len({*validators, self._own}), self._context.quorum)
        if self._lots.draws_file(work.id, work.step, share):
            self._put_in_line(work, nursery)
        else:
            # Not drawn here. It is kept, since those who drew it may be away (`_fill_up`).
            self._spare.setdefault(work.node, BoundedDict(QUEUE))[work.id] = _Spare(work, _place(work))
            self._spared.ring()

    def _close(self, work: RegisteredWork) -> None:
        self._rechecked.discard(work.id)
        if left := self._spare.get(work.node):
            left.pop(work.id, None)

    async def _heed_rejections(self, nursery: trio.Nursery) -> None:
        """Look at once where somebody found a fault: a stake is taken only when everybody has looked."""
        async for touched in self._context.facts.subscribe(WorkTouched):
            id = touched.work
            work = self._register.get(id)
            if work and id in self._spare.get(work.node, ()) and self._context.state.vote_set.rejecting(id):
                del self._spare[work.node][id]
                self._put_in_line(work, nursery)

    async def _fill_up(self, nursery: trio.Nursery) -> None:
        """Look at what too few others look at, by rank. A spared file wakes it, a queue that moves on, and a time."""
        while True:
            due = math.inf
            for left in list(self._spare.values()):
                # Files of many workers may lie here: the event loop goes on between two of them.
                await trio.lowlevel.checkpoint()
                due = min(due, self._fill_up_of(left, nursery))
            await self._spared.wait(due - self._context.clock.monotonic())

    def _fill_up_of(self, left: BoundedDict[WorkId, _Spare], nursery: trio.Nursery) -> float:
        """Of one worker's; when the next one is due."""
        now, next_one = self._context.clock.monotonic(), math.inf
        for id, spare in list(left.items()):
            if spare.due is None and not self.queue.has_passed(spare.place):
                break  # one worker's next ones come after it
            due = self._due(spare, now)
            if now < due:
                next_one = min(next_one, due)
            elif self._context.state.vote_set.state(id) is not FileState.OPEN:
                del left[id]
            elif len(self._context.state.seals.sealing(id)) < self._context.quorum:
                del left[id]
                self._put_in_line(spare.work, nursery)
            else:  # enough have sealed, who may not show it
                spare.due = now + FILL_STEP
                next_one = min(next_one, spare.due)
        return next_one

    def _due(self, spare: _Spare, now: float) -> float:
        """When those who are drawn have had the time to look."""
        if spare.due is None:
            # By rank, one second apart: all at once would all look, though one is missing.
            id, validators = spare.work.id, self._context.state.validators()
            rank = sum(place(id, one) < place(id, self._own) for one in validators)
            spare.due = now + FILL_AFTER + rank * FILL_STEP
        # Seconds more for which a validator that has files of its own draw to look at leaves such a file to others.
        # Validators that are busy drift apart by minutes: who is ahead would look at all that the others have not come
        # to yet.
        fill_patience = 60.0
        return spare.due + fill_patience if self.queue else spare.due

    def _put_in_line(self, work: RegisteredWork, nursery: trio.Nursery) -> None:
        """Every work goes into its worker's own queue: one who commits to much waits for itself."""
        if work.is_sampled or not self._context.run.spec.replicas:
            self._lots.arrived(work.node)
        queue = self._queues.get(work.node)
        if queue is None:
            # Bounded: what one worker floods, it loses itself.
            queue, works = trio.open_memory_channel[RegisteredWork](QUEUE)
            self._queues[work.node] = queue
            nursery.start_soon(self._fetch_all, works)
        try:
            queue.send_nowait(work)
            self._lined[work.id] = None
        except trio.WouldBlock:
            self._skipped()

    async def _heed_requests(self, nursery: trio.Nursery) -> None:
        """The trainer waits for a verdict: ours again, or the file on top of the pile.

        Where much waits here, a file keeps its place: whoever asks for all of it must not change the order."""
        async for wanted in self._context.facts.subscribe(VerdictWanted):
            work = self._register.get(wanted.work)
            # Bounded: requests go on top of the pile, and the trainer asks for every late file.
            # Files that are fetched at one time because the trainer asked.
            if work is None or self._asked >= 16 or (len(self.queue) and self._has_place(work)):
                continue
            # Given back once its fetch ends: see `_hurry`.
            self._asked += 1
            self._spare.get(work.node, {}).pop(work.id, None)
            nursery.start_soon(self._hurry, work)

    def _has_place(self, work: RegisteredWork) -> bool:
        """Whether this validator will come to a file by itself."""
        return work.id in self._lined or work.id in self._spare.get(work.node, ())

    async def _hurry(self, work: RegisteredWork) -> None:
        try:
            self.queue.hurry(await self._fetch(work))
        finally:
            self._asked -= 1

    async def _heed_disputes(self) -> None:
        """Look again, at everything, wherever two validators disagree."""

        def heed() -> None:
            for id in self._context.state.disputes.open():
                work = self._register.get(id)
                # Marked only where it found room: else it is put on top once there is some.
                if work and id not in self._rechecked and self.queue.hurry(CommittedFile(work, recheck=True)):
                    self._rechecked.add(id)

        await every(1.0, heed)

    # having them

    async def _fetch_all(self, works: trio.MemoryReceiveChannel[RegisteredWork]) -> None:
        """One worker's files, in order. Each worker has its own task: one that does not deliver delays nobody else."""
        async for work in works:
            if not self._context.membership.is_evicted(work.node):
                await self.queue.put(_place(work), await self._fetch(work))
            self._lined.pop(work.id, None)

    async def _fetch(self, work: RegisteredWork) -> CommittedFile:
        # Judged before: the verdict is only said again, and that needs no file.
        if await self._context.journal.do(self._context.journal.said, "verdict", work.id):
            return CommittedFile(work)
        # Messages overtake each other: a claim comes behind the result of its shard, a submission before the last one.
        # Seconds that the claim may come behind the result of a task's shard.
        fault = await self._lasting(self._register.fault, work, 8.0 if work.task else 0.0)
        fault = fault or await self._lasting(self._register.gap, work, self._audit.delivery_seconds)
        if fault:
            return CommittedFile(work, fault=fault)
        try:
            path = await self.deliver(work)
        except OwnFailure:  # its judge asks for it once more, and knows what to do then
            return CommittedFile(work)
        # Who is cut off itself has nothing to say of who delivers.
        if path is None and hears_a_quorum(self._context):
            fault = Fault(Reason.UNAVAILABLE, f"not delivered within {self._audit.delivery_seconds:g} seconds")
        return CommittedFile(work, path=path, fault=fault)

    async def _lasting(
        self, find: Callable[[RegisteredWork], Fault | None], work: RegisteredWork, seconds: float
    ) -> Fault | None:
        """A fault that nothing has mended after so many seconds."""
        await self._context.until(lambda: find(work) is None, WorkKnown, ShardClaimed, seconds=seconds)
        return find(work)

    async def deliver(self, work: RegisteredWork) -> Path | None:
        """The file, from its worker or whoever has it; None if nobody hands it over in time. Raises OwnFailure where
        that time is over and this machine could not take it."""
        # The other validators and the trainer, so that a worker who serves only some of them serves all.
        sources = lambda: [work.node, *self._context.state.validators(), self._context.membership.trainer]
        root, seconds = work.commitment.file_root, self._patience(work)
        path = await owed(self._context, root, sources, work.most_bytes, seconds, "rollout.unavailable")
        if path is None:
            self._owing.add(work.node)
        else:
            self._register.was_delivered(work)
            self._owing.discard(work.node)
        return path

    def _patience(self, work: RegisteredWork) -> float:
        """Seconds to wait for a file. After one that never came, the worker's others are due since they were heard of:
        what a dead worker left behind is not waited for one by one."""
        whole = self._audit.delivery_seconds
        if work.node not in self._owing:
            return whole
        # Seconds for a file that has been due for long, of a worker who did not hand over the one before it.
        return max(work.at + whole - self._context.clock.monotonic(), 5.0)
