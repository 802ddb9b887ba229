"""The pool's jury, as a service: every member counts verdicts, watches lots and hears disputes by itself."""

from typing import Any, Self

import trio

from node.services.base import Service
from node.services.station import Station
from node.services.workplace import Workplace
from node.swarm.contributions import Contributions
from node.swarm.power import describe_audit
from node.swarm.taskbook import describe_task

LOOK_AGAIN = 5.0
"""Seconds between two looks at what the clock may have decided."""


class Counting(Service):
    name = "jury"

    def __init__(self, station: Station) -> None:
        self._station = station
        self._contributions = Contributions(station.jury.register, station.jury.ballots, station.clock.wall)

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._count)
            nursery.start_soon(self._count_by_the_clock)
            await self._station.jury.run()

    def status(self) -> dict[str, Any]:
        station = self._station
        audit = describe_audit(station.jury, station.membership, station.run.spec.audit)
        tasks = [describe_task(task, station.clock.monotonic()) for task in station.jury.tasks.tasks()]
        return {"audit": audit, "contributions": self._contributions.status(), "tasks": {"known": tasks}}

    async def _count(self) -> None:
        async for id in self._station.jury.watch():
            self._contributions.look(id)

    async def _count_by_the_clock(self) -> None:
        while True:
            await trio.sleep(LOOK_AGAIN)
            self._station.jury.look_at_results()
            self._contributions.look_again()
