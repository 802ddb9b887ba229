"""A validator's look at what was not sampled (a review, a stretch of a merge): it makes it itself, and the bytes must
be the same. That takes no engine, so it is done beside other files, and once for all copies.
"""

import numpy as np
import trio

from node.errors import NodeError
from node.inference.wire import Inspected
from node.recent import Recent
from node.swarm.register import Work
from node.swarm.taskbook import Task
from node.tasks.recomputed import Stock, prepared
from protocol.blobs import describe
from protocol.checks import Fault, Reason
from protocol.statements import Outcome
from protocol.tasks import TaskId
from protocol.values import mean_logprobs, reward_tags

REMEMBERED = 64


class Recomputing:
    """stock: None where this node takes no part in tasks."""

    def __init__(self, stock: Stock | None) -> None:
        self._stock = stock
        self._own: Recent[tuple[TaskId, int], bytes] = Recent(REMEMBERED)
        self._turn = trio.Lock()

    async def inspect(self, work: Work, *, afresh: bool = False) -> Inspected | Fault:
        """What is to be said of a result. afresh: whatever was found before. Raises IntellectError where what it needs
        cannot be had, or used, here."""
        task, commitment = work.task, work.commitment
        if task is None or self._stock is None:
            raise NodeError("it cannot be computed again here", "this node holds no tasks", "nothing to do here")
        if commitment.units != task.spec.units:
            return Fault(Reason.UNITS, f"{commitment.units} units claimed for a {task.spec.kind} of {task.spec.units}")
        started = trio.current_time()
        own = await self._root(self._stock, task, commitment.index, afresh)
        same = own == commitment.file_root
        # Other bytes cost no stake: what a check says may depend on the version of the program.
        fault = None if same else Fault(Reason.WRONG_REPORT, f"the {task.spec.kind} comes to other bytes here")
        return _inspected(fault, trio.current_time() - started)

    async def _root(self, stock: Stock, task: Task, shard: int, afresh: bool) -> bytes:
        """Of the own result. Copies of one span have the same."""
        place = task.id, shard // task.spec.copies
        async with self._turn:
            if afresh or place not in self._own:
                work = await prepared(stock, task, shard)
                result = await trio.to_thread.run_sync(work)
                self._own[place] = describe(result).root
            return self._own[place]


def _inspected(fault: Fault | None, seconds: float) -> Inspected:
    """One group, wholly looked at, whose values are the same in every such verdict: nothing was sampled."""
    return Inspected(
        outcome=int(fault.outcome if fault else Outcome.ACCEPT),
        reason=int(fault.reason if fault else Reason.NONE),
        detail=fault.detail if fault else "",
        report_path="",
        rewards_mean=0.0,
        tokens=0,
        seconds=seconds,
        statistics={},
        group=0 if fault else -1,
        checked=(0,),
        rewards=reward_tags([0.0], 1, ()),
        logprobs=mean_logprobs({0: [np.zeros(1, np.float32)]}),
    )
