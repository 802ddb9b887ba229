"""What became of accepted files: every node reads the trainer's manifests and counts, worker by worker.

A validator signs, policy by policy, which works it held accepted by then: so what was due is a quorum's word. In a run
with several trainers the manifests are those that lists name.
"""

from contextlib import suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar

import structlog
import trio

from node.changes import side_by_side
from node.services.base import Service
from node.services.context import Context, manifest_of
from node.services.rounds.applying import Rounds
from node.services.rounds.batches import Batches
from node.services.workplace import Dropped, Workplace, usage_of
from node.swarm.batch_usage import BatchUsage, ReplicaUsage
from node.swarm.facts import PolicyFollowed, Undone, WorkTouched
from node.swarm.vote_set import FileState
from protocol.errors import IntellectError
from protocol.manifest import BatchManifest
from protocol.messages import MAX_LISTED, AcceptedList, PolicyAnnounced

log = structlog.get_logger()
B = TypeVar("B", bound=BatchUsage | ReplicaUsage)


class _Counting(Service, Generic[B]):
    """What both kinds of runs have: the book hears of each accepted work. unread: manifests that could not be had."""

    name = "usage-tracker"
    book: B

    def __init__(self, context: Context) -> None:
        self._context = context
        self.unread = 0

    async def _hear_accepted(self) -> None:
        state = self._context.state
        async for touched in self._context.facts.subscribe(WorkTouched):
            work = state.register.get(touched.work)
            # Accepted is what this node's votes say: no trainer is asked what was due.
            if work is not None and state.vote_set.state(work.id) is FileState.ACCEPTED:
                self.book.accepted(work)

    def status(self) -> dict[str, Any]:
        return {"uses": self.book.status(self.unread)}


class UsageTracker(_Counting[BatchUsage]):
    """dropped: is given each step after which its trainer is seen to drop a worker, and how, in words; book: that
    others read, too."""

    def __init__(
        self,
        context: Context,
        dropped: trio.MemorySendChannel[Dropped] | None = None,
        book: BatchUsage | None = None,
    ) -> None:
        super().__init__(context)
        self._dropped, self._term = dropped, 0
        self.book = book or usage_of(context)

    @classmethod
    async def open(cls, place: Workplace) -> Self | None:
        # A round's contributions name their batches themselves (`rounds/batches.py`).
        return None if place.usage is None else cls(place.context, place.dropped[0], place.usage)

    async def run(self) -> None:
        hear = partial(self._context.handle, lambda told: self.book.heard(told.author, told.message), AcceptedList)
        await side_by_side(self._hear_policies, self._read, hear, self._hear_accepted)

    def _say_accepted(self, step: int) -> None:
        """A validator's list at a policy. Only in office: a list of somebody else counts for nothing."""
        members = self._context.membership
        works = self.book.accepted_list(step) if members.may_validate(members.own) else ()
        for first in range(0, len(works), MAX_LISTED):
            said = AcceptedList(pool=self._context.pool, step=step, works=works[first : first + MAX_LISTED])
            # Seconds that a validator's word waits for other words of its own.
            self._context.board.say([said], within=1.0)

    async def _hear_policies(self) -> None:
        async for told in self._context.facts.subscribe(PolicyFollowed, Undone):
            if isinstance(told, PolicyFollowed):
                if told.step == self._context.state.policies.newest_step:
                    self._say_accepted(told.step)
            elif isinstance(told.fact, PolicyFollowed):
                self.book.undone(told.fact.step)

    async def _read(self) -> None:
        """One after the other, in the order in which they were announced."""
        # One that is taken back changes nothing: its batch used what it used, and a new term has a clean record.
        async for policy in self._context.facts.subscribe(PolicyFollowed):
            # Step 0 was not trained, so nothing can have been left out of it.
            # Policies back whose manifests are read: who comes late reads no more than these.
            if not 0 < policy.step > self._context.state.policies.newest_step - 64:
                continue
            try:
                manifest = await manifest_of(self._context, policy.author, policy.message, 60.0)
            except IntellectError as error:
                # Told, and no evidence: that a manifest cannot be had here may be this node's own connection.
                self.unread += 1
                log.info("manifest.not_read", step=policy.step - 1, why=error.why)
            else:
                self._trained(policy.message, manifest)

    def _trained(self, message: PolicyAnnounced, manifest: BatchManifest) -> None:
        if message.term != self._term:
            self._term = message.term
            self.book.begin_term()
        self.book.trained(self._context.pool, manifest.batch)
        statement, dropped = message.statement, self.book.dropped()
        # Where judges give rewards, or a teacher speaks, fresh files wait for that while older ones are used.
        if not dropped or self._context.run.spec.waits_for_tasks:
            return
        named = ", ".join(list(dropped.values())[:3])
        if self._dropped is not None:
            with suppress(trio.WouldBlock):  # the next step tells the same
                self._dropped.send_nowait((statement, f"due files left out for later ones of others: {named}"))


class ReplicaUsageTracker(_Counting[ReplicaUsage]):
    """Of a run with several trainers."""

    def __init__(self, context: Context, rounds: Rounds, batches: Batches) -> None:
        super().__init__(context)
        self._rounds, self._batches = rounds, batches
        self.book = ReplicaUsage(context.run.spec.replicas, context.run.spec.recipe.max_staleness)

    async def run(self) -> None:
        await side_by_side(self._follow, self._hear_accepted)

    async def _follow(self) -> None:
        """Round by round: what one learnt from, and what the next one deals."""
        before, round_ = b"", -1
        while True:
            outer = await self._rounds.newer_than(round_)
            # After a jump this node does not know what the rounds in between dealt, and counts nothing of them.
            if before and outer.round == round_ + 1:
                await self._count(round_, before)
            before, round_ = outer.root, outer.round
            self.book.begun(before)

    async def _count(self, round_: int, outer: bytes) -> None:
        try:
            roots = await self._rounds.batches_of(round_)
            batches = await self._batches.named(roots or (), self._context.membership.addresses())
        except IntellectError as error:
            self.unread += 1
            log.info("manifests.not_read", round=round_, why=error.why)
        else:
            self.book.trained(round_, outer, batches)
