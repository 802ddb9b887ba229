"""What became of accepted files, in a run with several trainers: counted from the manifests that cuts name."""

from typing import Any

import structlog
import trio

from node.services.base import Service
from node.services.context import Context
from node.services.rounds.applying import Rounds
from node.services.rounds.batches import Batches
from node.swarm.ballots import FileState
from node.swarm.facts import WorkTouched
from node.swarm.uses import SeatBook
from protocol.errors import IntellectError

log = structlog.get_logger()


class SeatTracing(Service):
    """One per node."""

    name = "tracing"

    def __init__(self, context: Context, rounds: Rounds, batches: Batches) -> None:
        self._context, self._rounds, self._batches = context, rounds, batches
        self.book = SeatBook(context.run.spec.seats, context.run.spec.recipe.max_staleness)
        self.unread = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            state = self._context.state
            async for touched in self._context.facts.subscribe(WorkTouched):
                id = touched.work
                work = state.register.get(id)
                if work is not None and state.ballots.state(id) is FileState.ACCEPTED:
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
            batches = await self._batches.named(roots or (), self._context.membership.addresses())
        except IntellectError as error:
            self.unread += 1
            log.info("manifests.not_read", round=round_, why=error.why)
        else:
            self.book.trained(round_, outer, batches)

    def status(self) -> dict[str, Any]:
        return {"uses": self.book.status(self.unread)}
