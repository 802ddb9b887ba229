"""What nodes compute for tasks of which nothing is sampled: by kind, from a task and a shard to bytes.

Whoever computes a shard has the same bytes, so validators compute it again and compare.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from node.swarm.taskbook import Task
from node.tasks.reviewing import review_package
from node.weights.merge import merge_stretches

Work = Callable[[], bytes]
"""Blocking: call in a thread."""


class Stock(Protocol):
    """The part of node.tasks.stock that has a task's files and policies."""

    async def files(self, task: Task) -> Path: ...
    async def policies(self, task: Task) -> dict[str, Path]: ...


async def prepared(stock: Stock, task: Task, shard: int) -> Work:
    """A shard's work, once what it needs is here. Raises IntellectError, as the work does."""
    return await RECOMPUTED[task.spec.kind](stock, task, shard)


async def _review(stock: Stock, task: Task, shard: int) -> Work:  # noqa: ARG001 - every shard is the whole package
    return partial(review_package, await stock.files(task), task.id)


async def _merge(stock: Stock, task: Task, shard: int) -> Work:
    order, images = task.spec.merge, await stock.policies(task)
    assert order is not None  # noqa: S101 - a task of this kind was checked for it
    models, base = [images[root] for root in order.models], images.get(order.base)
    return partial(merge_stretches, order.rule, models, base, task.spec.numbers(shard))


RECOMPUTED: Mapping[str, Callable[[Stock, Task, int], Awaitable[Work]]] = {"review": _review, "merge": _merge}
