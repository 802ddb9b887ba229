"""What a daemon that runs says of itself, as findings. Pure."""

from collections.abc import Sequence

import msgspec

from node.preflight.chain import against_peers
from node.preflight.finding import CheckFinding, ok, warning
from node.preflight.reach import FORWARD


class Running(msgspec.Struct, frozen=True):
    """phase, text: where it is; others: members besides it, and how many of them it is connected with; tried, reached:
    members that dialled it, and that got through; way: direct, relayed, none or empty; seen: where they see it;
    relays: members that carry it; punched, unpunched: members that it reaches directly though neither can be dialled,
    and with whom that failed; offsets: its clock minus each peer's, seconds; ahead: the same as the peers it heard
    last see it, of whom there are `peers`."""

    phase: str
    text: str
    others: int = 0
    connected: int = 0
    tried: int = 0
    reached: int = 0
    way: str = ""
    seen: str = ""
    relays: int = 0
    punched: int = 0
    unpunched: int = 0
    offsets: tuple[float, ...] = ()
    ahead: float | None = None
    peers: int = 0
    troubles: Sequence[str] = ()


def check_running(daemon: Running) -> list[CheckFinding]:
    found = [ok("daemon", f"it runs: {daemon.phase}, {daemon.text}"), _connections(daemon), _reach(daemon)]
    clock = against_peers(daemon.offsets if daemon.ahead is None else (daemon.ahead,) * daemon.peers)
    troubles = [warning("trouble", text, "its log says more: intellect-node logs") for text in daemon.troubles]
    return [*found, *([clock] if clock else []), *troubles]


def _connections(daemon: Running) -> CheckFinding:
    what = f"connected with {daemon.connected} of {daemon.others} other members"
    data = {"members": daemon.others, "connected": daemon.connected}
    if daemon.others and not daemon.connected:
        return warning("connections", what, "let TCP connections out of this machine", **data)
    return ok("connections", what, **data)


def _reach(daemon: Running) -> CheckFinding:
    data = {"tried": daemon.tried, "reached": daemon.reached, "way": daemon.way, "seen": daemon.seen}
    data |= {"punched": daemon.punched, "unpunched": daemon.unpunched}
    if not daemon.tried:
        return ok("dialled", "no member has tried to dial this node yet", **data)
    what = f"{daemon.reached} of {daemon.tried} members that tried could dial this node"
    seen = f", which they see at {daemon.seen}" if daemon.seen else ""
    if daemon.way == "relayed":
        carried = f"{what}{seen}; {daemon.relays} members carry its connections, more slowly than a direct path"
        return warning("dialled", carried + _holes(daemon), _forward(daemon), **data)
    if daemon.way == "none":
        return warning("dialled", f"{what}{seen}, and no member carries its connections", _forward(daemon), **data)
    return ok("dialled", what, **data) if daemon.reached else warning("dialled", what, _forward(daemon), **data)


def _holes(daemon: Running) -> str:
    """What became of doing without the relays."""
    made = f"; {daemon.punched} hidden members are reached directly all the same" if daemon.punched else ""
    if not daemon.unpunched:
        return made
    routers = "one of the two routers gives each connection another port, or lets no such call in"
    return f"{made}; with {daemon.unpunched} that was tried in vain: {routers}"


def _forward(daemon: Running) -> str:
    """The remedy, with the address that its router shows to others."""
    host = daemon.seen.rpartition(":")[0]
    return FORWARD.replace("ip4/YOUR.PUBLIC.ADDRESS", f"ip{6 if ':' in host else 4}/{host}") if host else FORWARD
