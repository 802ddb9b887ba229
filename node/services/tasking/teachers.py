"""What a teacher says of rollouts: files that wait for it are asked about in tasks, a few files to each, and go on to
the pool with what a quorum of validators found to be so.

A file that grows stale before that is given up. A restart goes on with open tasks.
"""

import secrets

import structlog
import trio

from node.blobs.interface import Blobs
from node.recipe.teacher_queue import TeacherQueue, TeacherRequest
from node.services.tasking.judges import named_shard
from node.services.tasking.owned import Owned, TaskOfferer, end
from node.services.tasking.requests import TaskRequest
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.manifest import JudgedTask, MalformedManifest
from protocol.rollout import MalformedRollout
from protocol.run import Asset, RunSpec
from protocol.tasks import LESSON, MAX_ASSETS, MAX_REVIEW_UNITS, TaskId, TaskSpec
from protocol.teaching import Taught, decode_taught

log = structlog.get_logger()
PREFIX = "teacher requests "
"""Begins the nonce of such a task."""
MOST_OPEN = 4
"""Tasks at a time. Files that come meanwhile share the next one: every task is told of for two minutes."""


class Teachers:
    """Asked from time to time."""

    def __init__(self, owner: TaskOfferer, queue: TeacherQueue, run: RunSpec, blobs: Blobs) -> None:
        self._owner = owner
        self._queue = queue
        self._run = run
        self._blobs = blobs

    async def maintain(self) -> None:
        """Ask about what waits, take what is accepted, give up what is too old."""
        asked: dict[str, tuple[TaskId, int]] = {}
        for id, task in self._tasks().items():
            if not self._queue.fresh(task.spec.step):
                await end(self._owner, id)
                continue
            for shard, asset in enumerate(task.spec.assets):
                # A shard that a closed task has no result of is asked about anew.
                if task.open or shard in task.done:
                    asked[asset.root] = id, shard
        waiting: list[TeacherRequest] = []
        for request in self._queue.files:
            id, shard = asked.get(request.root.hex(), (b"", -1))
            if not self._queue.fresh(request.step):
                self._queue.give_up(request)
            elif not id:
                waiting.append(request)
            elif shard in self._owner.own[id].done:
                await self._settle(request, id, shard)
        if waiting and sum(task.open for task in self._tasks().values()) < MOST_OPEN:
            await self._offer(waiting[:MAX_ASSETS])

    def _tasks(self) -> dict[TaskId, Owned]:
        own = self._owner.own.items()
        return {id: one for id, one in own if one.spec.nonce.startswith(PREFIX) and not one.passing}

    async def _offer(self, requests: list[TeacherRequest]) -> None:
        assets, files = [], dict[str, str]()
        for request in requests:
            try:
                path = await self._blobs.fetch(
                    request.root, [Address(request.author)], max_size=request.size, timeout=30.0
                )
            except IntellectError as error:  # without it the batch could not be made either
                log.warning("teacher_request.lost", work=request.name.hex()[:16], why=error.why)
                self._queue.give_up(request)
                continue
            size = await trio.to_thread.run_sync(lambda path=path: path.stat().st_size)
            place = LESSON.format(len(assets))
            assets.append(Asset(path=place, root=request.root.hex(), size=size))
            files[place] = str(path)
        if not assets:
            return
        spec = TaskSpec(
            kind="teach",
            last=len(assets),
            # The freshest: the task is worth waiting for as long as one of its files is.
            step=max(request.step for request in requests),
            assets=tuple(assets),
            shard_size=1,
            lease_seconds=60.0,
            units=self._units(requests),
            nonce=PREFIX + secrets.token_hex(8),
        )
        await self._owner.offer(TaskRequest(spec, files=files))

    def _units(self, requests: list[TeacherRequest]) -> int:
        """Of each file, which are of about one length."""
        assert self._run.distill is not None  # else nothing waits
        tokens = sum(request.tokens for request in requests) / len(requests)
        return min(max(1, round(self._run.distill.pay * tokens)), MAX_REVIEW_UNITS)

    async def _settle(self, request: TeacherRequest, id: TaskId, shard: int) -> None:
        task = self._owner.own[id]
        try:
            taught, named = await trio.to_thread.run_sync(self._read, task, request, id, shard)
            self._queue.settle(request, taught, named)
        except (MalformedManifest, MalformedRollout) as error:  # accepted by validators who read it otherwise
            log.warning("teacher_request.unusable", work=request.name.hex()[:16], why=error.why)
            self._queue.give_up(request, "unusable")

    def _read(self, task: Owned, request: TeacherRequest, id: TaskId, shard: int) -> tuple[Taught, JudgedTask]:
        record, data, _ = task.folder.result(shard)
        taught = decode_taught(data, request.root, id, self._run.rollout.samples_per_file)
        asset = task.spec.assets[shard]
        # The result itself stands where a judge's work has a validator's report on it.
        named = named_shard(record, record.node, bytes.fromhex(record.file_root), len(data))
        return taught, JudgedTask(id, len(task.encoded), request.root, asset.size, (named,))
