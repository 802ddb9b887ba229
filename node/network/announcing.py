"""Where a node says that it can be dialled, and which address a wildcard stands for."""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence

import psutil

from node.addresses import IpAddress, is_public
from node.network.circuit.circuits import circuit_contact
from node.network.contacts import MAX_CONTACT, AddressSet, announced
from protocol.identity import PeerId


class Announcing:
    """own: this node; announce: multiaddrs that are told instead of those that it listens on; listening: these, empty
    unless it runs; relays: those that pass calls on to it."""

    def __init__(
        self,
        own: PeerId,
        announce: Sequence[str],
        listening: Callable[[], tuple[str, ...]],
        relays: Callable[[], Iterable[AddressSet | None]],
    ) -> None:
        self._own, self._announce = own, tuple(announce)
        self._listening, self._relays = listening, relays

    def contacts(self) -> tuple[str, ...]:
        """The best first."""
        return announced(tuple(self._through(each) for each in self._relays() if each), self._told(), self._own)

    def direct(self) -> tuple[str, ...]:
        """Those without a relay."""
        return announced((), self._told(), self._own)

    def _told(self) -> tuple[str, ...]:
        # Nothing is announced before the node listens: who was told earlier would dial a closed port.
        return self._listening() and (self._announce or self._listening())

    def _through(self, relay: AddressSet) -> str:
        # A relay's own direct address: a relay behind a relay would be dialled through a third, and so on.
        hint = next((each.address for each in relay.contacts if each.relay is None), "")
        return circuit_contact(hint, relay.peer_id, self._own, MAX_CONTACT)


def reachable(address: str) -> str:
    """Replace a wildcard by the address of the interface that leads to the internet; by a public one that this machine
    has beside it, as where a VPN leads there; where none does, by one that leads to other machines."""
    for wildcard, family, target in (
        ("/ip4/0.0.0.0/", socket.AF_INET, "192.0.2.1"),
        ("/ip6/::/", socket.AF_INET6, "2001:db8::1"),
    ):
        if address.startswith(wildcard):
            try:
                own = _KNOWN[family] = _own_address(family, target)
            except OSError:  # no more files may be open: that moves nobody
                own = _KNOWN.get(family) or ("127.0.0.1" if family == socket.AF_INET else "::1")
            return address.replace(wildcard, wildcard[:5] + own + "/", 1)
    return address


_KNOWN: dict[socket.AddressFamily, str] = {}
"""What was found last."""


def _own_address(family: socket.AddressFamily, target: str) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))  # sends nothing
            own = probe.getsockname()[0]
        except OSError:
            own = _beside_the_internet(family)
    return own if is_public(ipaddress.ip_address(own)) else _public(family) or own


def _own(family: socket.AddressFamily) -> list[IpAddress]:
    """The addresses of this machine's interfaces that are up."""
    stats = psutil.net_if_stats()
    return [
        ipaddress.ip_address(one.address.partition("%")[0])
        for name, addresses in psutil.net_if_addrs().items()
        for one in addresses
        if one.family == family and name in stats and stats[name].isup
    ]


def _public(family: socket.AddressFamily) -> str:
    """A public address of this machine; empty where it has none."""
    return next((str(one) for one in sorted(filter(is_public, _own(family)), key=int)), "")


def _beside_the_internet(family: socket.AddressFamily) -> str:
    """This machine's address in a network of its own, such as a LAN without a router; loopback's without one."""
    found = sorted((one for one in _own(family) if not one.is_loopback), key=lambda one: (one.is_link_local, int(one)))
    # A link-local address of IPv6 is one with its interface only.
    usable = [one for one in found if not (one.version == 6 and one.is_link_local)]
    return str(usable[0]) if usable else "127.0.0.1" if family == socket.AF_INET else "::1"
