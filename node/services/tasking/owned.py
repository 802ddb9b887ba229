"""A task of this node's owner, what is known of its results, and how often its end was told; and who offers tasks."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from node.services.tasking import requests
from node.swarm.register import RegisteredWork, WorkId
from node.tasks.records import TaskFolder
from protocol.tasks import TaskId, TaskSpec

LAST_WORDS = 6
"""How often it is said again that a task is over."""


class Owned(msgspec.Struct):
    """open: results are waited for; done: shards whose results are here; works: results that were heard of and not
    gathered; said: times that its end was told; busy: shards that are being gathered; passing: nothing of it is kept
    once its end was told."""

    folder: TaskFolder
    spec: TaskSpec
    encoded: bytes
    done: set[int]
    open: bool
    works: dict[WorkId, RegisteredWork] = {}
    said: int = 0
    repeated: float = -1e9
    busy: set[int] = set()
    passing: bool = False

    @property
    def told(self) -> bool:
        """Whether everybody had the time to hear of its end."""
        return self.said >= LAST_WORDS

    def due(self, *, repeat_every: float = 20.0) -> float:
        """When it is to be said again."""
        return self.repeated + repeat_every

    def was_said(self, now: float) -> None:
        self.repeated = now
        self.said += not self.open

    def was_closed(self) -> None:
        self.open = False
        self.works.clear()

    def pass_away(self) -> None:
        self.passing = True


class TaskOfferer(requests.TaskRequestHandler, Protocol):
    """Who offers tasks."""

    @property
    def own(self) -> Mapping[TaskId, Owned]: ...

    def forget(self, id: TaskId) -> None: ...


async def end(owner: TaskOfferer, id: TaskId) -> None:
    """Nobody waits for a task any more."""
    if owner.own[id].open:
        await owner.cancel(id)
    owner.forget(id)
