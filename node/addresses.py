"""Which addresses of the internet protocol a stranger may have this node call.

A peer, a contract's event, a run and a heartbeat name addresses, and whoever names one could mean what stands beside
this node: its router, its cloud's metadata service, a neighbour's database. So every address that a stranger names
passes here after its name is resolved, and the connection goes to the address that passed (a second look-up may answer
otherwise). Python's own `is_global` says something else in each version, and yes to several ways of writing IPv4 in
IPv6. Networks of one's own are let in by an explicit `private=True`, never what leads elsewhere by another name.
"""

import ipaddress
import socket
from functools import lru_cache

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(**rows: str) -> tuple[tuple[Network, str], ...]:
    return tuple(
        (ipaddress.ip_network(text), what.replace("_", " ")) for what, texts in rows.items() for text in texts.split()
    )


NEVER = _networks(
    # Of AWS, Google, Azure (whose host answers at an address of the internet) and Alibaba.
    a_metadata_service="169.254.169.254 169.254.170.2 fd00:ec2::/32 fd20:ce::/64 168.63.129.16 100.100.100.200",
    no_address="0.0.0.0/8 ::",
    link_local="169.254.0.0/16 fe80::/10",
    multicast="224.0.0.0/4 ff00::/8",
    broadcast="255.255.255.255",
    reserved="240.0.0.0/4 192.0.0.0/24 192.88.99.0/24",
    site_local="fec0::/10",
    IPv4_in_IPv6="::ffff:0:0/96 ::ffff:0:0:0/96 ::/96",
    NAT64="64:ff9b::/96 64:ff9b:1::/48",
    _6to4="2002::/16",
    Teredo="2001::/32",
)
"""Refused whatever is permitted: no machine is there, or one that stands under another address, too."""
PRIVATE = _networks(
    a_private_network="10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
    behind_a_provider="100.64.0.0/10",
    for_tests="198.18.0.0/15 192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20 2001::/23",
)
"""Permitted where networks of one's own are."""
PUBLIC_IPV6 = ipaddress.IPv6Network("2000::/3")
"""All that is given out: what else there is, is for something that no node is behind."""


def kind_of(address: IpAddress) -> tuple[bool, str]:
    """(whether it is refused in every case, what it is); (False, "") for one of the internet."""
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return True, "link local"
    if address.is_loopback:  # ::1 lies in a network of NEVER
        return False, "this machine"
    for network, what in NEVER:
        if address in network:
            return True, what.strip()
    for network, what in PRIVATE:
        if address in network:
            return False, what
    if isinstance(address, ipaddress.IPv6Address) and address not in PUBLIC_IPV6:
        return True, "reserved"
    return False, ""


@lru_cache(maxsize=1 << 14)
def refusal(address: str | IpAddress, *, private: bool) -> str:
    """Why an address that a stranger names is not called; empty where it is. address: a number, no name; private:
    whether networks of one's own are permitted."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return f"{str(address)[:80]!r} is no address"
    never, what = kind_of(ip)
    return f"{ip} is {what}, not on the public internet" if never or (what and not private) else ""


def may_call(address: str | IpAddress, *, private: bool) -> bool:
    return not refusal(address, private=private)


def is_public(address: IpAddress) -> bool:
    return may_call(address, private=False)


def resolve(host: str, port: int, *, private: bool) -> tuple[str, int]:
    """Address and port of a host that a stranger names, the first that may be called. Blocks. Raises OSError."""
    why = f"{host[:80]!r} has no address"
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if not (why := refusal(str(place[0]), private=private)):
            return str(place[0]), port
    raise OSError(f"{host[:80]} is not called: {why}")
