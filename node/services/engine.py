"""The child process that computes for a worker or a validator, as a service: ready once it has prepared the run."""

from typing import Any, Self

import trio

from node.config import Role
from node.inference.client import EngineProcess
from node.progress import ProgressRecord
from node.services.base import Service
from node.services.workplace import Workplace
from protocol.run import VerificationSpec


class Engine(Service):
    name = "engine"

    def __init__(self, child: EngineProcess, progress: ProgressRecord, rules: VerificationSpec, role: Role) -> None:
        self._child = child
        self._rules, self._role = rules, role
        self._progress = progress

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.engine, place.station.progress, place.station.run.spec.verification, place.role)

    async def start(self, nursery: trio.Nursery) -> None:
        """Raises EngineError if no child becomes ready, or the run does not admit how it computes."""
        self._progress.enter("engine", "the engine loads its libraries and the model")
        await nursery.start(self._child.run)
        self._child.check_permitted(self._rules, self._role)
        self._progress.tell("engine", f"the engine is ready: {self._child.engine_name}")

    def status(self) -> dict[str, Any]:
        seconds = {kind: round(used, 1) for kind, used in self._child.used.items()}
        process = {"name": self._child.name, "pid": self._child.pid, "restarts": self._child.restarts}
        return {"processes": [process], "engine": {"seconds_by_work": seconds}}

    def beat(self) -> dict[str, Any]:
        return {"engine": self._child.engine_name}
