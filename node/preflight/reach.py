"""Where this node listens, whether others reach it, and how it reaches the members."""

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
import trio
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from contracts.bindings import PoolInfo
from node import addresses
from node.chain.client import ChainClient
from node.chain.profile import NetworkProfile
from node.changes import seen
from node.member import Participant, open_guest
from node.network.announcing import reachable
from node.network.hardening import port_is_taken
from node.preflight.finding import CheckFinding, failure, ok, warning
from node.run.assets import Run, obtain_run, obtain_spec
from node.state.files import write_whole
from protocol.run import RunSpec

# Where a node listens, and whether others can reach it there. What others announce is not looked at

_WORSE = ("ok", "warning", "failure")
Scope = Literal["this machine", "a private network", "the internet"]
FORWARD = "forward a TCP port to this machine and give --announce /ip4/YOUR.PUBLIC.ADDRESS/tcp/PORT"


def check_listen(listen: str) -> CheckFinding:
    """Whether the address can be bound now. Port 0 always can."""
    try:
        host, port = parse(listen)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As the daemon itself listens: else a port that a daemon has just left looks taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except ValueError as error:
        return failure("port", str(error), "give --listen /ip4/0.0.0.0/tcp/4001")
    except OSError as error:
        remedy = "stop the program that has it, or give another --listen"
        return failure("port", f"cannot listen on {listen}: {error.strerror}", remedy, listen=listen)
    return ok("port", f"{listen} is free" if port else f"{listen}: any free port", listen=listen)


def check_announced(address: str, role: str, public: bool, *, chosen: bool = False) -> CheckFinding:
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
    # A warning at most: a network of one house is reached by such an address, and its owner knows.
    if chosen:
        return warning("reach", f"{what}, as --announce says", f"unless that is meant: {FORWARD}", **data)
    remedy = FORWARD.replace("PORT", str(port) if port else "4001")
    if scope == "this machine":
        return failure("reach", what, f"give --listen /ip4/0.0.0.0/tcp/4001; behind a router {remedy}", **data)
    said = f"this {role} dials the others itself, and members that can be dialled carry the rest, more slowly"
    return warning("reach", f"{what}: {said}", f"to be dialled directly, {remedy}", **data)


def check_all_announced(addresses: Sequence[str], role: str, public: bool, *, chosen: bool = False) -> CheckFinding:
    """The best of what `check_announced` finds of each: one address by which peers come in is enough."""
    found = [check_announced(address, role, public, chosen=chosen) for address in addresses]
    return min(found, key=lambda finding: _WORSE.index(finding.level))


def is_public(profile: NetworkProfile) -> bool:
    """Whether members may be on other machines: not on the devnet, whose chain is on this one."""
    hosts = [urlsplit(url).hostname or "" for url in profile.rpc_urls]
    local = all(scope_of(host) == "this machine" for host in hosts)
    # both must say so: 8453 behind localhost is somebody's own node of Base, and 31337 elsewhere is a shared chain
    return not (local and (profile.chain_id == 31337 or profile.name == "local"))


def scope_of(host: str) -> Scope:
    """From where an address is reached; a name counts as one of the internet."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "this machine" if host == "localhost" else "the internet"
    if address.is_loopback:
        return "this machine"
    return "the internet" if addresses.is_public(address) else "a private network"


def parse(text: str) -> tuple[str, int]:
    """Host and port of /ip4/HOST/tcp/PORT; raises ValueError for another form."""
    try:
        address = Multiaddr(text)
        host = address.value_for_protocol("ip6" if text.startswith("/ip6/") else "ip4")
        return str(host), int(address.value_for_protocol("tcp") or "")
    except (MultiaddrError, ValueError, LookupError):
        raise ValueError(f"{text} is not of the form /ip4/ADDRESS/tcp/PORT") from None


# Where a node listens where nobody says, and what it announces: loopback on a local devnet, else the internet's door

MAX_PORT = 65535


def choose_listen(
    listen: str | None, profile: NetworkProfile, directory: Path, *, running: bool = False
) -> tuple[str, ...]:
    """Multiaddrs. listen: the owner's word, taken as it is; directory: the node's state, which remembers a port;
    running: of a daemon that has the port already."""
    if listen is not None:
        return several(listen)
    host = "0.0.0.0" if is_public(profile) else "127.0.0.1"  # noqa: S104 - a peer is to be reached by peers
    usual_port = 4001
    # Ports after the usual one that are tried before any free one is taken: several nodes of one machine.
    usual = range(usual_port, usual_port + 64) if is_public(profile) else range(0)
    # peers dial where a node was last
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
    # A forgotten port is only another port at the next start; a daemon that does not start is worse.
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isdecimal() and int(text) <= MAX_PORT else 0


# The pool's members as this machine reaches them, and the run that they hand out: looked at without joining

QUOTA = 64 * 2**30
T = TypeVar("T")


HUB = (
    "where they are slow, its files come from the hub, which learns this machine's address "
    "(to forbid it: intellect-node config set hub never)"
)


class ReachVisit(msgspec.Struct, frozen=True):
    """run: None where nobody handed it out in time."""

    finding: CheckFinding
    run: Run | None


async def visit(chain: ChainClient, pool: PoolInfo, directory: Path) -> ReachVisit:
    """Dial all members with a key of the moment, and fetch the run into `directory`. Raises ChainError."""
    members = [one for one in await chain.members(pool.id) if not (one.evicted or one.left)]
    if not members:
        return ReachVisit(
            warning("peers", f"nobody is in pool {pool.id} now", "wait for its trainer, or choose another"), None
        )
    async with open_guest(chain, pool, members, directory / "blobs", quota=QUOTA) as member:
        run = await _in_time(
            member, lambda: obtain_run(pool.run_root, member.blobs, member.membership.addresses, directory / "run")
        )
        return ReachVisit(_judge(len(member.network.connected()), len(members), run), run)


async def ask_for_spec(chain: ChainClient, pool: PoolInfo, directory: Path) -> RunSpec | None:
    """What a pool's run says, asked of its members without joining; None where nobody is reached. Raises ChainError."""
    members = [one for one in await chain.members(pool.id) if not (one.evicted or one.left)]
    if not members:
        return None
    async with open_guest(chain, pool, members, directory / "blobs", quota=QUOTA) as member:
        return await _in_time(member, lambda: obtain_spec(pool.run_root, member.blobs, member.membership.addresses))


async def is_over(chain: ChainClient, pool: PoolInfo, directory: Path) -> bool:
    """Whether the pool's leader says in its heartbeat that the run is over; False where it is not heard in time.

    Raises ChainError.
    """
    members = [one for one in await chain.members(pool.id) if not (one.evicted or one.left)]
    # Only the leader's word counts, and no trainer is there to give it.
    if not any(one.node in pool.trainers for one in members):
        return False
    async with (
        open_guest(chain, pool, members, directory / "blobs", quota=QUOTA) as member,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(member.listen)
        over = False
        with trio.move_on_after(8.0):  # for the trainer's next heartbeat, the dialling included
            over = (await member.membership.heard_from(member.membership.trainer)).finished
        nursery.cancel_scope.cancel()
        return over


async def _in_time(member: Participant, obtain: Callable[[], Awaitable[T]], *, run_seconds: float = 120.0) -> T | None:
    with trio.move_on_after(15.0):
        await seen(lambda: bool(member.network.connected()), 0.1)  # the network has no event for it
    # Nobody answered the dials: to ask for the run would only wait for the same once more.
    with trio.move_on_after(run_seconds if member.network.connected() else 0):
        return await obtain()
    return None


def _judge(reached: int, members: int, run: Run | None) -> CheckFinding:
    data = {"members": members, "reached": reached, "run": run.spec.name if run else None}
    if not reached:
        what = f"none of the pool's {members} members can be reached from here"
        return warning("peers", what, "let TCP connections out of this machine, or wait: they may be offline", **data)
    answer = f"{reached} of {members} members answer"
    if run is None:
        return warning("peers", f"{answer}, none has the run yet", "wait, and try again", **data)
    hub = f"; {HUB}" if run.spec.sources else ""
    return ok("peers", f"{answer}, and the run {run.spec.name} is had from them{hub}", **data)
