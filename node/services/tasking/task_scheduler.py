"""The owner's part in tasks: offer them, gather what the jury accepts, say when they are done.

Only the pool's trainer may offer, so this runs at its node. A task and its results lie in the state directory; a
restart goes on with what is open. Of a shard one result is kept, the first that was accepted: no row is there twice.
"""

import shutil
import time
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
import trio
from starlette.routing import Route

from node.bounded_dict import BoundedDict
from node.changes import Bell
from node.recipe.label_queue import LabelQueue
from node.recipe.teacher_queue import TeacherQueue
from node.services.base import Service
from node.services.context import Context
from node.services.tasking.judges import Judges
from node.services.tasking.owned import LAST_WORDS, Owned
from node.services.tasking.requests import TaskRefused, TaskRequest, routes
from node.services.tasking.teachers import Teachers
from node.services.training.values import check_report
from node.services.workplace import Workplace
from node.state.files import as_named
from node.swarm.facts import WorkTouched
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.task_table import Task, describe_task
from node.swarm.vote_set import FileState
from node.tasks.records import ShardRecord, TaskFolder, VerdictRecord, folder_of, folders
from node.weights.merge import stretches_of
from node.weights.policy_cache import HeldPolicy
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address
from protocol.liveness import AHEAD
from protocol.lots import pack_groups
from protocol.messages import Judgement, TaskOffered, VerdictRequested
from protocol.rollout import MAX_REPORT_BYTES, decode_report
from protocol.tasks import MAX_SHARD_SAMPLES, MAX_SPEC_BYTES, MergeOrder, TaskId, TaskSpec, encode_task, task_id

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0


class TaskScheduler(Service):
    """Task queues usually have a server that hands out work and counts leases. Here any node of the pool does a shard,
    and each knows from the board which are free (`protocol.leases`): the owner hands out nothing. It offers, says the
    offer again while shards are open, and gathers results that the pool's own validators accepted, as they judge any
    file. So a task needs no trust in its owner, and a restart nothing but its directory.

    directory: of the tasks' folders; label_queue, teacher_queue: what waits for judges, and for the teacher. own: the
    tasks of this node."""

    name = "task-scheduler"

    def __init__(
        self,
        context: Context,
        directory: Path,
        label_queue: LabelQueue | None = None,
        teacher_queue: TeacherQueue | None = None,
    ) -> None:
        # Seconds until tasks are looked at though nothing was heard: what only time decides, and what waits for judges.
        self._look_every = 1.0
        self._context = context
        self._directory = directory
        run = context.run.spec
        self._askers: list[Judges | Teachers] = []
        if label_queue is not None:
            self._askers.append(Judges(self, label_queue, run, directory))
        if teacher_queue is not None and teacher_queue.wanted:
            self._askers.append(Teachers(self, teacher_queue, run, context.blobs))
        self.own: dict[TaskId, Owned] = {}
        self._asked: BoundedDict[WorkId, None] = BoundedDict(8192)
        self._limit = trio.CapacityLimiter(4)
        self._sequence = 0
        self._bell = Bell()

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.context, place.directory / "tasks", place.groups.label_queue, place.groups.teacher_queue)

    def routes(self) -> list[Route]:
        return routes(self)

    async def run(self) -> None:
        await self._recall()
        await trio.to_thread.run_sync(lambda: self._directory.mkdir(parents=True, exist_ok=True))
        self._context.state.register.follow(self._hear)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_verdicts)
            while True:
                for id, own in list(self.own.items()):
                    try:
                        await self._maintain(own, nursery)
                    except (IntellectError, OSError) as error:  # a full disk passes
                        log.warning("task.not_kept", task=id.hex()[:16], why=str(error))
                await self._ask_for_training()
                await self._bell.wait(self._look_every)

    async def _hear_verdicts(self) -> None:
        async for touched in self._context.facts.subscribe(WorkTouched):
            if any(touched.work in own.works for own in self.own.values()):
                self._bell.ring()

    async def _ask_for_training(self) -> None:
        """A standby asks nobody: it reads in the leader's manifest what judges and teachers said."""
        if self._context.membership.trainer != self._context.key.address:
            return
        for asker in self._askers:
            try:
                await asker.maintain()
            except (IntellectError, OSError) as error:
                log.warning("asking.failed", why=str(error))

    def status(self) -> dict[str, Any]:
        return {"tasks": {"own": self.tasks()}}

    def tasks(self) -> list[dict[str, Any]]:
        """What became of the tasks of this node, oldest first."""
        return [self._described(id, own) for id, own in self.own.items()]

    # what its owner asks for

    async def offer(self, request: TaskRequest) -> TaskId:
        """Begin a task. Raises TaskRefused, ProtocolError for what makes no sense, IntellectError for files that cannot
        be added."""
        most_open = 32
        if sum(own.open for own in self.own.values()) >= most_open:
            raise TaskRefused("no further task", f"{most_open} are open", "wait for one to end, or cancel one")
        spec = request.spec
        if spec.samples_asked and spec.weights is None:
            policy = self._policy(request.policy)
            spec = msgspec.structs.replace(spec, policy=policy.root.hex(), step=policy.step)
            self._keep(policy)
        if spec.merge is not None:
            spec = await self._merged(spec, spec.merge)
        spec.check()
        encoded = encode_task(spec)
        # Before anything is kept: nobody reads a longer one, and not even this node's board would take it.
        if len(encoded) > MAX_SPEC_BYTES:
            why = f"it has {len(encoded):,} bytes as it is told to the pool, and {MAX_SPEC_BYTES:,} are the most"
            raise TaskRefused("the task is too long", why, "shorten the environment's arguments or the files' names")
        for asset in spec.assets:
            info = await self._context.blobs.add(Path(request.files[asset.path]))
            # The file may have changed since the command looked at it, and the task's id names the old bytes.
            if info.root.hex() != asset.root:
                raise TaskRefused(f"{asset.path} has changed", "its bytes are not those that were named", "ask again")
        id = task_id(encoded)
        if id not in self.own:
            await self._context.blobs.add(encoded)
            # On disk before it is said: a restart must know every task that others may be working on.
            await trio.to_thread.run_sync(folder_of(self._directory, id).create, encoded)
            self._begin(id, folder_of(self._directory, id), spec, encoded, set(), is_open=True)
        log.info("task.offered", task=id.hex()[:16], kind=spec.kind, shards=spec.shards)
        self._context.progress.tell("task", f"{spec.kind} of {spec.problems:,} problems offered as {id.hex()[:8]}")
        return id

    async def cancel(self, id: TaskId) -> None:
        """Wait for no more results of a task. Raises TaskRefused."""
        own = self.own.get(id)
        if own is None:
            raise TaskRefused("no such task", id.hex()[:16], "look at: intellect-node task status")
        if own.open:
            await self._close(own, cancelled=True)

    def forget(self, id: TaskId) -> None:
        """Keep nothing of a task once everybody has heard of its end."""
        self.own[id].pass_away()

    def _policy(self, wanted: str) -> HeldPolicy:
        """wanted: "newest", a step, or the beginning of a root."""
        policy_cache = self._context.policy_cache
        if wanted in ("", "newest"):
            found = policy_cache.newest
        else:
            held = policy_cache.held
            named = [one for one in held if wanted.isdigit() and one.step == int(wanted)]
            found = next(iter(named or [one for one in held if one.root.hex().startswith(wanted)]), None)
        if found is None or self._context.state.policies.find(found.root) is None:
            steps = ", ".join(str(one.step) for one in policy_cache.held) or "none yet"
            raise TaskRefused("the policy is not here", f"this node holds steps {steps}", "name one of them, or wait")
        return found

    async def _merged(self, spec: TaskSpec, order: MergeOrder) -> TaskSpec:
        """A merge whose policies are named by their roots, cut into as many stretches as they have."""
        named = [self._policy(one) for one in order.models]
        base = self._policy(order.base) if order.base else None
        for policy in (*named, *([base] if base else [])):
            self._keep(policy)
        last = await trio.to_thread.run_sync(stretches_of, named[0].path) if named else 1
        roots = tuple(one.root.hex() for one in named)
        order = msgspec.structs.replace(order, models=roots, base=base.root.hex() if base else "")
        return msgspec.structs.replace(spec, merge=order, last=last)

    def _keep(self, policy: HeldPolicy) -> None:
        """Others may need it, and its announcement, for as long as the task is open."""
        self._context.policy_cache.hold(policy.root)
        announced = self._context.state.policies.announcement(policy.root)
        if announced is not None:
            self._context.board.pin([announced.raw])

    # what is heard

    def _hear(self, work: RegisteredWork) -> None:
        own = self.own.get(work.task.id) if work.task else None
        if own is not None and own.open:
            own.works[work.id] = work
            self._bell.ring()

    async def _recall(self) -> None:
        """The tasks of before a restart."""
        for folder in await trio.to_thread.run_sync(folders, self._directory):
            try:
                state, spec, encoded = folder.state(), folder.spec(), folder.encoded
            except (IntellectError, OSError) as error:
                log.warning("task.unreadable", path=str(folder.path), why=str(error))
                continue
            is_open = state.closed is None
            for root in spec.policies if is_open else ():
                self._context.policy_cache.hold(bytes.fromhex(root))
            self._begin(folder.id, folder, spec, encoded, set(folder.done()), is_open=is_open)

    def _begin(
        self, id: TaskId, folder: TaskFolder, spec: TaskSpec, encoded: bytes, done: set[int], *, is_open: bool
    ) -> None:
        said = 0 if is_open else LAST_WORDS
        self._bell.ring()
        self.own[id] = Owned(folder, spec, encoded, done, is_open, works={}, said=said, busy=set())

    # from time to time

    async def _maintain(self, own: Owned, nursery: trio.Nursery) -> None:
        """Say again what is open; gather what has been accepted; end what is complete."""
        if own.told:
            if own.passing:
                await trio.to_thread.run_sync(shutil.rmtree, own.folder.path, True)
                del self.own[own.folder.id]
            return
        if own.open:
            self._gather_accepted(own, nursery)
            if len(own.done) == own.spec.shards:
                await self._close(own)
        if trio.current_time() >= own.due():
            await self._say(own)

    async def _say(self, own: Owned) -> None:
        own.was_said(trio.current_time())
        now = time.time_ns() // 1_000_000
        if self._sequence > now + 1000 * AHEAD:  # this clock was ahead, so nobody has taken what was said then
            self._sequence = 0
        self._sequence = max(self._sequence + 1, now)
        done = pack_groups(own.done, own.spec.shards)
        message = TaskOffered(
            pool=self._context.pool, sequence=self._sequence, spec=own.encoded, done=done, open=own.open
        )
        await self._context.board.post(message)

    async def _close(self, own: Owned, *, cancelled: bool = False) -> None:
        await trio.to_thread.run_sync(lambda: own.folder.close(cancelled=cancelled))
        own.was_closed()
        wanted = {root for one in self.own.values() if one.open for root in one.spec.policies}
        # Another open task may still need the policy.
        for root in set(own.spec.policies) - wanted:
            self._context.policy_cache.let_go(bytes.fromhex(root))
        await self._say(own)
        what = "cancelled" if cancelled else "done"
        self._context.progress.tell("task", f"{own.spec.kind} {own.folder.path.name[:8]} is {what}")
        log.info("task.closed", task=own.folder.path.name[:16], shards=len(own.done), cancelled=cancelled)

    def _gather_accepted(self, own: Owned, nursery: trio.Nursery) -> None:
        vote_set, patience = self._context.state.vote_set, self._context.run.spec.audit.verdict_seconds
        for id, work in list(own.works.items()):
            shard, state = work.commitment.index, vote_set.state(id)
            if state is FileState.REJECTED or shard in own.done:
                del own.works[id]
            elif state is FileState.ACCEPTED and shard not in own.busy:
                own.busy.add(shard)
                nursery.start_soon(self._gather, own, work)
            # Half-way, once: validators that have lost the commitment in gossip still have time to look.
            elif state is FileState.OPEN and trio.current_time() - work.at > patience / 2 and id not in self._asked:
                self._asked[id] = None
                asked = VerdictRequested(pool=self._context.pool, commitment=work.signed.raw)
                nursery.start_soon(self._context.board.post, asked)

    async def _gather(self, own: Owned, work: RegisteredWork) -> None:
        shard = work.commitment.index
        try:
            async with self._limit:
                await gather(self._context, own.folder, work)
            own.done.add(shard)
            own.works.pop(work.id, None)
            self._bell.ring()
        except (IntellectError, OSError) as error:  # somebody may have it later; a full disk passes
            log.warning("task.not_gathered", task=own.folder.path.name[:16], shard=shard, why=str(error))
            await trio.sleep(self._look_every)
        finally:
            own.busy.discard(shard)

    def _described(self, id: TaskId, own: Owned) -> dict[str, Any]:
        task: Task | None = self._context.state.tasks.find(id)
        known = describe_task(task, trio.current_time()) if task else {"id": id.hex(), "kind": own.spec.kind}
        gathered = {"open": own.open, "gathered": len(own.done), "shards": own.spec.shards}
        return {**known, **gathered, "path": str(own.folder.path), "problems": own.spec.problems}


async def gather(context: Context, folder: TaskFolder, work: RegisteredWork) -> None:
    """Keep the result of a shard. Raises IntellectError where the file, or every report, cannot be had or is none."""
    votes = context.state.vote_set.accepting(work.id)
    report = await _report(context, work, votes)
    commitment = work.commitment
    root, sources = commitment.file_root, [work.node, *votes]
    file = await context.blobs.fetch(root, sources, max_size=work.most_bytes, timeout=FETCH_TIMEOUT)
    context.state.register.was_delivered(work)
    record = ShardRecord(
        shard=commitment.index,
        node=work.node,
        work=work.id.hex(),
        file_root=commitment.file_root.hex(),
        units=commitment.units,
        signature=work.signed.message.signature.hex(),
        verdicts=tuple(_recorded(author, vote) for author, vote in votes.items()),
        at=time.time(),
        epoch=commitment.epoch,
    )
    await trio.to_thread.run_sync(folder.add, record, file, report)


async def _report(context: Context, work: RegisteredWork, votes: dict[Address, Judgement]) -> bytes:
    """The report that decides most groups: what one validator could not score in time another one may have. Empty where
    nobody could decide about any."""
    best, most, groups = b"", -1, work.groups
    if votes and not any(vote.report_root for vote in votes.values()):
        return b""
    for author, vote in votes.items():
        if not vote.report_root:
            continue
        try:
            limit = min(vote.report_size, MAX_REPORT_BYTES)
            path = await context.blobs.fetch(vote.report_root, [author], max_size=limit, timeout=FETCH_TIMEOUT)
            data, decided = await trio.to_thread.run_sync(_read, work, vote, path)
        except IntellectError:
            continue
        if decided > most:
            best, most = data, decided
        if most == groups:
            break
    if most < 0:
        raise ProtocolError("no report", f"none of {len(votes)} validators hands a fitting one over")
    return best


def _read(work: RegisteredWork, vote: Judgement, path: Path) -> tuple[bytes, int]:
    """(a report that is about this file and holds what its author signed, groups in it). Raises ProtocolError."""
    data = as_named(path.read_bytes(), vote.report_root, "a report")
    report = decode_report(data, MAX_SHARD_SAMPLES)
    size = work.task.spec.samples if work.task else 1
    check_report(report, work.commitment.file_root, vote, work.groups, size)
    return data, len({row.group for row in report.rows})


def _recorded(author: Address, vote: Judgement) -> VerdictRecord:
    verdict = vote.verdict
    return VerdictRecord(author, verdict.outcome, verdict.reason, vote.signature.hex(), vote.report_root.hex())
