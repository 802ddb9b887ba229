"""Where a node listens where nobody says, and what it announces: loopback on a local devnet, else the internet's door.

The port of before is taken again, so that those who know this node find it after a restart.
"""

from collections.abc import Sequence
from pathlib import Path

from node.chain.profile import NetworkProfile
from node.network.hardening import port_is_taken
from node.network.host import reachable
from node.preflight.ports import is_public, parse, scope_of
from node.state.files import write_whole

USUAL_PORT = 4001
NEIGHBOURS = 64
"""Ports after the usual one that are tried before any free one is taken: several nodes of one machine."""
MAX_PORT = 65535


def choose_listen(
    listen: str | None, profile: NetworkProfile, directory: Path, *, running: bool = False
) -> tuple[str, ...]:
    """Multiaddrs. listen: the owner's word, taken as it is; directory: the node's state, which remembers a port;
    running: of a daemon that has the port already."""
    if listen is not None:
        return several(listen)
    host = "0.0.0.0" if is_public(profile) else "127.0.0.1"  # noqa: S104 - a peer is to be reached by peers
    usual = range(USUAL_PORT, USUAL_PORT + NEIGHBOURS) if is_public(profile) else range(0)
    wanted = [port for port in (_remembered(directory), *usual) if port]
    free = next((port for port in wanted if running or not port_is_taken(host, port)), 0)
    first = f"/ip4/{host}/tcp/{free}"
    also = f"/ip6/::/tcp/{free}"
    return (first, also) if is_public(profile) and free and _leads_out(also, running) else (first,)


def _leads_out(listen: str, running: bool) -> bool:
    """Whether IPv6 leads from here to the internet, by a port that is free."""
    host, port = parse(reachable(listen))
    return scope_of(host) == "the internet" and (running or not port_is_taken("::", port))


def announced(listen: Sequence[str], announce: str | None) -> tuple[str, ...]:
    """What others are told, without the peer id: `announce`, or where this machine is reached."""
    return tuple(map(without_peer, several(announce))) if announce else tuple(map(reachable, listen))


def several(text: str) -> tuple[str, ...]:
    """Multiaddrs with commas between them."""
    return tuple(stripped for each in text.split(",") if (stripped := each.strip()))


def without_peer(address: str) -> str:
    """/ip4/../tcp/.. of a multiaddr that may end in /p2p/PEER."""
    return address.partition("/p2p/")[0]


def remember_port(directory: Path, contact: str) -> None:
    """contact: where the node listens now, a multiaddr; one without host and port is not remembered."""
    try:
        _, port = parse(without_peer(contact))
    except ValueError:
        return
    if port != _remembered(directory):
        write_whole(directory / "port", f"{port}\n".encode())


def _remembered(directory: Path) -> int:
    """0 if there is none, or what stands there is none."""
    try:
        text = (directory / "port").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdecimal() and int(text) <= MAX_PORT else 0
