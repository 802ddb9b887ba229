"""Stay connected with the members: dial, notice the loss, dial again, ever less often.

The library has no redial at all. Knows when to dial; `host` knows how.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Set
from functools import lru_cache

import msgspec
import structlog
import trio
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.network.errors import BadContact, PeerUnavailable
from protocol.errors import ProtocolError
from protocol.identity import Address, PeerId, address_of_peer

log = structlog.get_logger(__name__)

FIRST_DELAY = 0.5
LONGEST_DELAY = 30.0
CHECK_SECONDS = 1.0
PING_SECONDS = 15.0
MAX_DIALS = 8
MAX_CONTACT = 160
MAX_CONTACTS = 1024


CIRCUIT = "/p2p-circuit"
LET_IT_CALL = 3.0
"""Seconds before a member behind a relay is called through it: what it can dial itself, it dials without."""


class Contact(msgspec.Struct, frozen=True):
    """Where a member says it can be dialled. address: host and port, without the peer id; relay: through whom, which
    `address` is then a hint of, and may be empty."""

    member: Address
    peer_id: PeerId
    address: str
    relay: PeerId | None = None


@lru_cache(maxsize=4 * MAX_CONTACTS)
def parse_contact(member: Address, text: str) -> Contact | None:
    """Read a multiaddr ending in /p2p/<peer id>; None if it is malformed or the peer id is another's.

    Remembered: every event of the pool gives the whole list again, and reading one costs half a millisecond.
    """
    if len(text) > MAX_CONTACT:
        return None
    if CIRCUIT in text:
        return _parse_circuit(member, text)
    try:
        address = Multiaddr(text)
        peer_id = address.value_for_protocol("p2p")
        if not peer_id or address_of_peer(peer_id) != member or not address.value_for_protocol("tcp"):
            return None
        return Contact(member, PeerId(peer_id), str(address.decapsulate(Multiaddr(f"/p2p/{peer_id}"))))
    except (MultiaddrError, ProtocolError, ValueError, LookupError):
        return None


def parse_bootnode(text: str) -> Contact:
    """A multiaddr ending in /p2p/<peer id>, of whom that says it is. Raises BadContact."""
    peer_id = text.rpartition("/p2p/")[2]
    try:
        contact = parse_contact(address_of_peer(peer_id), text)
    except ProtocolError:
        contact = None
    if contact is None:
        raise BadContact(text)
    return contact


def _parse_circuit(member: Address, text: str) -> Contact | None:
    """[/ip../tcp/..]/p2p/<relay>/p2p-circuit/p2p/<peer id>."""
    through, _, own = text.partition(CIRCUIT)
    address, _, relay = through.rpartition("/p2p/")
    try:
        peer_id = Multiaddr(own).value_for_protocol("p2p")
        if address and not Multiaddr(address).value_for_protocol("tcp"):
            return None
        if (
            not peer_id
            or own != f"/p2p/{peer_id}"
            or address_of_peer(peer_id) != member
            or address_of_peer(relay) == member
        ):
            return None
        return Contact(member, PeerId(peer_id), address, PeerId(relay))
    except (MultiaddrError, ProtocolError, ValueError, LookupError):
        return None


def delay_after(failures: int, jitter: float) -> float:
    """Seconds to wait after that many failures in a row. jitter: 0..1, spreads out a crowd."""
    longest = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + 0.5 * jitter)


class Redialer:
    """One small loop per member.

    dial raises PeerUnavailable; connected is asked every second; ping, rarely, finds the
    connections whose other end has silently gone, and closes them.
    """

    def __init__(
        self,
        own: Address,
        dial: Callable[[Contact], Awaitable[None]],
        connected: Callable[[Contact], bool],
        ping: Callable[[Contact], Awaitable[None]],
    ) -> None:
        self._own = own
        self._dial = dial
        self._connected = connected
        self._ping = ping
        self._contacts: dict[Address, Contact] = {}
        self._dialled: Set[Address] | None = None
        self._loops: dict[Address, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._limit = trio.CapacityLimiter(MAX_DIALS)

    @property
    def contacts(self) -> Mapping[Address, Contact]:
        return self._contacts

    def set(self, contacts: Mapping[Address, str], dialled: Set[Address] | None = None) -> None:
        """Replace the members, and whom of them to stay connected with (None: all). Loops of those who stay as they
        were are left alone; who is not dialled any more stays connected until either side ends that."""
        wanted: dict[Address, Contact] = {}
        for member, text in list(contacts.items())[:MAX_CONTACTS]:
            contact = parse_contact(member, text)
            if contact is None:
                log.info("network.contact_invalid", peer=member)
            elif member != self._own:
                wanted[member] = contact
        for member, old in self._contacts.items():
            unwanted = wanted.get(member) != old or not (dialled is None or member in dialled)
            if unwanted and member in self._loops:
                self._loops.pop(member).cancel()
        self._contacts, self._dialled = wanted, dialled
        self._start_loops()

    async def run(self) -> None:
        """Redial until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._start_loops()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._loops.clear()

    def _start_loops(self) -> None:
        if self._nursery is None:
            return
        for member, contact in self._contacts.items():
            if member not in self._loops and (self._dialled is None or member in self._dialled):
                self._loops[member] = trio.CancelScope()
                self._nursery.start_soon(self._keep, contact, self._loops[member])

    async def _keep(self, contact: Contact, scope: trio.CancelScope) -> None:
        with scope:
            if contact.relay is not None:
                await trio.sleep(LET_IT_CALL * (1 + random.random()))  # noqa: S311
            elif self._own > contact.member:  # of two who learn of each other at once, one dials first
                await trio.sleep(FIRST_DELAY * (1 + random.random()))  # noqa: S311
            failures = 0
            checked = trio.current_time()
            while True:
                if not self._connected(contact):
                    failures = 0 if await self._try(contact) else failures + 1
                    checked = trio.current_time()
                    await trio.sleep(delay_after(failures, random.random()) if failures else 0)  # noqa: S311
                    continue
                failures = 0
                if trio.current_time() - checked > PING_SECONDS:
                    await self._ping(contact)
                    checked = trio.current_time()
                await trio.sleep(CHECK_SECONDS)

    async def _try(self, contact: Contact) -> bool:
        try:
            async with self._limit:
                await self._dial(contact)
        except PeerUnavailable as error:
            log.debug("network.dial_failed", peer=contact.member, why=error.why)
            return False
        return True
