"""This node's heartbeat: who it is, where it is, and what its services say of themselves."""

from collections.abc import Callable
from typing import Self

import trio

from node.services.base import Crew, Service
from node.services.station import Station
from node.services.workplace import Workplace
from protocol.liveness import heartbeat_interval
from protocol.messages import Heartbeat

STARTING = 60.0
"""Seconds in which a node hears who is there."""


class Beating(Service):
    """shortest: seconds between two heartbeats in a small swarm; contacts: where others reach this node now, the best
    first."""

    name = "heartbeat"

    def __init__(
        self, station: Station, crew: Crew, role: str, contacts: Callable[[], tuple[str, ...]], shortest: float
    ) -> None:
        self._station = station
        self._crew = crew
        self._role = role
        self._contacts = contacts
        self._shortest = shortest

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station, place.crew, place.role, place.contacts, place.config.heartbeat)

    async def run(self) -> None:
        began = self._station.clock.monotonic()
        while True:
            interval = heartbeat_interval(self._speakers(began), self._shortest)
            await self._station.board.post(self.message(int(1000 * self._station.clock.wall()), interval))
            await trio.sleep(interval)

    def _speakers(self, began: float) -> int:
        """How many members share the pool's heartbeats. Who has just started has heard few of them and counts all that
        the chain names: a pool that starts at once would fill everybody's core with everybody's seconds."""
        table, now = self._station.membership.table, self._station.clock.monotonic()
        return 1 + (table.present() if now - began < STARTING else len(table.live(now)))

    def message(self, sequence: int, interval: float) -> Heartbeat:
        """The heartbeat of this moment. interval: seconds until the next one."""
        newest = self._station.shelf.newest
        contact, *also = self._contacts() or ("",)
        return Heartbeat(
            pool=self._station.pool,
            sequence=sequence,
            role=self._role,
            state=self._crew.state,
            contact=contact,
            policy_step=newest.step if newest else -1,
            interval=interval,
            also=tuple(also),
            **self._crew.beat(),
        )
