"""What became of accepted files, in a run with several trainers: counted from the manifests that cuts name."""

from typing import Any, Self

import structlog
import trio

from node.services.base import Service
from node.services.rounds.applying import Rounds
from node.services.rounds.batches import Batches
from node.services.station import Station
from node.services.workplace import Workplace
from node.swarm.ballots import FileState
from node.swarm.facts import WorkTouched
from node.swarm.uses import SeatBook
from protocol.errors import IntellectError

log = structlog.get_logger()


class SeatTracing(Service):
    """One per node."""

    name = "tracing"

    def __init__(self, station: Station, rounds: Rounds, batches: Batches) -> None:
        self._station, self._rounds, self._batches = station, rounds, batches
        self.book = SeatBook(station.run.spec.seats, station.run.spec.recipe.max_staleness)
        self.unread = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.station, place.rounds, place.batches)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            jury = self._station.jury
            async for touched in jury.facts.subscribe(WorkTouched):
                id = touched.work
                work = jury.register.get(id)
                if work is not None and jury.ballots.state(id) is FileState.ACCEPTED:
                    self.book.accepted(work)

    async def _follow(self) -> None:
        """Round by round: what one learnt from, and what the next one deals."""
        before, round_ = b"", -1
        while True:
            outer = await self._rounds.newer_than(round_)
            # After a jump this node does not know what the rounds in between dealt, and counts nothing of them.
            if before and outer.round == round_ + 1:
                await self._count(round_, before)
            before, round_ = outer.root, outer.round
            self.book.begun(before)

    async def _count(self, round_: int, outer: bytes) -> None:
        try:
            roots = await self._rounds.batches_of(round_)
            batches = await self._batches.named(roots or (), self._station.membership.addresses())
        except IntellectError as error:
            self.unread += 1
            log.info("manifests.not_read", round=round_, why=error.why)
        else:
            self.book.trained(round_, outer, batches)

    def status(self) -> dict[str, Any]:
        return {"uses": {**self.book.status(), "unread_manifests": self.unread}}
