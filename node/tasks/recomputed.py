"""What nodes compute for tasks of which nothing is sampled: by kind, from a task and a shard to bytes.

Whoever computes a shard has the same bytes, or, where they are rounded, bytes that are told apart by their kind's rule.
So validators compute it again and compare.
"""

import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.inference.client import EngineChild
from node.inference.wire import Teach
from node.swarm.task_table import Task
from node.tasks.reviewing import review_package
from node.tasks.task_inputs import TaskInputs
from node.weights.merge import merge_stretches
from protocol.errors import ProtocolError
from protocol.teaching import decode_taught, taught_otherwise

Work = Callable[[], Awaitable[bytes]]
"""Raises IntellectError."""


@dataclass(frozen=True)
class TaskRuntime:
    """What a node computes with. scratch: a directory for files that nobody misses; checking: another's result is to be
    compared with it."""

    inputs: TaskInputs
    engine: EngineChild
    scratch: Path
    checking: bool = False


@dataclass(frozen=True)
class Recomputed:
    """prepare: a shard's work, once what it needs is here; differs: from the own result, another's and the tolerance to
    words on how they differ; None where they must be equal to the byte."""

    prepare: Callable[[TaskRuntime, Task, int], Awaitable[Work]]
    differs: Callable[[Task, int, bytes, bytes, float], str] | None = None


async def prepared(runtime: TaskRuntime, task: Task, shard: int) -> Work:
    """A shard's work, once what it needs is here. Raises IntellectError, as the work does."""
    return await RECOMPUTED[task.spec.kind].prepare(runtime, task, shard)


def _in_thread(do: Callable[[], bytes]) -> Work:
    async def work() -> bytes:
        return await trio.to_thread.run_sync(do)

    return work


async def _review(runtime: TaskRuntime, task: Task, shard: int) -> Work:
    return _in_thread(partial(review_package, await runtime.inputs.files(task), task.id))


async def _merge(runtime: TaskRuntime, task: Task, shard: int) -> Work:
    order, held = task.spec.merge, await runtime.inputs.policies(task)
    assert order is not None  # a task of this kind was checked for it
    models, base, numbers = [held[root] for root in order.models], held.get(order.base), task.spec.numbers(shard)

    def merge() -> bytes:
        origin = None if base is None else base.image()
        return merge_stretches(order.rule, [one.image() for one in models], origin, numbers)

    return _in_thread(merge)


async def _teach(runtime: TaskRuntime, task: Task, shard: int) -> Work:
    path, root = await runtime.inputs.file(task, shard), _subject_file(task, shard)

    async def work() -> bytes:
        with tempfile.TemporaryDirectory(dir=runtime.scratch) as place:
            out = Path(place) / "taught.arrow"
            order = Teach(path=str(path), file_root=root, task=task.id, out_path=str(out), checking=runtime.checking)
            await runtime.engine.ask(order, timeout=300.0)
            return await trio.to_thread.run_sync(out.read_bytes)

    return work


def _subject_file(task: Task, shard: int) -> bytes:
    """The root of the rollout file that a shard is about."""
    return bytes.fromhex(task.spec.assets[task.spec.numbers(shard)[0]].root)


def _taught_otherwise(task: Task, shard: int, own: bytes, theirs: bytes, tolerance: float) -> str:
    about = _subject_file(task, shard), task.id
    ours = decode_taught(own, *about, 1 << 20)  # of a result that this node has made
    try:
        # Another's result may have as many rows as the own one: its bytes set no bound.
        return taught_otherwise(ours, decode_taught(theirs, *about, sum(map(len, ours.values()))), tolerance)
    except ProtocolError as error:
        return error.why


RECOMPUTED: Mapping[str, Recomputed] = {
    "review": Recomputed(_review),
    "merge": Recomputed(_merge),
    "teach": Recomputed(_teach, _taught_otherwise),
}
