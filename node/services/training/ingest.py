"""What the trainer may train on: files that the jury accepts, with the values that validators recomputed.

A file is used once its quorum is reached (`audit.trust` 'verified') or the first validator has accepted it
('optimistic'); which values of it are believed is `values.py`'s to say. Nothing that the worker said about itself
leaves this module. What lacks a value is asked for again, as long as the file may train. What is rejected after it was
used is forgotten where it waits, and recorded where it trained a step.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import Bell
from node.network.budget import TokenBucket
from node.recipe.join import join
from node.recipe.label_queue import LabelRequest, without_rewards
from node.recipe.pool import Group, Key, Origin
from node.services.context import Context
from node.services.training.stage_timings import StageTimings
from node.services.training.values import Believed, OwnLook, Values, origins_of
from node.swarm.facts import WorkTouched
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.disputes import UNDECIDED
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.messages import DIGEST, Judgement, VerdictRequested
from protocol.rollout import ReportHeader, ValidatorReport, decode

log = structlog.get_logger()
PENDING = 256
FETCHERS = 16
"""Files on their way at once: at 3 s each, four brought 1.3 a second, and a thousand workers make four."""


class Lacking(NamedTuple):
    """A file of which values are lacking. had: its groups that were taken in; due: when it is tried again."""

    work: RegisteredWork
    had: frozenset[Key]
    tries: int
    due: float


class Ingest:
    """A service. fresh: whether groups of a step may still be trained on; taken_in, taken_back: what becomes of groups,
    and of a work's; to_judge: is given groups that have no reward yet; timings: hears how far each work has come;
    asks: whether this trainer asks for verdicts, as the leader does; look, hopeless: as in Values."""

    def __init__(
        self,
        context: Context,
        *,
        fresh: Callable[[int], bool],
        taken_in: Callable[[list[Group]], None],
        taken_back: Callable[[WorkId], object],
        to_judge: Callable[[LabelRequest], None] = lambda _: None,
        timings: StageTimings | None = None,
        asks: Callable[[], bool] = lambda: True,
        look: OwnLook | None = None,
        hopeless: Callable[[str], None] = lambda why: None,
        questions: tuple[float, float] = (2.0, 64.0),
    ) -> None:
        self._remembered = 8192
        # Seconds until what a file lacks is asked for again; twice as long after each try, at once with a further
        # verdict.
        self._again = 4.0
        self._context = context
        self._spec = context.run.spec
        self._register = context.state.register
        self._fresh = fresh
        self._taken_in = taken_in
        self._taken_back = taken_back
        self._to_judge = to_judge
        self._timings = timings or StageTimings(context.clock.monotonic)
        self._look = look
        self._asks = asks
        self.values = Values(context, look, taken_back=taken_back, hopeless=hopeless)
        self._open: dict[WorkId, RegisteredWork] = {}
        self._asked: set[WorkId] = set()
        self._asked_of: BoundedDict[Address, float] = BoundedDict(self._remembered, refresh=True)
        # Verdicts asked for again, per second and at once: half of what others hear of a trainer
        # (`node/swarm/counts.py`). Where validators are slower than workers everything waits, and who asked for all of
        # it would be muted with its policies.
        self._questions = TokenBucket(*questions)
        self._joining = trio.CapacityLimiter(4)  # files in memory, each with its reports
        self._looked_at: set[WorkId] = set()
        self._taken: set[WorkId] = set()
        self._lacking: dict[WorkId, Lacking] = {}
        self._trained: set[WorkId] = set()  # before this start; what is left of them may still be taken in
        self._bell = Bell()
        self._accepted_send, self._accepted = trio.open_memory_channel[RegisteredWork](PENDING)
        self.lost = 0
        self.invalidated = 0
        self._register.follow(self._note)
        self._register.follow_closed(self._close)

    async def run(self) -> None:
        """Take in files until cancelled."""
        journal = self._context.journal
        # A rejection may still come for a file that trained a step before this start.
        self._trained = set(await journal.do(journal.used.trained_by, self._remembered))
        self.invalidated = len(await journal.do(journal.used.invalidated))
        await self.values.recall()
        async with trio.open_nursery() as nursery:
            look = [self._look.run] if self._look is not None else []
            for story in (*look, self._follow_jury, *[self._fetch_accepted] * FETCHERS):
                nursery.start_soon(story)
            await self._watch_clock(nursery)

    def status(self) -> dict[str, Any]:
        """Of training. invalidated_files: that trained a step and were rejected afterwards."""
        return {"invalidated_files": self.invalidated, "values": self.values.status()}

    def take_again(self, works: set[WorkId]) -> None:
        """Of these the groups are free again that a batch had used up which was taken back."""
        for id in works:
            self._taken.discard(id)
            self._lacking.pop(id, None)
            self._looked_at.discard(id)
            if (work := self._register.get(id)) is not None:
                self._open[id] = work
        self._bell.ring()

    def _note(self, work: RegisteredWork) -> None:
        if not work.is_sampled:  # nobody trains on what was asked for
            return
        self._timings.reached(work.id, "commit")
        # Entries leave by verdict or by age (`_watch_clock`), so a worker cannot grow this table.
        self._open[work.id] = work
        self._bell.ring()

    def _close(self, work: RegisteredWork) -> None:
        for marked in (self._asked, self._looked_at, self._taken):
            marked.discard(work.id)

    async def _follow_jury(self) -> None:
        async for touched in self._context.facts.subscribe(WorkTouched):
            id = touched.work
            work = self._register.get(id)
            # The jury tells of results of tasks as well; their owners read these.
            if work is not None and work.is_sampled:
                if (lacking := self._lacking.get(id)) is not None:
                    self._lacking[id] = lacking._replace(due=0.0)
                    self._bell.ring()
                await self._decide(work)

    async def _watch_clock(self, nursery: trio.Nursery) -> None:
        """What only time decides: silent validators are asked again, then gone without."""
        patience = self._spec.audit.verdict_seconds
        while True:
            now = self._context.clock.monotonic()
            for work in list(self._open.values()):
                waited = now - work.at
                if work.id not in self._looked_at:  # its verdicts may have come before it was work
                    self._looked_at.add(work.id)
                    await self._decide(work)
                if waited > patience:
                    await self._decide(work)
                # Given up: nobody has answered, or its rollouts are too old to train on.
                if waited > 4 * patience or not self._fresh(work.step):
                    self._open.pop(work.id, None)
            self._try_again(now)
            for work in self._next_questions(now - patience / 2, now):
                # A fetch takes up to half a minute, and the clock must go on for all the others.
                nursery.start_soon(self._ask_again, work)
            await self._bell.wait(self._next_look(now, patience))

    def _next_look(self, now: float, patience: float) -> float:
        """Seconds until time decides something more."""
        due = [lacking.due for lacking in self._lacking.values()]
        for work in self._open.values():
            due.append(work.at + (patience if work.id in self._asked else patience / 2))
        # What is late waits for a verdict, for a question that may be asked, or for room; what goes stale nobody tells.
        # Seconds between two looks at a file whose time is over: what becomes of it only time decides.
        return min((min(at - now, self._again) if at > now else 1.0 for at in due), default=math.inf)

    def _try_again(self, now: float) -> None:
        """What lacked values once more, if it may still train."""
        for id, lacking in list(self._lacking.items()):
            if not self._fresh(lacking.work.step):
                self.lost += not lacking.had
                del self._lacking[id]
            elif now >= lacking.due:
                with suppress(trio.WouldBlock):  # the queue is full; it stays due
                    self._accepted_send.send_nowait(lacking.work)
                    self._lacking[id] = lacking._replace(due=math.inf)

    def _next_questions(self, before: float, now: float) -> list[RegisteredWork]:
        """The works heard before a time that are asked about now: one worker after the other, the one longest not asked
        about first. Files that nobody can have would else take all questions."""
        waiting: dict[Address, deque[RegisteredWork]] = {}
        for work in self._open.values():
            if work.at < before and work.id not in self._asked:
                waiting.setdefault(work.node, deque()).append(work)
        turns = deque(sorted(waiting, key=lambda node: self._asked_of.get(node, float("-inf"))))
        chosen: list[RegisteredWork] = []
        while turns and self._questions.take(1, now):
            node = turns.popleft()
            work = waiting[node].popleft()
            self._asked.add(work.id)
            self._asked_of[node] = now
            chosen.append(work)
            if waiting[node]:
                turns.append(node)
        return chosen

    async def _ask_again(self, work: RegisteredWork) -> None:
        """Ask every validator for its verdict on a file that waits too long, and see whether it can be had at all: only
        of such files is silence held against anybody."""
        if self._asks():
            await self._context.board.post(VerdictRequested(pool=self._context.pool, commitment=work.signed.raw))
        log.info("verdict.wanted", work=work.id.hex()[:16])
        try:
            await self._fetch(work, self._context.state.validators())
        except IntellectError as error:
            log.info("rollout.unavailable", node=work.node, why=error.why)

    async def _fetch(self, work: RegisteredWork, holders: Sequence[Address]) -> Path:
        root, sources = work.commitment.file_root, [work.node, *holders]
        path = await self._context.blobs.fetch(root, sources, max_size=work.most_bytes, timeout=30.0)
        self._register.was_delivered(work)
        return path

    async def _decide(self, work: RegisteredWork) -> None:
        """Fetch a file as soon as the run's rule lets it be used; note one that was used and is rejected now."""
        vote_set, id = self._context.state.vote_set, work.id
        state = vote_set.state(id)
        if state is FileState.REJECTED:
            self._open.pop(id, None)
            self._lacking.pop(id, None)
            if id in self._taken or id in self._trained:
                await self._invalidate(id)
            return
        believed = self._spec.audit.optimistic and state is FileState.OPEN and bool(vote_set.accepting(id))
        usable = believed or state is FileState.ACCEPTED
        if id in self._taken or not usable or self._register.is_contested(work) or self._is_orphan(work):
            return
        # Marked before it is queued: verdicts go on arriving, and each of them comes through here.
        self._taken.add(id)
        self._open.pop(id, None)
        self._timings.reached(id, "verify")
        try:
            self._accepted_send.send_nowait(work)
        except trio.WouldBlock:
            self._taken.discard(id)
            self._open[id] = work  # the clock asks about it again

    def _is_orphan(self, work: RegisteredWork) -> bool:
        """Of a policy that a later term took back: paid, and not trained on."""
        return self._context.state.policies.is_orphan(work.commitment.policy_root)

    async def _invalidate(self, id: WorkId) -> None:
        """A file that was taken is rejected after all: out of the queue, and on record if it trained a step already."""
        # Before the journal: between the two the groups must not slip into a batch.
        self._taken_back(id)
        journal = self._context.journal
        if await journal.do(journal.used.invalidate, id, "rejected by the quorum after it was used"):
            self.invalidated += 1
            log.warning("rollout.invalidated", work=id.hex()[:16])

    async def _fetch_accepted(self) -> None:
        async for work in self._accepted:
            groups, unjudged, lacks = list[Group](), None, True
            try:
                groups, unjudged, lacks = await self._obtain(work)
            except IntellectError as error:
                log.warning("rollout.lost", work=work.id.hex()[:16], why=error.why)
            # Asked once more: fetching takes seconds, in which a quorum may have refused the file.
            if self._context.state.vote_set.state(work.id) is FileState.REJECTED:
                self._lacking.pop(work.id, None)
                continue
            before = self._lacking.pop(work.id, Lacking(work, frozenset(), 0, 0.0))
            new = [group for group in groups if group.key not in before.had]
            if new or unjudged is not None:
                self._timings.reached(work.id, "fetch")
                self._taken_in([] if self._is_orphan(work) else new)
                if unjudged is not None:
                    self._to_judge(unjudged)
            had = before.had.union(group.key for group in new)
            if lacks and unjudged is None and self._fresh(work.step):
                due = self._context.clock.monotonic() + self._again * 2**before.tries
                self._lacking[work.id] = Lacking(work, had, before.tries + 1, due)
                self._bell.ring()
            # Neither usable nor waiting for judges. It was paid for, so the status counts it.
            elif not had and unjudged is None:
                self.lost += 1

    async def _obtain(self, work: RegisteredWork) -> tuple[list[Group], LabelRequest | None, bool]:
        """Tokens from the worker's file, rewards and log-probs from values that may be believed, and what of it waits
        for judges; nothing if it is stale, or may not be used. Last: whether more may come of it later."""
        if not self._fresh(work.step):
            return [], None, False
        votes = self._context.state.vote_set.accepting(work.id)
        with self._context.blobs.holding([work.commitment.file_root, *(vote.report_root for vote in votes.values())]):
            believed = await self.values.of(work, votes, partial(self._fetch, work, list(votes)))
            if believed is None or not believed.rows:
                return [], None, believed is not None and believed.lacks
            origins = await origins_of(self._context, work, believed.rows, believed.sources)
            joined = await trio.to_thread.run_sync(self._join, work, believed, origins, limiter=self._joining)
            return *joined, believed.lacks

    def _join(
        self, work: RegisteredWork, believed: Believed, origins: Mapping[int, Origin] = {}
    ) -> tuple[list[Group], LabelRequest | None]:
        """Pair the samples of a file with their recomputed values; groups without any are left out, and those that all
        who looked leave to judges wait for them."""
        root, values = work.commitment.file_root, believed.rows
        batch = decode(believed.path.read_bytes(), self._spec.rollout.samples_per_file)
        waiting = without_rewards([row for rows in values.values() for row in rows])
        decided = _decided(believed.votes, self._spec.rollout.prompts_per_file)
        known = tuple(row for group in sorted(values.keys() - waiting) for row in values[group])
        # Stands for one validator's report: the values are of all whose word is believed.
        header = ReportHeader(root.hex(), batch.header.policy_root)
        joined = join(self._spec, root, work.step, batch, ValidatorReport(header, known), name=work.id)
        groups = [msgspec.structs.replace(group, origin=origins.get(group.key[1])) for group in joined]
        rows = tuple(row for group in sorted(waiting - decided) for row in values[group])
        left = tuple(row for row in batch.rows if row.group in waiting - decided)
        rest = msgspec.structs.replace(batch, rows=left)
        return groups, LabelRequest(work.id, root, work.step, rest, rows, dict(origins)) if rows else None


def _decided(votes: Sequence[Judgement], groups: int) -> set[int]:
    """The groups that one of these verdicts has a reward for: no judge is asked about them.

    Otherwise one validator that leaves open what others scored would choose its reward's judges.
    """
    known = (vote.rewards for vote in votes if len(vote.rewards) == DIGEST * groups)
    return {
        group for tags in known for group in range(groups) if tags[DIGEST * group : DIGEST * (group + 1)] != UNDECIDED
    }
