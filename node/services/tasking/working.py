"""The worker's part in tasks: claim a shard, do it, commit to its file; take over what others left.

A file (of a review: a report) is committed like a rollout file, so what becomes of it (verdicts, pay) is followed where
those are. The engine itself sees to it that rollouts come first (node.inference.scheduler). A shard that somebody
else took over meanwhile is dropped: it would earn nothing.
"""

import math
import time
from pathlib import Path
from typing import Any

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import Bell
from node.guest.rest import PAUSED, GuestRest
from node.inference.client import EngineChild
from node.inference.wire import Produce
from node.services.base import Service
from node.services.committing import commit, slot_name
from node.services.context import Context
from node.swarm.facts import ShardClaimed
from node.swarm.membership import is_cut_off, voices
from node.swarm.task_table import MOST_TASKS, Task
from node.tasks.recomputed import TaskRuntime, prepared
from node.tasks.task_inputs import TaskInputs
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.liveness import MemberState
from protocol.messages import TaskClaimed
from protocol.tasks import TaskId, admits_engine

log = structlog.get_logger()


class TaskWorker(Service):
    """Does shards of open tasks until cancelled."""

    name = "task-worker"

    def __init__(
        self,
        context: Context,
        engine: EngineChild,
        task_inputs: TaskInputs,
        scratch: Path,
        rest: GuestRest | None = None,
    ) -> None:
        self._remind_every = 30.0
        self._context = context
        self._own = context.key.address
        self._book = context.state.tasks
        self._engine = engine
        self._task_inputs = task_inputs
        self._scratch = scratch
        self._rest = rest or GuestRest()
        self._bell = Bell()
        self._book.follow(self._bell.ring)
        self._rest.changed.follow(self._bell.ring)
        self._said: BoundedDict[bytes, bool] = BoundedDict(4096)
        self._failed: BoundedDict[TaskId, float] = BoundedDict(MOST_TASKS)
        """When each task could not be done here last."""
        self._committed: dict[tuple[bytes, int], float] = {}
        """(task, shard) of own results that the owner may not have, and when they were said last."""
        self.counts = {"claimed": 0, "committed": 0, "lost": 0, "failed": 0}
        self.units = 0
        self.seconds = 0.0

    async def run(self) -> None:
        while True:
            await self._remind()
            found = None if self._rest.why else await self._find()
            if found is None:
                # Seconds until a shard is looked for though nothing was heard: leases end, and who holds one may die.
                await self._bell.wait(self._remind_every if self._rest.why else 1.0)
                continue
            try:
                await self._take(*found)
            except (IntellectError, OSError) as error:  # a full disk passes
                why = error.why if isinstance(error, IntellectError) else str(error)
                self.counts["failed"] += 1
                self._failed[found[0].id] = trio.current_time()
                log.warning("task.failed", task=found[0].id.hex()[:16], shard=found[1], why=why)
                self._context.progress.trouble(f"a shard of {found[0].title} was not done: {why}")
                await trio.sleep(5.0)

    def status(self) -> dict[str, Any]:
        return {"tasks": {"work": {**self.counts, "units": self.units, "seconds": round(self.seconds, 2)}}}

    # which shard

    async def _find(self) -> tuple[Task, int] | None:
        """A shard to do now: one that is ours already (from before a restart), or a free one."""
        now = trio.current_time()
        # What cannot be done here, perhaps for good, must not keep this node from all that can.
        for task in sorted(self._book.tasks(), key=lambda task: self._failed.get(task.id, -math.inf)):
            fenced = self._context.journal.fence.covers(-1, task.id)
            if fenced or not task.open or self._context.state.distrust or self._is_cut_off():
                continue
            mine = task.leases.held(self._own, now)
            free = task.leases.choose(self._own, self._candidates(task), now, self._is_alive)
            # Own leases first: while they run nobody else does these shards.
            for shard in [*mine, *([] if free is None else [free])]:
                if not await self._was_said(task, shard):
                    return task, shard
        return None

    def _is_cut_off(self) -> bool:
        """What is made unheard would be late."""
        return is_cut_off(voices(self._context.board, self._context.membership), trio.current_time())

    def _candidates(self, task: Task) -> list[Address]:
        """Workers that are alive and meet what the task requires; this node if it does."""
        beats = self._context.membership.beats(trio.current_time(), "worker")
        fit = (node for node, beat in beats.items() if admits_engine(task.spec, beat.engine) and beat.state != PAUSED)
        return list(fit)

    def _is_alive(self, node: Address) -> bool:
        """Whether a holder is waited for: until it is dead, which is longer than others would."""
        member = self._context.membership.table.get(node)
        gone = (MemberState.DEAD, MemberState.LEFT, MemberState.EVICTED)
        return member is not None and member.state(trio.current_time()) not in gone

    async def _was_said(self, task: Task, shard: int) -> bool:
        """Whether this node has committed to a result before: it may not sign another one for the same place."""
        name = slot_name(task.id, shard)
        if name not in self._said:
            journal = self._context.journal
            # Kept, as each look asks this of all open tasks. Only `_deliver` can change it.
            self._said[name] = said = await journal.do(journal.said, "commitment", name) is not None
            return said
        return self._said[name]

    # doing it

    async def _take(self, task: Task, shard: int) -> None:
        await (self._sample(task, shard) if task.spec.samples_asked else self._compute(task, shard))

    async def _compute(self, task: Task, shard: int) -> None:
        """Do what is not sampled: review a package, merge a stretch of policies, ask the teacher about a file."""
        work = await prepared(TaskRuntime(self._task_inputs, self._engine, self._scratch), task, shard)
        if await self._claim(task, shard):
            with self._rest.work() as scope:
                result = await work()
            if scope.cancelled_caught:
                return  # the lease ends, and somebody else does it
            out = self._scratch / f"task-{task.id.hex()[:16]}-{shard}.bin"
            await trio.to_thread.run_sync(out.write_bytes, result)
            await self._deliver(task, shard, out, task.spec.units)

    async def _sample(self, task: Task, shard: int) -> None:
        order, load = await self._task_inputs.order(task)
        if not await self._claim(task, shard):
            return
        out = self._scratch / f"task-{task.id.hex()[:16]}-{shard}.arrow"
        asked = Produce(
            policy_root=task.id,
            node=self._own,
            pool=self._context.pool,
            index=shard,
            out_path=str(out),
            task=order,
        )
        most = max(600.0, task.spec.lease_seconds)
        with self._rest.work() as scope:
            produced = await self._engine.ask(asked, timeout=most, policy=load)
        if scope.cancelled_caught:
            return
        self.seconds += produced.seconds
        await self._deliver(task, shard, Path(produced.path), produced.units)

    async def _deliver(self, task: Task, shard: int, path: Path, units: int) -> None:
        """Commit to what was made, unless somebody else took the shard over meanwhile."""
        if task.leases.free_since(shard, trio.current_time(), self._is_alive) is None and not self._holds(task, shard):
            self.counts["lost"] += 1
            log.info("task.lost", task=task.id.hex()[:16], shard=shard)
            return
        commitment = await commit(self._context, task.id, shard, path, units)
        self._said[slot_name(task.id, shard)] = True
        self._committed[task.id, shard] = trio.current_time()
        self.counts["committed"] += 1
        self.units += units
        log.info("task.committed", task=task.id.hex()[:16], shard=shard, root=commitment.file_root.hex())

    async def _claim(self, task: Task, shard: int) -> bool:
        """Say that this shard is ours; whether it is, once others had the time to say the same."""
        if not self._holds(task, shard):
            now = time.time_ns() // 1_000_000
            claim = TaskClaimed(pool=self._context.pool, task=task.id, shard=shard, sequence=now)
            await self._context.board.post(claim)
            # Seconds in which the own claim comes back from the board.
            await self._context.until(lambda: self._holds(task, shard), ShardClaimed, seconds=2.0)
            await trio.sleep(0.3)  # seconds in which another claim on the same shard may be heard, before work begins
        held = self._holds(task, shard)
        self.counts["claimed"] += held
        return held

    def _holds(self, task: Task, shard: int) -> bool:
        return task.leases.holds(shard, self._own, trio.current_time())

    async def _remind(self) -> None:
        """Say again what the owner does not have after a while: it may have been away for longer than boards keep."""
        now, journal, said = trio.current_time(), self._context.journal, 0
        most_reminders = 16
        for (id, shard), at in list(self._committed.items()):
            task = self._book.find(id)
            if task is None or not task.open or shard in task.gathered:
                del self._committed[id, shard]
            elif now - at > self._remind_every and said < most_reminders:
                said += 1
                self._committed[id, shard] = now
                raw = await journal.do(journal.said, "commitment", slot_name(id, shard))
                if raw is not None:
                    await self._context.board.post_raw(raw)
