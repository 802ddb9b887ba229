"""The pool's jury, as a service: every member counts verdicts, watches lots and hears disputes by itself."""

from typing import Any, Self

from node.services.base import Service
from node.services.station import Station
from node.services.workplace import Workplace
from node.swarm.power import describe_audit


class Counting(Service):
    name = "jury"

    def __init__(self, station: Station) -> None:
        self._station = station

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station)

    async def run(self) -> None:
        await self._station.jury.run()

    def status(self) -> dict[str, Any]:
        station = self._station
        return {"audit": describe_audit(station.jury, station.membership, station.run.spec.audit)}
