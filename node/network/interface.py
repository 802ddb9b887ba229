"""The seam: what the rest of a node may expect from a network.

Two implementations keep this contract, `host.Libp2pNetwork` and `memory.MemoryNetwork`; the tests
in `tests/node/network/test_contract.py` run over both. Peers are named by their Ethereum address,
which the transport has authenticated; no other name of a peer appears here.
"""

from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Any, Protocol

import msgspec
import structlog
import trio

from node.network.contacts import Multiaddrs
from protocol.identity import Address, PeerId
from protocol.messages import MAX_MESSAGE_BYTES

log = structlog.get_logger(__name__)

MAX_GOSSIP_BYTES = MAX_MESSAGE_BYTES
SUBSCRIPTION_BUFFER = 1024

Accept = Callable[[Address, bytes], bool]
"""Cheap, synchronous check of a gossip message, made before it is forwarded: (publisher, data) -> keep it?"""


def _unheard(delivered: bool) -> None:
    """Nobody asked to be told."""


class SentResponse(msgspec.Struct, frozen=True):
    """A response whose handler wants to know when it has left: sent(True) once the transport has all of it,
    sent(False) if it could not be delivered. Called exactly once, and must not raise. bulk: whatever else this node has
    to say to the asker goes before it."""

    body: bytes
    sent: Callable[[bool], None] = _unheard
    bulk: bool = False


Handler = Callable[[Address, bytes], Awaitable[bytes | SentResponse]]
"""Answers a request: (asker, request) -> response. An exception resets that one stream and nothing else."""


class NetworkStats(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counters since start. Bytes are payload (gossip, requests, responses), without transport overhead.

    peers: now connected; rejected: gossip refused by an `accept`; dropped: gossip lost because a
    subscriber was too slow or a peer too loud; faults: errors caught on behalf of peers.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    messages_out: int = 0
    requests_in: int = 0
    requests_out: int = 0
    rejected: int = 0
    dropped: int = 0
    faults: int = 0
    peers: int = 0


class TcpPath(msgspec.Struct, frozen=True):
    """The direct connections with one peer. connections: how many; congestion: how the system limits what we send;
    rtt_ms: the round trip now; least_rtt_ms: the shortest seen; loss: share of segments that were sent again."""

    connections: int
    congestion: str
    rtt_ms: float
    least_rtt_ms: float
    loss: float


class Network(Protocol):
    """A node's view of its peers."""

    address: Address
    peer_id: PeerId
    private: bool
    """Whether members are called in networks of one's own, too."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be on the network until cancelled. Reports started once reachable; raises PortInUse, ListenFailed."""
        ...

    def contacts(self) -> tuple[str, ...]:
        """Own multiaddrs, each ending in /p2p/<peer id>, the best first, at most four; empty unless running."""
        ...

    def listening(self) -> tuple[str, ...]:
        """Where it listens, without the peer id, whatever others are told; empty unless running."""
        ...

    def set_contact(self, member: Address, told: Multiaddrs | None) -> None:
        """A member by one multiaddr or several; None: it is no member any more.

        A contact whose peer id does not belong to its address is never dialled. Peers that are no members
        may still connect and ask, within a small budget.
        """
        ...

    def stay_with(self, members: Set[Address]) -> None:
        """Whom of the members to stay connected with (all, before this is told); the others are dialled when they are
        asked something."""
        ...

    def failures(self) -> Mapping[Address, int]:
        """Members that could not be dialled lately, and how often in a row."""
        ...

    def mute(self, member: Address, seconds: float) -> None:
        """Drop what a member publishes, unread, for so long. What it forwards, asks and answers goes on."""
        ...

    def connected(self) -> frozenset[Address]:
        """Peers with a live, authenticated connection."""
        ...

    def relayed(self) -> frozenset[Address]:
        """Those of `connected` that are only through a relay."""
        ...

    def punched(self) -> frozenset[Address]:
        """Those of `connected` with a direct connection that both dialled at once, since neither can be dialled."""
        ...

    def unpunched(self) -> frozenset[Address]:
        """Those of `relayed` with whom that was tried in vain."""
        ...

    def lanes(self, peer: Address) -> int:
        """Connections with a peer that are for bulk alone: as many answers make their way to it side by side."""
        ...

    def paths(self) -> dict[Address, TcpPath]:
        """What the system says of the direct connections with each peer; without those of which it says nothing."""
        ...

    def told_host(self, host: str) -> None:
        """The address that others see this node's connections come from."""
        ...

    def seen_at(self, peer: Address) -> str | None:
        """/ip4/../tcp/.. that a peer's direct connection comes from, or goes to; None without one."""
        ...

    def offer_relay(self, offered: bool) -> None:
        """Whether this node carries connections between members of whom neither can dial the other."""
        ...

    async def reserve(self, relay: Address) -> float:
        """Let a connected member pass calls on to this node, which is then the first of its contacts. Seconds until
        that must be renewed. Raises PeerUnavailable."""
        ...

    def release(self) -> None:
        """Be called through relays no more."""
        ...

    async def publish(self, topic: str, data: bytes) -> None:
        """Gossip `data` (at most MAX_GOSSIP_BYTES). Best effort; never delivered to ourselves.

        Raises MessageTooLarge, NotRunning.
        """
        ...

    def subscribe(self, topic: str, accept: Accept) -> trio.MemoryReceiveChannel[tuple[Address, bytes]]:
        """Receive (original publisher, data) of a topic. One subscription per topic.

        The queue holds SUBSCRIPTION_BUFFER messages; what does not fit is dropped and counted.
        """
        ...

    def serve(self, protocol: str, handler: Handler, *, max_request: int) -> None:
        """Answer requests on `protocol`. Requests above max_request bytes are refused unread."""
        ...

    async def request(self, peer: Address, protocol: str, data: bytes, *, max_response: int, timeout: float) -> bytes:
        """Ask one peer; connects first if its contact is known. timeout: seconds, for everything.

        Raises PeerUnavailable (RequestTimedOut, RequestRefused), PeerMisbehaved.
        """
        ...

    def stats(self) -> NetworkStats:
        """Counters so far."""
        ...


class NetworkCounters:
    """Mutable counters behind NetworkStats."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(NetworkStats.__struct_fields__, 0)

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self._counts[name] += count

    def fault(self, where: str, error: BaseException) -> None:
        """An error that was caught on a peer's behalf."""
        self.add(faults=1)
        log.debug("network.fault", where=where, error=repr(error))

    def snapshot(self, peers: int) -> NetworkStats:
        values: dict[str, Any] = {**self._counts, "peers": peers}
        return NetworkStats(**values)
