"""A service: something that a node does until it is stopped, and what it says about that.

Every service has the same shape, so that the daemon is a list of them, the status page their sections side by side,
and the heartbeat what they say of themselves.
"""

from inspect import signature
from typing import Any, ClassVar, Self

import trio
from starlette.routing import Route

from node.progress import ProgressRecord


class Service:
    """name: one plain word, its own in the whole node."""

    name: ClassVar[str]

    @classmethod
    async def open(cls, place: Any) -> Self | None:
        """Made from what a node has (a Workplace): each argument by its name there, and one that it has not by its
        default. None where this node does without it."""
        named = signature(cls).parameters.values()
        there = [one.name for one in named if one.default is one.empty or hasattr(type(place), one.name)]
        return cls(**{name: getattr(place, name) for name in there})

    async def start(self, nursery: trio.Nursery) -> None:
        """Run in `nursery`. One whose start others must wait for returns when it is ready."""
        nursery.start_soon(self.run)

    async def run(self) -> None:
        """Do the work until cancelled; nothing where it only answers."""
        await trio.sleep_forever()

    def routes(self) -> list[Route]:
        """What its owner may ask over the control socket."""
        return []

    def status(self) -> dict[str, Any]:
        """The parts of /status that this fills, section by section."""
        return {}

    def beat(self) -> dict[str, Any]:
        """The fields of this node's heartbeat that this fills."""
        return {}

    def activity(self) -> str:
        """What the node does now, in words, where this is what it came for."""
        return ""


class ServiceManager:
    """The services of one node that run, in the order of their start.

    state: how far the node is, in a word; progress: the same at length, and what has happened.
    """

    def __init__(self) -> None:
        self.state = "starting"
        self.progress = ProgressRecord(activity=self.activity)
        self.services: list[Service] = []
        self.leaving, self.left = trio.Event(), trio.Event()
        """It takes no new work; everything that it earned is paid."""

    def leave(self) -> None:
        self.become("leaving")
        self.leaving.set()

    def become(self, state: str) -> None:
        self.state = state

    @property
    def names(self) -> list[str]:
        return [service.name for service in self.services]

    async def start(self, service: Service, nursery: trio.Nursery) -> None:
        """Returns once the service is ready."""
        await service.start(nursery)
        # After its start: a service that is not ready has no part in status and heartbeat.
        self.services.append(service)

    def activity(self) -> str:
        """What the node does, by the last of its services that says so: it builds on those before it."""
        return next((words for service in reversed(self.services) if (words := service.activity())), "working")

    def beat(self) -> dict[str, Any]:
        """What all of them have for the heartbeat."""
        fields: dict[str, Any] = {}
        for service in self.services:
            fields |= service.beat()
        return fields
