"""The child process that computes for a worker or a validator, as a service: ready once it has prepared the run."""

from typing import Any, Self

import trio

from node.inference.client import EngineProcess
from node.services.base import Service
from node.services.workplace import Workplace


class Engine(Service):
    name = "engine"

    def __init__(self, child: EngineProcess) -> None:
        self._child = child

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.engine)

    async def start(self, nursery: trio.Nursery) -> None:
        """Raises EngineError if no child becomes ready."""
        await nursery.start(self._child.run)

    def status(self) -> dict[str, Any]:
        return {"processes": [{"name": self._child.name, "pid": self._child.pid, "restarts": self._child.restarts}]}

    def beat(self) -> dict[str, Any]:
        return {"engine": self._child.engine_name}
