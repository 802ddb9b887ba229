"""Stay connected with the members: dial, notice the loss, dial again, ever less often.

The library has no redial at all. Knows when to dial; `host` knows how.
"""

import random
from collections.abc import Awaitable, Callable, Set
from enum import Enum

import structlog
import trio

from node.network.contacts import AddressSet, Multiaddrs, address_set
from node.network.errors import PeerUnavailable
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS

log = structlog.get_logger(__name__)

# Short first, as most losses are a restart; then less and less often, as most of the others are for good.
FIRST_DELAY = 0.5
# Longer would be late for a member that comes back from a night's sleep; shorter is noise to a thousand nodes.
LONGEST_DELAY = 30.0
PING_SECONDS = 15.0
"""Of silence before a connection is pinged, by yamux: a request of our own for it was half of what a quiet node did."""
MAX_DIALS = 32
"""At once: all that a node looks for. Of most members of an old pool nobody answers, for seconds each, and those who
do must not wait behind them."""


class LinkKind(Enum):
    """How a member is connected, as far as its contacts allow better."""

    APART = "apart"
    RELAYED = "relayed"
    BEST = "best"


def delay_after(failures: int, jitter: float, longest: float = LONGEST_DELAY) -> float:
    """Seconds to wait after that many failures in a row. jitter: 0..1, spreads out a crowd."""
    # The exponent is bounded because a float overflows after a thousand failures, a morning's worth.
    return min(longest, FIRST_DELAY * 2.0 ** min(failures - 1, 16)) * (0.5 + 0.5 * jitter)


class Redialer:
    """One small loop per member that is to be connected. What is told of the others is only kept, and read when it is
    needed: a member that joins costs the same however many there are.

    dial raises PeerUnavailable; link is asked every second, and every five where it is the best; ping, rarely, finds
    the connections whose other end has silently gone, and closes them. A member that says it has moved is not dialled
    sooner for that: else one who says so every second would have a thousand nodes knock wherever it likes.
    """

    def __init__(
        self,
        own: Address,
        dial: Callable[[AddressSet], Awaitable[None]],
        link: Callable[[AddressSet], LinkKind],
        ping: Callable[[AddressSet], Awaitable[None]],
    ) -> None:
        self._own = own
        self._dial = dial
        self._link = link
        self._ping = ping
        self._told: dict[Address, Multiaddrs] = {}
        self.failures: dict[Address, int] = {}
        """Of each member in a row, until it is connected."""
        self._dialled: Set[Address] | None = None
        self._loops: dict[Address, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._limit = trio.CapacityLimiter(MAX_DIALS)
        self._loss = trio.Event()

    def knows(self, member: Address) -> bool:
        """Whether it is one of the members, wherever it is."""
        return member in self._told

    def where(self, member: Address) -> AddressSet | None:
        """None for a stranger, and where nothing that a member says of itself can be used."""
        told = self._told.get(member)
        return None if told is None else address_set(member, told)

    def place(self, member: Address, told: Multiaddrs | None) -> None:
        """Where a member is from now on; None: it is none any more. A loop is left alone where nothing changes."""
        if self._told.get(member) == told or member == self._own:
            return
        self._stop(member)
        if told is None:
            del self._told[member]
            self.failures.pop(member, None)
        # A contract with more members than the protocol allows is not ours; its surplus must not fill our memory.
        elif member in self._told or len(self._told) < MAX_MEMBERS:
            self._told[member] = told
            self._start(member)

    def stay_with(self, dialled: Set[Address]) -> None:
        """Whom to stay connected with (all, before this is told). Who is not dialled any more stays connected until
        either side ends that."""
        self._dialled = dialled
        for member in [looked_after for looked_after in self._loops if not self._is_dialled(looked_after)]:
            self._stop(member)
        self._start_loops()

    def lost(self) -> None:
        """A connection ended: those at rest look at once."""
        # A fresh event each time: those who wait now are woken, and who waits next waits for the next loss.
        self._loss.set()
        self._loss = trio.Event()

    async def run(self) -> None:
        """Redial until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._start_loops()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._loops.clear()

    def _is_dialled(self, member: Address) -> bool:
        return self._dialled is None or member in self._dialled

    def _start_loops(self) -> None:
        for member in self._told if self._dialled is None else self._dialled:
            self._start(member)

    def _start(self, member: Address) -> None:
        if self._nursery is None or member in self._loops or not self._is_dialled(member) or not self.knows(member):
            return
        where = self.where(member)
        if where is None:
            log.info("network.contact_invalid", peer=member)
            return
        self._loops[member] = trio.CancelScope()
        self._nursery.start_soon(self._keep, where, self._loops[member])

    def _stop(self, member: Address) -> None:
        if member in self._loops:
            self._loops.pop(member).cancel()

    async def _keep(self, where: AddressSet, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(self._patience(where))
            checked = due = trio.current_time()
            was = LinkKind.APART
            while True:
                link, now = self._link(where), trio.current_time()
                # Who was connected and is not any more is tried at once, without the wait that earlier failures had
                # earned.
                if link is LinkKind.BEST or (link is LinkKind.APART and was is not link):
                    self.failures.pop(where.member, None)
                    due = now
                was = link
                if link is not LinkKind.BEST and now >= due:
                    await self._try(where)
                    checked = trio.current_time()
                    due = checked + self._pause(where.member, link)
                elif link is not LinkKind.APART and now - checked > PING_SECONDS:
                    await self._ping(where)
                    checked = trio.current_time()
                if link is LinkKind.BEST:
                    # Between two looks at a member that is connected as well as can be, unless a connection ends.
                    with trio.move_on_after(5.0):
                        await self._loss.wait()
                else:
                    # A look costs a dictionary lookup, so a member that is apart can be looked at each second.
                    await trio.sleep(min(1.0, max(due - trio.current_time(), 0.0)))

    def _patience(self, where: AddressSet) -> float:
        """Seconds before the first try: of two who learn of each other at once, one dials first."""
        # A loop that starts anew, because the member moved, does not forget that nobody answered there.
        if self.failures.get(where.member):
            return self._pause(where.member, LinkKind.APART)
        if where.hidden:
            # Seconds before a member behind a relay is called through it: what it can dial itself, it dials without.
            return 3.0 * (1 + random.random())  # noqa: S311 - no secret
        return FIRST_DELAY * (1 + random.random()) if self._own > where.member else 0.0  # noqa: S311 - no secret

    def _pause(self, member: Address, link: LinkKind) -> float:
        failures = self.failures.get(member, 0)
        longest = 300.0 if link is LinkKind.RELAYED else LONGEST_DELAY  # between two tries to do without a relay
        return delay_after(failures, random.random(), longest) if failures else 0.0  # noqa: S311 - no secret

    async def _try(self, where: AddressSet) -> None:
        try:
            async with self._limit:
                await self._dial(where)
        except PeerUnavailable as error:
            log.debug("network.dial_failed", peer=where.member, why=error.why)
            self.failures[where.member] = self.failures.get(where.member, 0) + 1
        else:
            self.failures.pop(where.member, None)
