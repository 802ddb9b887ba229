"""The trainer's policies, as a service: the newest is always being fetched."""

from typing import Self

import trio

from node.services.base import Service
from node.services.workplace import Workplace
from node.weights.fetch import PolicyFollower


class Following(Service):
    name = "policies"

    def __init__(self, follower: PolicyFollower, distrust: trio.Event) -> None:
        self._follower = follower
        self._distrust = distrust

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.policies, place.station.jury.distrust)

    async def run(self) -> None:
        """Until the trainer contradicts itself: then nobody can say which of its policies is the run's."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            await self._distrust.wait()
            nursery.cancel_scope.cancel()
