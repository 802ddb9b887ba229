"""This node's heartbeat: who it is, where it is, and what its services say of themselves."""

from collections.abc import Callable
from typing import Any, Self

import trio

from node.services.base import Crew, Service
from node.services.context import Context
from node.services.workplace import Workplace
from node.status_schema import ClockPart
from protocol.liveness import heartbeat_interval
from protocol.messages import Heartbeat

STARTING = 60.0
"""Seconds in which a node hears who is there."""
FIRST_GAP = 2.0
"""Seconds between the first two heartbeats, at most; doubled from one to the next while the node starts."""
TWICE = "another daemon speaks with this node's key: stop one of them, or give it a key of its own"


class Beating(Service):
    """shortest: seconds between two heartbeats in a small swarm; contacts: where others reach this node now, the best
    first; boot: number of this start, higher than of all before (`Journal.booted`); 0: by the clock."""

    name = "heartbeat"

    def __init__(
        self,
        context: Context,
        crew: Crew,
        role: str,
        contacts: Callable[[], tuple[str, ...]],
        shortest: float,
        boot: int = 0,
    ) -> None:
        self._context = context
        self._crew = crew
        self._role = role
        self._contacts = contacts
        self._shortest = shortest
        # Of two starts the later one must have the higher number, also after a lost journal.
        self._boot = boot or int(context.clock.wall())
        self._count = 0
        self._outdone = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        boot = await place.context.journal.do(place.context.journal.boots)
        return cls(place.context, place.crew, place.role, place.member.network.contacts, place.config.heartbeat, boot)

    def status(self) -> dict[str, Any]:
        """The offset that peers see: this clock minus theirs."""
        clocks = self._context.board.clocks
        ahead = clocks.ahead_by()
        clock = ClockPart(None if ahead is None else round(ahead, 1), len(clocks.offsets()))
        return {"node": {"clock": clock}}

    async def run(self) -> None:
        began = self._context.clock.monotonic()
        while True:
            self._outdo_itself()
            interval = self._interval(began)
            await self._context.board.post(self.message(interval))
            await trio.sleep(interval)

    def _interval(self, began: float) -> float:
        """Seconds until the next heartbeat. Who has just started has heard few and goes by what the chain names, which
        may be ghosts for the most part: it begins with short gaps and stretches them, so that a pool of thousands that
        starts at once does not fill everybody's core, and one of a few living does not wait for the dead."""
        table, now = self._context.membership.table, self._context.clock.monotonic()
        heard = heartbeat_interval(1 + len(table.live(now)), self._shortest)
        if now - began >= STARTING:
            return heard
        named = heartbeat_interval(1 + table.present(), self._shortest)
        return max(heard, min(named, FIRST_GAP * 2.0**self._count))

    def _outdo_itself(self) -> None:
        """Speak with higher numbers than what others hold of this node: words of a start that its journal does not
        know, or of a copy of its state that runs elsewhere."""
        known = self._context.membership.table.get(self._context.key.address)
        if known is None or known.beat is None or known.beat.number <= (self._boot, self._count - 1):
            return
        self._outdone += 1
        if self._outdone == 2:  # the first time it may be what this node itself said before its journal was lost
            self._context.progress.trouble(TWICE)
        self._boot, self._count = min(known.beat.boot + 1, 2**63 - 1), 0

    def message(self, interval: float) -> Heartbeat:
        """The heartbeat of this moment. interval: seconds until the next one."""
        newest = self._context.shelf.newest
        contact, *also = self._contacts() or ("",)
        self._count += 1
        fields: dict[str, Any] = {"policy_step": newest.step if newest else -1}
        fields |= self._crew.beat()  # a service may know the step better
        return Heartbeat(
            pool=self._context.pool,
            boot=self._boot,
            count=self._count - 1,
            at=int(1000 * self._context.clock.wall()),
            role=self._role,
            state=self._crew.state,
            contact=contact,
            interval=interval,
            also=tuple(also),
            **fields,
        )
