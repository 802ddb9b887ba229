"""Whether the others can dial this node, asked of a few of them now and again; and what follows from it.

Who can be dialled may carry others. Who cannot lets two members pass calls on, and is reached through them.
"""

import random
from collections import Counter
from functools import partial
from typing import Any

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import every, seen, side_by_side
from node.config import RelayOffer
from node.member import Participant
from node.network.contacts import CIRCUIT, ip_of
from node.progress import ProgressRecord
from node.services.base import Service
from node.status_schema import ReachPart
from node.swarm.dialback import DialbackAnswer
from protocol.errors import IntellectError
from protocol.identity import Address

log = structlog.get_logger()
AGAIN = (60.0, 900.0)
"""Seconds until the next round, where nobody could dial this node, and where most could."""
MAX_REFUSED = 1024
RETRY = (2.0, 120.0)
"""Seconds before a member that would not carry us is asked again: at first, and at most."""
REMEDY = "forward a port to it and give --announce, or let members carry it: intellect-node doctor"


class Reach(Service):
    """tried: members that dialled in the last round that any did; reached: how many of them got through; seen: host
    and port that the last of them sees this node at. offer: when this node is a relay for others."""

    name = "reach"

    def __init__(self, member: Participant, progress: ProgressRecord, offer: RelayOffer = "auto") -> None:
        self._member = member
        self._network = member.network
        self._progress = progress
        self._offer = offer
        self.tried = 0
        self.reached = 0
        self.seen: tuple[str, int] | None = None
        self._due: dict[Address, float] = {}
        """When each reservation is to be renewed."""
        self._refused: BoundedDict[Address, tuple[float, float]] = BoundedDict(MAX_REFUSED, refresh=True)
        """Until when a member is left alone, and for how long it was."""

    @property
    def hidden(self) -> bool:
        """Most of those who tried could not dial this node; a single word for it can be a neighbour's, or a lie."""
        return self.tried > 0 and 2 * self.reached <= self.tried

    async def run(self) -> None:
        self._network.offer_relay(self._offer == "on")
        # Seconds from the first connection to the first round; until anybody has tried, the wait for the next one
        # doubles.
        first = 1.0
        await seen(lambda: bool(self._network.connected()), first)  # the network has no event for it
        unknown = first

        def pause() -> float:
            nonlocal unknown
            waits = AGAIN[1] if self.way == "direct" else AGAIN[0] if self.tried else unknown
            unknown = min(2 * unknown, AGAIN[0])
            return waits

        ask = partial(every, pause, self.ask_around, at_once=False)
        await side_by_side(partial(every, 2.0, self.settle), ask)

    def status(self) -> dict[str, Any]:
        seen = f"{self.seen[0]}:{self.seen[1]}" if self.seen else ""
        relays, holes = sorted(map(str, self._held())), (len(self._network.punched()), len(self._network.unpunched()))
        return {"node": {"reach": ReachPart(self.tried, self.reached, seen, self.way, relays, *holes)}}

    @property
    def way(self) -> str:
        """How others reach this node: direct, relayed, none (nobody carries it yet), or empty while unknown."""
        if not self.tried:
            return ""
        return ("relayed" if self._held() else "none") if self.hidden else "direct"

    async def ask_around(self) -> None:
        """One round, among those with a direct connection: what a relay sees is not where we are."""
        connected = sorted(self._network.connected() - self._network.relayed())
        answers = [await self._look(one) for one in random.sample(connected, min(3, len(connected)))]
        tries = [look for look in answers if look and look.reached is not None]
        self._notice([look.seen for look in answers if look and look.seen])
        if not tries:
            return
        was = self.way
        self.tried, self.reached = len(tries), sum(look.reached is True for look in tries)
        log.info("reach.known", tried=self.tried, reached=self.reached)
        if not self.hidden and was in ("relayed", "none"):
            self._progress.tell("reach", "members can dial this node now")
        if self.hidden and was in ("", "direct"):
            at = f", which they see at {self.seen[0]}" if self.seen else ""
            missed = self.tried - self.reached
            self._progress.tell("reach", f"{missed} of {self.tried} members cannot dial this node{at}")

    def _notice(self, seen: list[tuple[str, int]]) -> None:
        """Where members see this node: what more than half of them say, since others dial what it tells of that."""
        hosts = Counter(host for host, _ in seen)
        host, count = hosts.most_common(1)[0] if hosts else ("", 0)
        if 2 * count > len(seen):
            self.seen = next(place for place in seen if place[0] == host)
            self._network.told_host(host)

    async def _look(self, member: Address) -> DialbackAnswer | None:
        try:
            return await self._member.dialback.ask(member, self._address_for(member))
        except IntellectError as error:  # of another version, or gone
            log.debug("reach.not_asked", peer=member, why=error.why)
            return None

    def _address_for(self, member: Address) -> str:
        """Where it listens, or what its owner announces: of the addresses of the family by which the member is
        connected, the best."""
        own = [contact.partition("/p2p/")[0] for contact in self._network.contacts() if CIRCUIT not in contact]
        family = _family(self._network.seen_at(member) or "")
        return next((address for address in own if _family(address) == family), own[0])

    async def settle(self) -> None:
        """Offer to carry others or not, and be carried or not, as the last round says."""
        self._network.offer_relay(self._offer == "on" or (self._offer == "auto" and self.way == "direct"))
        if not self.hidden:
            # Relays carry few nodes: who can be dialled gives its place back at once.
            self._network.release()
            self._due.clear()
            return
        before = self._held()
        await self._reserve()
        after = self._held()
        if after - before:
            self._progress.tell("reach", f"reached through {' and '.join(sorted(after))}")
        if not after and self._network.connected():
            self._progress.trouble(f"no member carries this node, and none can dial it: {REMEDY}")

    def _held(self) -> set[Address]:
        """Relays that are in this node's contacts now."""
        if not any(CIRCUIT in contact for contact in self._network.contacts()):
            return set()
        return set(self._due) & self._network.connected()

    async def _reserve(self) -> None:
        now, direct = trio.current_time(), self._network.connected() - self._network.relayed()
        self._due = {relay: due for relay, due in self._due.items() if relay in direct}
        left_alone = {one for one, (until, _) in self._refused.items() if until > now}
        willing = sorted(direct - left_alone - self._due.keys())
        # By chance: in one order all hidden nodes would ask the same few members.
        random.shuffle(willing)
        for relay in [*[relay for relay, due in self._due.items() if due <= now], *willing]:
            if relay in self._due or len(self._due) < 2:  # that a node nobody can dial reserves: one may go
                await self._reserve_at(relay, now)

    async def _reserve_at(self, relay: Address, now: float) -> None:
        try:
            seconds = await self._network.reserve(relay)
        except IntellectError as error:
            log.debug("reach.relay_refused", peer=relay, why=error.why)
            self._due.pop(relay, None)
            pause = min(2 * self._refused[relay][1], RETRY[1]) if relay in self._refused else RETRY[0]
            self._refused[relay] = (now + pause, pause)
        else:
            self._refused.pop(relay, None)
            # At half of its time, so that one renewal may be lost.
            self._due[relay] = now + seconds / 2


def _family(address: str) -> int:
    """4 or 6, and 0 of what is no address."""
    ip = ip_of(address)
    return ip.version if ip else 0
