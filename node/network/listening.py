"""Where a node listens: which addresses can be, and what of them others can dial.

Knows sockets; nothing of peers.
"""

import socket

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.network import hardening
from node.network.errors import ListenFailed, PortInUse


def listening_address(text: str) -> Multiaddr:
    """Of /ip4|ip6/../tcp/.., if it is free. Raises PortInUse, ListenFailed."""
    try:
        address = Multiaddr(text)
        host = address.value_for_protocol("ip6" if text.startswith("/ip6/") else "ip4")
        port = int(address.value_for_protocol("tcp") or "")
    except (MultiaddrError, ValueError, LookupError) as error:
        raise ListenFailed(text, "it is not of the form /ip4/<address>/tcp/<port>") from error
    try:
        if port and hardening.port_is_taken(str(host), port):
            raise PortInUse(text)
    except OSError as error:
        raise ListenFailed(text, error.strerror or str(error)) from error
    return address


def reachable(address: str) -> str:
    """Replace a wildcard by the address of the interface that leads to the internet."""
    for wildcard, family, target in (
        ("/ip4/0.0.0.0/", socket.AF_INET, "192.0.2.1"),
        ("/ip6/::/", socket.AF_INET6, "2001:db8::1"),
    ):
        if address.startswith(wildcard):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect((target, 9))  # sends nothing
                    own = probe.getsockname()[0]
                except OSError:
                    own = "127.0.0.1" if family == socket.AF_INET else "::1"
            return address.replace(wildcard, wildcard[:5] + own + "/", 1)
    return address
