"""How a connection with a member comes up: by its contacts, the best first, directly or through a relay.

Leaves when to dial to `redial`.
"""

from collections.abc import Callable
from functools import lru_cache

import structlog
import trio
from libp2p.abc import INetConn
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.peer.peerstore import PeerStoreError
from multiaddr import Multiaddr

from node.bounded_dict import BoundedDict
from node.network.circuit.circuits import Circuits
from node.network.circuit.ends import is_direct
from node.network.contacts import READ, AddressSet, Contact, better_than_relays, ways_to
from node.network.errors import PeerUnavailable
from node.network.hardening import HardSwarm
from node.network.redial import LinkKind
from protocol.identity import Address, PeerId, address_of_peer

log = structlog.get_logger(__name__)

# For all addresses of a member together: one that names many does not hold its place among the dials for longer.
DIAL_SECONDS = 10.0


# Addresses that are remembered as empty. An attacker who names more makes the oldest be tried again: a dial, no more.
MAX_KEPT = 4096


class Dialler:
    """where: of a member, None if nobody has told; live: the live connections with a peer; listening: where this node
    does; private: whether members are dialled at addresses that are not of the internet."""

    def __init__(
        self,
        where: Callable[[Address], AddressSet | None],
        live: Callable[[ID], list[INetConn]],
        listening: Callable[[], tuple[str, ...]],
        *,
        private: bool,
    ) -> None:
        self._where, self._live = where, live
        self._listening, self._private = listening, private
        self._knocks = Knocks()

    def attach(self, host: BasicHost, swarm: HardSwarm, circuits: Circuits) -> None:
        """Be part of a host, before it runs."""
        self._host, self._swarm, self._circuits = host, swarm, circuits

    def _ways(self, where: AddressSet) -> list[Contact]:
        return ways_to(where, self._listening(), private=self._private)

    async def dial(self, where: AddressSet) -> None:
        """By its contacts, the best first; only by those that are better than a relay which connects us already."""
        ways = self._ways(where)
        # A second path through a relay would be no better than the one there is.
        if self._live(id_of(where.peer_id)):
            ways = better_than_relays(ways)
        failed = PeerUnavailable(where.member, "it names no address that this node dials")
        for contact in ways:
            try:
                # Evenly divided, so that an address that swallows packets does not use up the time of those after it.
                await self._dial_one(contact, DIAL_SECONDS / len(ways))
            except PeerUnavailable as error:
                failed = error
            else:
                return
        raise failed

    async def _dial_one(self, contact: Contact, seconds: float) -> None:
        if contact.relay is not None:
            await self._call(contact, contact.relay)
            return
        # Else a thousand made-up members that all name one address would have every node knock there a thousand times.
        if not self._knocks.may(contact, trio.current_time()):
            raise PeerUnavailable(contact.member, "another member was claimed to be there, and nobody was")
        try:
            await self._dial_directly(contact, seconds)
        except PeerUnavailable:
            # Remembered by place, not by member: many members may claim one address, and only one may be there.
            self._knocks.missed(contact, trio.current_time())
            raise
        self._knocks.answered(contact)
        log.debug("network.connected", peer=contact.member)

    async def _dial_directly(self, contact: Contact, seconds: float) -> None:
        peer = id_of(contact.peer_id)
        self._swarm.unblock_peer(peer)  # a failed dial bars the peer for 60 s otherwise
        try:
            self._swarm.peerstore.clear_addrs(peer)  # what identify heard is not what the member announced
        except PeerStoreError:
            log.debug("network.first_dial", peer=contact.member)
        try:
            with trio.fail_after(seconds):
                # `connect` would be content with the connection through the relay, and dial nothing.
                if self._live(peer):  # through a relay
                    await self._swarm.dial_addr(Multiaddr(contact.address), peer)
                else:
                    await self._host.connect(PeerInfo(peer, [Multiaddr(contact.address)]))
        except trio.TooSlowError:
            raise PeerUnavailable(contact.member, f"no connection within {seconds:g} s") from None
        except Exception as error:
            raise PeerUnavailable(contact.member, "it cannot be dialled") from error

    async def _call(self, contact: Contact, relay: PeerId) -> None:
        """Through a relay, which must be a member that we are connected with or can dial: where a contact says that it
        is, is nobody's word but the contact's."""
        member = address_of_peer(relay)
        known = self._where(member)
        if known is None or known.hidden:
            raise PeerUnavailable(contact.member, f"its relay {member} is no member that can be dialled")
        if not directly(self._live(id_of(relay))):
            await self.dial(known)
        try:
            await self._circuits.dial(id_of(relay), id_of(contact.peer_id))
        except Exception as error:
            raise PeerUnavailable(contact.member, f"its relay {member} does not get through: {error}") from error
        log.debug("network.connected", peer=contact.member, relay=member)

    def link(self, where: AddressSet) -> LinkKind:
        """Who can be dialled is, though a relay connects us already."""
        live = self._live(id_of(where.peer_id))
        if not live:
            return LinkKind.APART
        return LinkKind.BEST if directly(live) or not better_than_relays(self._ways(where)) else LinkKind.RELAYED


class Knocks:
    """Who was not at which address, and when."""

    def __init__(self) -> None:
        self._missed: BoundedDict[str, tuple[Address, float]] = BoundedDict(MAX_KEPT, refresh=True)

    def may(self, contact: Contact, now: float) -> bool:
        """Whether this member's word is reason enough to dial the address now."""
        missed = self._missed.get(contact.address)
        # Seconds for which an address that was not its member's is left alone on another member's word.
        return missed is None or missed[0] == contact.member or now - missed[1] >= 30.0

    def missed(self, contact: Contact, now: float) -> None:
        self._missed[contact.address] = (contact.member, now)

    def answered(self, contact: Contact) -> None:
        self._missed.pop(contact.address, None)


def directly(connections: list[INetConn]) -> list[INetConn]:
    """Those that go through no relay."""
    return [connection for connection in connections if is_direct(connection)]


# Asked for each member at each look; to read base58 costs as much as all the rest of the look.
@lru_cache(maxsize=4 * READ)
def id_of(peer_id: PeerId) -> ID:
    return ID.from_base58(peer_id)
