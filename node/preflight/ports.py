"""Where a node listens, and whether others can reach it there. What others announce is not looked at."""

import ipaddress
import socket
from collections.abc import Sequence
from typing import Literal
from urllib.parse import urlsplit

from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.chain.profile import NetworkProfile
from node.preflight.finding import Finding, failure, ok, warning

_WORSE = ("ok", "warning", "failure")
Scope = Literal["this machine", "a private network", "the internet"]
FORWARD = "forward a TCP port to this machine and give --announce /ip4/YOUR.PUBLIC.ADDRESS/tcp/PORT"


def check_listen(listen: str) -> Finding:
    """Whether the address can be bound now. Port 0 always can."""
    try:
        host, port = parse(listen)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except ValueError as error:
        return failure("port", str(error), "give --listen /ip4/0.0.0.0/tcp/4001")
    except OSError as error:
        remedy = "stop the program that has it, or give another --listen"
        return failure("port", f"cannot listen on {listen}: {error.strerror}", remedy, listen=listen)
    return ok("port", f"{listen} is free" if port else f"{listen}: any free port", listen=listen)


def check_announced(address: str, role: str, public: bool, *, chosen: bool = False) -> Finding:
    """Whether peers can dial `address` (a multiaddr). public: of a network whose members may be anywhere; chosen: by
    --announce, which is believed.

    Who cannot be dialled dials, and is carried by members who can: slower, but in.
    """
    try:
        host, port = parse(address)
    except ValueError:
        return ok("reach", f"announced as {address}: a name that peers resolve", address=address)
    scope = scope_of(host)
    data = {"address": address, "scope": scope}
    if scope == "the internet" or not public:
        return ok("reach", f"announced as {address}: reachable from {scope}", **data)
    what = f"announced as {address}, which only {scope} reaches"
    if chosen:
        return warning("reach", f"{what}, as --announce says", f"unless that is meant: {FORWARD}", **data)
    remedy = FORWARD.replace("PORT", str(port) if port else "4001")
    if scope == "this machine":
        return failure("reach", what, f"give --listen /ip4/0.0.0.0/tcp/4001; behind a router {remedy}", **data)
    said = f"this {role} dials the others itself, and members that can be dialled carry the rest, more slowly"
    return warning("reach", f"{what}: {said}", f"to be dialled directly, {remedy}", **data)


def check_all_announced(addresses: Sequence[str], role: str, public: bool, *, chosen: bool = False) -> Finding:
    """The best of what `check_announced` finds of each: one address by which peers come in is enough."""
    found = [check_announced(address, role, public, chosen=chosen) for address in addresses]
    return min(found, key=lambda finding: _WORSE.index(finding.level))


def is_public(profile: NetworkProfile) -> bool:
    """Whether members may be on other machines: not on the devnet, whose chain is on this one."""
    hosts = [urlsplit(url).hostname or "" for url in profile.rpc_urls]
    local = all(scope_of(host) == "this machine" for host in hosts)
    return not (local and (profile.chain_id == 31337 or profile.name == "local"))


def scope_of(host: str) -> Scope:
    """From where an address is reached; a name counts as one of the internet."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "this machine" if host == "localhost" else "the internet"
    if address.is_loopback:
        return "this machine"
    return "the internet" if address.is_global else "a private network"


def parse(text: str) -> tuple[str, int]:
    """Host and port of /ip4/HOST/tcp/PORT; raises ValueError for another form."""
    try:
        address = Multiaddr(text)
        host = address.value_for_protocol("ip6" if text.startswith("/ip6/") else "ip4")
        return str(host), int(address.value_for_protocol("tcp") or "")
    except (MultiaddrError, ValueError, LookupError):
        raise ValueError(f"{text} is not of the form /ip4/ADDRESS/tcp/PORT") from None
