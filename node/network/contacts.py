"""Where members say that they can be dialled: read, bounded, and in the order in which a node tries.

A contact is a claim by its owner and by nobody else, since it ends in the owner's peer id. Pure: dials nobody.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.addresses import IpAddress, is_public, may_call
from node.network.errors import BadContact
from protocol.errors import ProtocolError
from protocol.identity import Address, PeerId, address_of_peer
from protocol.messages import MAX_CONTACT, MAX_CONTACTS_EACH

READ = 1024
"""Members whose contacts are kept in the form that is dialled; the others' are read when they are needed."""
CIRCUIT = "/p2p-circuit"
HOSTS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})
NEAR = {4: 24, 6: 64}
"""Bits that addresses of one network have in common."""

Multiaddrs = str | tuple[str, ...]
"""What is told of a member: one multiaddr, or several."""
Place = tuple[str, int]
"""Host and port."""


class Contact(msgspec.Struct, frozen=True):
    """Where a member says it can be dialled. address: host and port, without the peer id; relay: through whom, which
    `address` is then a hint of, and may be empty."""

    member: Address
    peer_id: PeerId
    address: str
    relay: PeerId | None = None


class AddressSet(msgspec.Struct, frozen=True):
    """All contacts of one member in its own order, at least one, of each host one."""

    member: Address
    peer_id: PeerId
    contacts: tuple[Contact, ...]

    @property
    def hidden(self) -> bool:
        """Whether it says of itself that others had better call it through a relay."""
        return self.contacts[0].relay is not None


@lru_cache(maxsize=8 * READ)
def parse_contact(member: Address, text: str) -> Contact | None:
    """Read a multiaddr ending in /p2p/<peer id>; None if it is malformed or the peer id is another's.

    Remembered: reading one costs half a millisecond.
    """
    if len(text) > MAX_CONTACT:
        return None
    if CIRCUIT in text:
        return _parse_circuit(member, text)
    try:
        address = Multiaddr(text)
        peer_id = address.value_for_protocol("p2p")
        place = address.decapsulate(Multiaddr(f"/p2p/{peer_id}"))
        if not peer_id or address_of_peer(peer_id) != member or not _is_place(place):
            return None
        return Contact(member, PeerId(peer_id), str(place))
    except (MultiaddrError, ProtocolError, ValueError, LookupError):
        return None


def _is_place(address: Multiaddr) -> bool:
    """/HOST/tcp/PORT and nothing else: of two hosts in one address each reader would take another."""
    names = [protocol.name for protocol in address.protocols()]
    return len(names) == 2 and names[0] in HOSTS and names[1] == "tcp" and bool(address.value_for_protocol("tcp"))


def _parse_circuit(member: Address, text: str) -> Contact | None:
    """[/ip../tcp/..]/p2p/<relay>/p2p-circuit/p2p/<peer id>."""
    through, _, own = text.partition(CIRCUIT)
    address, _, relay = through.rpartition("/p2p/")
    try:
        peer_id = Multiaddr(own).value_for_protocol("p2p")
        if address and not _is_place(Multiaddr(address)):
            return None
        # A relay that is the member itself: whoever dialled it so would be asked to call it through it.
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


@lru_cache(maxsize=4 * READ)
def address_set(member: Address, told: Multiaddrs) -> AddressSet | None:
    """What can be used of it, the first of each host or relay; None if nothing can."""
    texts = (told,) if isinstance(told, str) else told[:MAX_CONTACTS_EACH]
    kept: dict[str, Contact] = {}
    for text in texts:
        contact = parse_contact(member, text)
        if contact is not None:
            kept.setdefault(contact.relay or host_of(contact.address), contact)
    if not kept:
        return None
    contacts = tuple(kept.values())
    return AddressSet(member, contacts[0].peer_id, contacts)


def host_of(address: str) -> str:
    """The host of /ip4|ip6|dns../HOST/tcp/PORT."""
    return address.split("/")[2] if address.count("/") > 2 else address


def place_of(address: str) -> Place | None:
    """Host and port of /ip4|ip6/../tcp/..; None for names and for what is no such address."""
    try:
        parsed = Multiaddr(address)
        host = str(parsed.value_for_protocol("ip6" if address.startswith("/ip6/") else "ip4"))
        return str(ipaddress.ip_address(host)), int(parsed.value_for_protocol("tcp") or "")
    except (MultiaddrError, ValueError, LookupError):
        return None


def ip_of(address: str) -> IpAddress | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(host_of(address))
    except ValueError:
        return None


def ways_to(where: AddressSet, own: Iterable[str], *, private: bool) -> list[Contact]:
    """The contacts that a node tries, in that order: of its own networks, of the internet, through relays, and of
    networks where it is not. own: where this node listens, multiaddrs; private: whether addresses that are not of the
    internet are dialled at all."""
    here = [ip for each in own if (ip := ip_of(each))]
    ranked = [(_rank(contact, here), contact) for contact in where.contacts if _may_dial(contact, private=private)]
    return [contact for _, contact in sorted(ranked, key=lambda each: each[0])]


def _may_dial(contact: Contact, *, private: bool) -> bool:
    """A name is looked up, and looked at, when it is dialled; where a relay is, its own contact says."""
    ip = ip_of(contact.address)
    return contact.relay is not None or ip is None or may_call(ip, private=private)


_OWN, _INTERNET, _RELAY, _ELSEWHERE = range(4)


def _rank(contact: Contact, here: Sequence[IpAddress]) -> int:
    ip = ip_of(contact.address)
    if contact.relay is not None:
        return _RELAY
    if ip is None or is_public(ip):
        return _INTERNET
    return _OWN if any(near(ip, each) for each in here) else _ELSEWHERE


def near(one: IpAddress, other: IpAddress) -> bool:
    """Whether two addresses are of one network, as far as can be told."""
    if one.version != other.version:
        return False
    if one.is_loopback or other.is_loopback:
        return one.is_loopback and other.is_loopback
    shift = one.max_prefixlen - NEAR[one.version]
    return int(one) >> shift == int(other) >> shift


def better_than_relays(ways: Sequence[Contact]) -> list[Contact]:
    """Those worth a dial while a relay connects the two already."""
    first = next((n for n, contact in enumerate(ways) if contact.relay is not None), len(ways))
    return list(ways[:first])


def announced(relayed: Sequence[str], direct: Sequence[str], peer_id: PeerId) -> tuple[str, ...]:
    """A node's own contacts, the best first: through relays where it has reserved, then of the internet, then others;
    never without one that is direct. direct: multiaddrs without the peer id."""
    best = sorted(direct, key=lambda each: (ip := ip_of(each)) is not None and not is_public(ip))
    # Two places stay for direct ones: in its own network nobody needs a relay, and a relay may be gone.
    room = MAX_CONTACTS_EACH - min(len(best), 2)
    chosen = (*relayed[:room], *(f"{address}/p2p/{peer_id}" for address in best))
    return chosen[:MAX_CONTACTS_EACH]
