"""This node's heartbeat: who it is, where it is, and what its services say of themselves."""

from collections.abc import Callable
from typing import Any, Self

import trio

from node.changes import every
from node.config import program_version
from node.services.base import Service, ServiceManager
from node.services.context import Context
from node.services.workplace import Workplace
from node.state.pen import Pen
from node.status_schema import ClockPart
from protocol.liveness import heartbeat_interval
from protocol.messages import Heartbeat


class HeartbeatSender(Service):
    """shortest: seconds between two heartbeats in a small swarm; contacts: where others reach this node now, the best
    first; pen: has the number of this start, higher than of all before, and says when heartbeats may be said. Without
    one the clock has the number; version: of this program."""

    name = "heartbeat"

    def __init__(
        self,
        context: Context,
        manager: ServiceManager,
        role: str,
        contacts: Callable[[], tuple[str, ...]],
        shortest: float,
        pen: Pen | None = None,
        version: str = "",
    ) -> None:
        self._context = context
        self._manager = manager
        self._role = role
        self._contacts = contacts
        self._shortest = shortest
        # Of two starts the later one must have the higher number, also after a lost journal.
        self._pen = pen or Pen(generation=int(context.clock.wall()))
        self._version = version
        self._count = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        own = (place.context, place.manager, place.role, place.member.network.contacts, place.config.heartbeat)
        return cls(*own, place.context.journal.pen, await trio.to_thread.run_sync(program_version))

    def status(self) -> dict[str, Any]:
        """The offset that peers see: this clock minus theirs."""
        clocks = self._context.board.clocks
        ahead = clocks.ahead_by()
        clock = ClockPart(None if ahead is None else round(ahead, 1), len(clocks.offsets()))
        return {"node": {"clock": clock}}

    async def run(self) -> None:
        began, interval = self._context.clock.monotonic(), 0.0

        async def beat() -> None:
            nonlocal interval
            await self._pen.may_speak()
            interval = self._interval(began)
            await self._context.board.post(self.message(interval))

        await every(lambda: interval, beat)

    def _interval(self, began: float) -> float:
        """Seconds until the next heartbeat. Who has just started has heard few and goes by what the chain names, which
        may be ghosts for the most part: it begins with short gaps and stretches them, so that a pool of thousands that
        starts at once does not fill everybody's core, and one of a few living does not wait for the dead."""
        table, now = self._context.membership.table, self._context.clock.monotonic()
        heard = heartbeat_interval(1 + len(table.live(now)), self._shortest)
        if now - began >= 60.0:  # seconds in which a node hears who is there
            return heard
        named = heartbeat_interval(1 + table.present(), self._shortest)
        # Seconds between the first two heartbeats, at most; doubled from one to the next while the node starts.
        return max(heard, min(named, 2.0 * 2.0**self._count))

    def message(self, interval: float) -> Heartbeat:
        """The heartbeat of this moment. interval: seconds until the next one."""
        newest = self._context.policy_cache.newest
        contact, *also = self._contacts() or ("",)
        self._count += 1
        fields: dict[str, Any] = {"policy_step": newest.step if newest else -1, "state": self._manager.state}
        fields |= self._manager.beat()  # a service may know better
        return Heartbeat(
            pool=self._context.pool,
            boot=self._pen.generation,
            count=self._count - 1,
            at=int(1000 * self._context.clock.wall()),
            role=self._role,
            contact=contact,
            interval=interval,
            also=tuple(also),
            version=self._version,
            **fields,
        )
