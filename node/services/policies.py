"""The trainer's policies, as a service: the newest is always being fetched."""

from typing import Self

from node.services.base import Service
from node.services.workplace import Workplace
from node.weights.fetch import PolicyFollower


class Following(Service):
    name = "policies"

    def __init__(self, follower: PolicyFollower) -> None:
        self._follower = follower

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.policies)

    async def run(self) -> None:
        await self._follower.run()
