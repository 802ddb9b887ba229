"""The real network: py-libp2p over TCP and Noise, with yamux and gossip of our own.

Puts the parts together: who is connected is known to `links`, requests to `requests`, which gossip is let in to
`screening`, who hears what to `gossip`, and the library's defects to `hardening`.
"""

from collections.abc import Mapping, Sequence, Set
from weakref import WeakKeyDictionary

import structlog
import trio
from libp2p.abc import IListener
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.network import hardening, requests
from node.network.announcing import Announcing, reachable
from node.network.circuit.circuits import Circuits
from node.network.circuit.punching import Punching, PunchWaits
from node.network.circuit.rules import RelayLimits
from node.network.contacts import Multiaddrs
from node.network.dialling import id_of
from node.network.errors import (
    ListenFailed,
    MessageTooLarge,
    NotRunning,
    PeerUnavailable,
    PortInUse,
    RequestRefused,
    RequestTimedOut,
)
from node.network.interface import MAX_GOSSIP_BYTES, Accept, Handler, NetworkCounters, NetworkStats, TcpPath
from node.network.lanes import Lanes
from node.network.links import Links
from node.network.requests import Requests
from node.network.screening import GossipScreen
from node.network.stack import Stack
from protocol.identity import Address, NodeKey, PeerId

log = structlog.get_logger(__name__)


PING = "/intellect-node/ping/1"


class Libp2pNetwork:
    """`interface.Network` over libp2p.

    listen: multiaddrs, port 0 for any free port; announce: multiaddrs (without peer id) that others
    should dial instead of the ones listened on, for a node behind a port forward; relay: what this node does for
    others as a relay, once it offers to be one; private: whether members are dialled at addresses that are not of the
    internet; boot: this start, in seconds that rise with each whatever the clock does; what is gossiped is numbered
    from there.
    """

    def __init__(
        self,
        key: NodeKey,
        listen: str | Sequence[str] = "/ip4/0.0.0.0/tcp/4001",
        *,
        announce: Sequence[str] = (),
        relay: RelayLimits | None = None,
        private: bool = True,
        boot: int = 0,
        punch_waits: PunchWaits | None = None,
    ) -> None:
        self.address: Address = key.address
        self.peer_id: PeerId = key.peer_id
        self._key = key
        self._listen = (listen,) if isinstance(listen, str) else tuple(listen)
        self._tally = NetworkCounters()
        self._boot = boot
        self.private = private
        self._links = Links(self.address, self.listening, private=private)
        known = self._links.known
        self._screen = GossipScreen(known, self._tally, self._tally.fault)
        self._requests = Requests(self._links, self._tally)
        self._lanes = Lanes(self._links, self._requests)
        self._seen_at: str | None = None
        self._bound: WeakKeyDictionary[IListener, tuple[str, ...]] = WeakKeyDictionary()
        """What each listener listens on: asked of it once, for a heartbeat and each look at the status ask here."""
        self._punching = Punching(
            lambda: self._seen_at, known.is_member, known.address_of, private=private, waits=punch_waits
        )
        where = self._links.redialer.where
        self._announcing = Announcing(
            self.peer_id, announce, self.listening, lambda: map(where, self._circuits.relays())
        )
        self._circuits = Circuits(
            relay or RelayLimits(), known.is_member, known.address_of, self._announcing.direct, self._punching
        )
        # Small, for strangers may ask it too: what is echoed costs us as many bytes as it costs them.
        self.serve(PING, _echo, max_request=32)

    # -- the service -------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be on the network until cancelled. Raises PortInUse, ListenFailed."""
        listen = [listening_address(text) for text in self._listen]
        hardening.quieten()
        keep_freed_blocks()
        stack = Stack(self._key, self._links, self._screen, self._tally.fault, private=self.private, boot=self._boot)
        self._host, self._swarm, self._gossip = stack.host, stack.swarm, stack.gossip
        self._circuits.attach(self._host, self._swarm)
        self._links.attach(self._host, self._swarm, self._circuits)
        self._requests.attach(self._host)
        # Those that were subscribed before there was a host.
        for topic in self._screen.topics():
            self._gossip.subscribe(topic)
        refused = ""
        async with stack.running():
            for text, address in zip(self._listen, listen, strict=True):
                # After one refusal no more are tried. It is raised outside: out of a nursery it would come in an
                # exception group.
                refused = refused or ("" if await self._swarm.listen(address) else text)
            if not refused:
                await self._live(task_status)
        if refused:
            raise ListenFailed(refused, "the system refused that address")

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            # Links first: the status says "up" by them, and whoever is told that we have started may dial at once.
            await nursery.start(self._links.run)
            nursery.start_soon(self._lanes.run)
            log.info("network.listening", contacts=self.contacts())
            task_status.started()

    # -- peers -------------------------------------------------------------------------------------

    def contacts(self) -> tuple[str, ...]:
        return self._announcing.contacts()

    def listening(self) -> tuple[str, ...]:
        """Where this node listens, a wildcard replaced by the interface's address; empty unless running."""
        if not self._links.up:
            return ()
        for each in self._swarm.listeners.values():
            if not self._bound.get(each):
                self._bound[each] = tuple(map(str, each.get_addrs()))
        found = (address for each in self._swarm.listeners.values() for address in self._bound[each])
        return tuple(map(reachable, found))

    def set_contact(self, member: Address, told: Multiaddrs | None) -> None:
        self._links.redialer.place(member, told)
        self._links.sort_strangers()
        if told is None:
            self._screen.forget(member)

    def stay_with(self, members: Set[Address]) -> None:
        self._links.redialer.stay_with(members)

    def failures(self) -> Mapping[Address, int]:
        return self._links.redialer.failures

    def mute(self, member: Address, seconds: float) -> None:
        self._screen.mute(member, seconds)

    def connected(self) -> frozenset[Address]:
        return self._links.connected()

    def relayed(self) -> frozenset[Address]:
        return self._links.relayed()

    def seen_at(self, peer: Address) -> str | None:
        return self._links.seen_at(peer)

    def punched(self) -> frozenset[Address]:
        return frozenset(
            peer for peer in self.connected() if any(map(self._punching.made, self._links.direct_with(peer)))
        )

    def unpunched(self) -> frozenset[Address]:
        return self.relayed() & self._punching.failed.keys()

    def lanes(self, peer: Address) -> int:
        return self._links.lanes(peer)

    def paths(self) -> dict[Address, TcpPath]:
        return self._lanes.paths()

    def told_host(self, host: str) -> None:
        self._seen_at = host

    def offer_relay(self, offered: bool) -> None:
        self._circuits.rules.offered = offered

    async def reserve(self, relay: Address) -> float:
        contact = self._links.redialer.where(relay)
        if contact is None or contact.hidden or not self._links.direct_with(relay):
            raise PeerUnavailable(relay, "it is not connected directly")
        try:
            return await self._circuits.reserve(relay, id_of(contact.peer_id))
        except Exception as error:  # the library's own are many
            raise RequestRefused(relay, f"it is no relay for us: {error}") from error

    def release(self) -> None:
        self._circuits.held.clear()

    def stats(self) -> NetworkStats:
        return self._tally.snapshot(len(self.connected()))

    # -- gossip ------------------------------------------------------------------------------------

    async def publish(self, topic: str, data: bytes) -> None:
        # Refused here: other nodes would end the stream of whoever sends it.
        if len(data) > MAX_GOSSIP_BYTES:
            raise MessageTooLarge(len(data), MAX_GOSSIP_BYTES)
        if not self._links.up:
            raise NotRunning
        await self._gossip.publish(topic, data)
        self._tally.add(messages_out=1, bytes_out=len(data))

    def subscribe(self, topic: str, accept: Accept) -> trio.MemoryReceiveChannel[tuple[Address, bytes]]:
        received = self._screen.subscribe(topic, accept)
        if self._links.up:
            self._gossip.subscribe(topic)
        return received

    # -- requests ----------------------------------------------------------------------------------

    def serve(self, protocol: str, handler: Handler, *, max_request: int) -> None:
        self._requests.serve(protocol, handler, max_request=max_request)

    async def request(self, peer: Address, protocol: str, data: bytes, *, max_response: int, timeout: float) -> bytes:
        if not self._links.up:
            raise NotRunning
        self._tally.add(requests_out=1)
        with trio.move_on_after(timeout):
            status, body = await self._requests.ask(peer, protocol, data, max_response)
            if status != requests.OK:
                raise RequestRefused(peer, requests.REASONS.get(status, "it could not answer"))
            self._tally.add(bytes_out=len(data), bytes_in=len(body))
            return body
        raise RequestTimedOut(peer, timeout)


async def _echo(asker: Address, request: bytes) -> bytes:
    return request


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


def keep_freed_blocks() -> None:
    """Let blocks of up to 32 MiB be cut from the heap, and up to 64 MiB of it stay when they are freed.

    The bytes of a blob pass through blocks of 64 KiB to 4 MiB. As a process starts, the C library maps and unmaps each
    of 128 KiB, and hands the heap's end back with each that is freed: a page fault for every 4 KiB that arrive, a
    quarter of what a transfer costs. glibc raises both bounds once it has freed a mapped block of that size; other
    libraries have other rules, and to them this is a block that nobody wrote to.
    """
    # The largest that glibc learns from (mallopt(3), M_MMAP_THRESHOLD): 32 MiB with its own header.
    # Zeroed by the kernel where it is touched, which it is not; a bytearray would be zeroed by hand.
    bytes(32 * 1024**2 - 64 * 1024)
