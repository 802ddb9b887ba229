"""Rewards from judges: each file in the queue becomes a judge task, what its judges agree on its rewards.

A few tasks are open at a time, the freshest files first. A file whose groups grow stale before its judges have spoken
is given up, and its task cancelled. A task bears the name of its work, so that a restart goes on with it.
"""

from pathlib import Path

import structlog
import trio

from node.recipe.judged import PREFIX
from node.recipe.label_queue import LabelQueue, LabelRequest
from node.services.tasking.owned import TaskOfferer, end
from node.services.tasking.requests import TaskRequest
from node.tasks.findings import judgement
from node.tasks.judging import judge_task, scores_by_place
from node.tasks.records import ShardRecord, TaskFolder
from protocol.blobs import describe
from protocol.errors import IntellectError
from protocol.identity import Address, address_bytes
from protocol.manifest import JudgedShard, JudgedTask
from protocol.rollout import encode
from protocol.run import RunSpec
from protocol.tasks import SUBJECT, TaskId

log = structlog.get_logger()


class Judges:
    """Asked from time to time. scratch: where files lie on their way into the store."""

    def __init__(self, owner: TaskOfferer, queue: LabelQueue, run: RunSpec, scratch: Path) -> None:
        self._owner = owner
        self._queue = queue
        self._run = run
        self._scratch = scratch

    async def maintain(self) -> None:
        """Ask for judges, take what they agree on, give up what is too old."""
        tasks = {one.spec.nonce: id for id, one in self._owner.own.items() if one.spec.nonce.startswith(PREFIX)}
        for id in tasks.values():
            # By the task's own step: after a restart its file may not be in the queue yet, or ever again.
            if not self._queue.fresh(self._owner.own[id].spec.step):
                await end(self._owner, id)
        for file in self._queue.files:
            try:
                await self._maintain(file, tasks.get(_nonce(file)))
            except (IntellectError, OSError) as error:
                log.warning("judging.failed", work=file.name.hex()[:16], why=str(error))

    async def _maintain(self, file: LabelRequest, id: TaskId | None) -> None:
        task = self._owner.own[id] if id is not None else None
        if not self._queue.fresh(file.step):
            self._queue.give_up(file)
            if id is not None:
                await end(self._owner, id)
        elif task is None:
            await self._offer(file)
        elif not task.open:
            await self._settle(file, task.folder)

    async def _offer(self, file: LabelRequest) -> None:
        """Unless enough are open."""
        open_ones = sum(one.open and one.spec.nonce.startswith(PREFIX) for one in self._owner.own.values())
        if open_ones >= 8:  # judge tasks for training at a time; the owner's own tasks come beside them
            return
        data = await trio.to_thread.run_sync(encode, file.batch)
        path = self._scratch / f"{file.name.hex()}.arrow"
        await trio.to_thread.run_sync(path.write_bytes, data)
        try:
            spec = judge_task(self._run, data, len(file.rows), shard_size=64, nonce=_nonce(file))
            await self._owner.offer(TaskRequest(spec, files={SUBJECT: str(path)}))
        finally:
            await trio.to_thread.run_sync(path.unlink)

    async def _settle(self, file: LabelRequest, folder: TaskFolder) -> None:
        found = await trio.to_thread.run_sync(judgement, folder)
        named = await trio.to_thread.run_sync(_named, folder)
        self._owner.forget(folder.id)
        self._queue.settle(file, scores_by_place(found.scores), named)
        log.info("judging.done", work=file.name.hex()[:16], dropped=len(found.dropped), judges=len(found.judges))


def _named(folder: TaskFolder) -> JudgedTask:
    """What a task's judges said, for whoever replays the batch. A result that nobody could read has no opinion."""
    spec, encoded = folder.spec(), folder.encoded
    subject = next(asset for asset in spec.assets if asset.path == SUBJECT)
    found = [_shard(record, report) for record, _, report in folder.results() if report]
    return JudgedTask(folder.id, len(encoded), bytes.fromhex(subject.root), subject.size, tuple(found))


def _shard(record: ShardRecord, report: bytes) -> JudgedShard:
    root = describe(report).root
    author = next(one.validator for one in record.verdicts if one.report_root == root.hex())
    return named_shard(record, author, root, len(report))


def named_shard(record: ShardRecord, author: str, root: bytes, size: int) -> JudgedShard:
    """A result as manifests name it. author, root, size: of the report on it."""
    return JudgedShard(
        node=address_bytes(Address(record.node)),
        shard=record.shard,
        file_root=bytes.fromhex(record.file_root),
        units=record.units,
        epoch=record.epoch,
        author=address_bytes(Address(author)),
        report_root=root,
        report_size=size,
    )


def _nonce(file: LabelRequest) -> str:
    return PREFIX + file.name.hex()
