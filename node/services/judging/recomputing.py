"""A validator's look at what was not sampled (a review, a stretch of a merge, what a teacher says): it makes it itself,
and the bytes must be the same, or differ by rounding only. It is done beside other files, and once for all copies.
"""

from pathlib import Path

import numpy as np
import trio

from node.bounded_dict import BoundedDict
from node.errors import NodeError
from node.inference.wire import Inspected
from node.state.files import as_named
from node.swarm.register import RegisteredWork
from node.swarm.task_table import Task
from node.tasks.recomputed import RECOMPUTED, TaskRuntime, prepared
from protocol.blobs import describe
from protocol.checks import Fault, Reason
from protocol.statements import VerdictOutcome
from protocol.tasks import TaskId
from protocol.values import mean_logprobs, reward_tags


class Recomputer:
    """runtime: None where this node takes no part in tasks; tolerance: as in protocol.values.rows_differ."""

    def __init__(self, runtime: TaskRuntime | None, tolerance: float) -> None:
        self._runtime = runtime
        self._tolerance = tolerance
        self._own: BoundedDict[tuple[TaskId, int], bytes] = BoundedDict(64)
        self._turn, self._some = trio.Lock(), trio.CapacityLimiter(8)  # results that the engine is asked about

    async def inspect(
        self, work: RegisteredWork, path: Path | None = None, *, afresh: bool = False
    ) -> Inspected | Fault:
        """What is to be said of a result. path: of its file; afresh: whatever was found before. Raises IntellectError
        where what it needs cannot be had, or used, here."""
        task, commitment = work.task, work.commitment
        if task is None or self._runtime is None:
            raise NodeError("it cannot be computed again here", "this node holds no tasks", "nothing to do here")
        # Asked first: to compute a result again may take minutes.
        if commitment.units != task.spec.units:
            return Fault(Reason.UNITS, f"{commitment.units} units claimed for a {task.spec.kind} of {task.spec.units}")
        started = trio.current_time()
        why = await self._differs(self._runtime, work, task, path, afresh)
        # Other bytes cost no stake: what a check says may depend on the version of the program.
        fault = Fault(Reason.WRONG_REPORT, why) if why else None
        return _inspected(fault, trio.current_time() - started)

    async def _differs(
        self, runtime: TaskRuntime, work: RegisteredWork, task: Task, path: Path | None, afresh: bool
    ) -> str:
        """How a result differs from the own one, in words; empty where it does not."""
        shard, differs = work.commitment.index, RECOMPUTED[task.spec.kind].differs
        if differs is None:
            same = await self._root(runtime, task, shard, afresh) == work.commitment.file_root
            return "" if same else f"the {task.spec.kind} comes to other bytes here"
        if path is None:
            raise NodeError("it cannot be compared", "its file cannot be had", "wait for whoever made it")
        async with self._some:
            own = await (await prepared(runtime, task, shard))()
        try:
            read = lambda: as_named(path.read_bytes(), work.commitment.file_root, "a result")
            theirs = await trio.to_thread.run_sync(read)
        except OSError as error:  # the own one took minutes, in which the file may have made room for others
            raise NodeError("it cannot be compared", f"its file is gone: {error}", "wait for the next try") from None
        return await trio.to_thread.run_sync(differs, task, shard, own, theirs, self._tolerance)

    async def _root(self, runtime: TaskRuntime, task: Task, shard: int, afresh: bool) -> bytes:
        """Of the own result. Copies of one span have the same."""
        place = task.id, shard // task.spec.copies
        # One at a time: copies of a span wait for the first one's result instead of making it again.
        async with self._turn:
            if afresh or place not in self._own:
                self._own[place] = describe(await (await prepared(runtime, task, shard))()).root
            return self._own[place]


def _inspected(fault: Fault | None, seconds: float) -> Inspected:
    """One group, wholly looked at, whose values are the same in every such verdict: nothing was sampled."""
    return Inspected(
        outcome=int(fault.outcome if fault else VerdictOutcome.ACCEPT),
        reason=int(fault.reason if fault else Reason.NONE),
        detail=fault.detail if fault else "",
        seconds=seconds,
        group=0 if fault else -1,
        checked=(0,),
        rewards=reward_tags([0.0], 1, ()),
        logprobs=mean_logprobs({0: [np.zeros(1, np.float32)]}),
    )
