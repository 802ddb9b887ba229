"""A validator's look at the review of a package: it reviews the package itself, and the bytes must be the same.

A review takes minutes on the sandbox and needs no engine, so it is made once for each package and beside other files.
"""

from pathlib import Path
from typing import Protocol

import numpy as np
import trio

from node.errors import NodeError
from node.inference.wire import Inspected
from node.recent import Recent
from node.swarm.register import Work
from node.swarm.taskbook import Task
from node.tasks.reviewing import review_package
from protocol.blobs import describe
from protocol.checks import Fault, Reason
from protocol.statements import Outcome
from protocol.tasks import TaskId
from protocol.values import mean_logprobs, reward_tags

REMEMBERED = 64


class Files(Protocol):
    """The part of node.tasks.stock that has a task's files."""

    async def files(self, task: Task) -> Path: ...


class Reviews:
    """stock: None where this node takes no part in tasks."""

    def __init__(self, stock: Files | None) -> None:
        self._stock = stock
        self._own: Recent[TaskId, bytes] = Recent(REMEMBERED)
        self._turn = trio.Lock()

    async def inspect(self, work: Work, *, afresh: bool = False) -> Inspected | Fault:
        """What is to be said of a report. afresh: whatever was found before. Raises IntellectError where the package
        cannot be had, or reviewed, here."""
        task, commitment = work.task, work.commitment
        if task is None or self._stock is None:
            raise NodeError("the package cannot be reviewed here", "this node holds no tasks", "nothing to do here")
        if commitment.units != task.spec.units:
            return Fault(Reason.UNITS, f"{commitment.units} units claimed for a review of {task.spec.units}")
        started = trio.current_time()
        own = await self._root(self._stock, task, afresh)
        same = own == commitment.file_root
        fault = None if same else Fault(Reason.WRONG_REPORT, "the package gives another report here")
        return _inspected(fault, trio.current_time() - started)

    async def _root(self, stock: Files, task: Task, afresh: bool) -> bytes:
        """Of the own report."""
        async with self._turn:
            if afresh or task.id not in self._own:
                files = await stock.files(task)
                report = await trio.to_thread.run_sync(review_package, files, task.id)
                self._own[task.id] = describe(report).root
            return self._own[task.id]


def _inspected(fault: Fault | None, seconds: float) -> Inspected:
    """One group, wholly looked at, whose values are the same in every review: nothing was sampled."""
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
