"""Where a node listens where nobody says, and what it announces: loopback on a local devnet, else the internet's door.

The port of before is taken again, so that those who know this node find it after a restart.
"""

from pathlib import Path

from node.chain.profile import NetworkProfile
from node.network.hardening import port_is_taken
from node.network.host import reachable
from node.preflight.ports import is_public, parse
from node.state.files import write_whole

USUAL_PORT = 4001
NEIGHBOURS = 64
"""Ports after the usual one that are tried before any free one is taken: several nodes of one machine."""
MAX_PORT = 65535


def choose_listen(listen: str | None, profile: NetworkProfile, directory: Path, *, running: bool = False) -> str:
    """A multiaddr. listen: the owner's word, taken as it is; directory: the node's state, which remembers a port;
    running: of a daemon that has the port already."""
    if listen is not None:
        return listen
    host = "0.0.0.0" if is_public(profile) else "127.0.0.1"  # noqa: S104 - a peer is to be reached by peers
    usual = range(USUAL_PORT, USUAL_PORT + NEIGHBOURS) if is_public(profile) else range(0)
    wanted = [port for port in (_remembered(directory), *usual) if port]
    free = next((port for port in wanted if running or not port_is_taken(host, port)), 0)
    return f"/ip4/{host}/tcp/{free}"


def announced(listen: str, announce: str | None) -> str:
    """What others are told, without the peer id: `announce`, or where this machine is reached."""
    return without_peer(announce) if announce else reachable(listen)


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
