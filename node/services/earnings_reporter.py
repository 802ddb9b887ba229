"""What a day of this worker's work would come to, by what was accepted of it in the last hour."""

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Self

import structlog

from node.bounded_dict import BoundedDict
from node.changes import every, side_by_side
from node.guest.earning import Day, by_accepted
from node.guest.hours import Hours
from node.guest.rest import GuestRest
from node.services.base import Service
from node.services.context import Context
from node.services.workplace import Workplace
from node.status_schema import DayPart
from node.swarm.facts import WorkTouched
from node.swarm.vote_set import FileState
from protocol.economics import daily_gas
from protocol.errors import IntellectError

log = structlog.get_logger()


class EarningsReporter(Service):
    """gas_price: asks the chain, wei."""

    name = "earnings-reporter"

    def __init__(
        self, context: Context, rest: GuestRest, hours: Hours, gas_price: Callable[[], Awaitable[int]]
    ) -> None:
        self._context, self._rest, self._hours, self._gas_price = context, rest, hours, gas_price
        most = 4096  # files that are remembered
        self._accepted: deque[tuple[float, int]] = deque(maxlen=most)
        self._seen: BoundedDict[bytes, None] = BoundedDict(most)
        self._since = 0.0
        self._gas: int | None = None

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.context, place.rest, place.config.limits.hours, lambda: place.chain.gas_price())

    async def run(self) -> None:
        self._begin()
        ask = partial(every, 3600.0, self._ask)  # seconds between two questions for the price of gas
        await side_by_side(ask, self._heed_rest, self._hear)

    async def _hear(self) -> None:
        register, own = self._context.state.register, self._context.key.address
        async for told in self._context.facts.subscribe(WorkTouched):
            work = register.get(told.work)
            if work is None or work.node != own or work.id in self._seen:
                continue
            if self._context.state.vote_set.state(work.id) is FileState.ACCEPTED:
                self._seen[work.id] = None
                self._accepted.append((self._context.clock.monotonic(), work.commitment.units))

    async def _heed_rest(self) -> None:
        """Time in which it rests says nothing of its speed: the count begins anew."""
        while True:
            await self._rest.changed.until(lambda: bool(self._rest.why))
            await self._rest.over()
            self._begin()

    def _begin(self) -> None:
        self._accepted.clear()
        self._since = self._context.clock.monotonic()

    async def _ask(self) -> None:
        try:
            self._gas = daily_gas(0) * await self._gas_price()
        except IntellectError as error:
            log.debug("gas.unknown", why=error.why)

    def day(self) -> Day | None:
        now = self._context.clock.monotonic()
        window = 3600.0
        while self._accepted and self._accepted[0][0] < now - window:
            self._accepted.popleft()
        units, seconds = sum(units for _, units in self._accepted), min(now - self._since, window)
        share = self._hours.share(self._context.clock.wall())
        return by_accepted(units, len(self._accepted), seconds, self._context.price, share, self._gas)

    def status(self) -> dict[str, Any]:
        day = self.day()
        if day is None:
            return {"day": DayPart()}
        gas = None if day.gas is None else str(day.gas)
        return {"day": DayPart(True, str(day.least), str(day.most), gas, round(day.share, 3), day.text)}
