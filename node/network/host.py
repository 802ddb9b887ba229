"""The real network: py-libp2p over TCP and Noise, with yamux and gossip of our own.

Puts the parts together: who is connected is known to `links`, requests to `requests`, which gossip is let in to
`screening`, who hears what to `gossip`, and the library's defects to `hardening`.
"""

import ipaddress
import socket
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager

import psutil
import structlog
import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.addresses import IpAddress, is_public
from node.limits import open_files
from node.network import hardening, requests, yamux
from node.network.circuit.circuits import Circuits, circuit_contact
from node.network.circuit.punching import Punching
from node.network.circuit.rules import Limits
from node.network.contacts import MAX_CONTACT, AddressSet, Told, announced
from node.network.errors import (
    ListenFailed,
    MessageTooLarge,
    NotRunning,
    PeerUnavailable,
    PortInUse,
    RequestRefused,
    RequestTimedOut,
)
from node.network.gossip.gossip import Gossip
from node.network.hardening import HardMuxer, HardSwarm, HardTcp, Tasks
from node.network.interface import MAX_GOSSIP_BYTES, Accept, Handler, NetworkStats, Tally, TcpPath
from node.network.lanes import Lanes
from node.network.links import DIAL_SECONDS, Links, close_quietly, id_of
from node.network.noise import LeanNoise
from node.network.requests import Requests
from node.network.screening import Screen
from protocol.identity import Address, NodeKey, PeerId

log = structlog.get_logger(__name__)


PING = "/intellect-node/ping/1"

# A pool may have more members than this; a node dials a part of them, and news reaches the rest by gossip.
MAX_CONNECTIONS = 512
# A peer that has gone does not answer a goodbye, and a daemon that ends must not wait for it.
CLOSE_SECONDS = 3.0


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
        relay: Limits | None = None,
        private: bool = True,
        boot: int = 0,
    ) -> None:
        self.address: Address = key.address
        self.peer_id: PeerId = key.peer_id
        self._key = key
        self._listen = (listen,) if isinstance(listen, str) else tuple(listen)
        self._announce = tuple(announce)
        self._tally = Tally()
        self._boot = boot
        self.private = private
        self._links = Links(self.address, self.listening, private=private)
        known = self._links.known
        self._screen = Screen(known, self._tally, self._fault)
        self._requests = Requests(self._links, self._tally)
        self._lanes = Lanes(self._links, self._requests)
        self._seen_at: str | None = None
        self._punching = Punching(lambda: self._seen_at, known.is_member, known.address_of, private=private)
        self._circuits = Circuits(
            relay or Limits(), known.is_member, known.address_of, self._direct_contacts, self._punching
        )
        # Small, for strangers may ask it too: what is echoed costs us as many bytes as it costs them.
        self.serve(PING, _echo, max_request=32)

    # -- the service -------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be on the network until cancelled. Raises PortInUse, ListenFailed."""
        listen = [listening_address(text) for text in self._listen]
        hardening.quieten()
        keep_freed_blocks()
        self._build()
        refused = ""
        async with self._services():
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

    def _build(self) -> None:
        keys = create_new_key_pair(self._key.secret)
        own = ID.from_pubkey(keys.public_key)
        # Contacts, lots and stakes hang on the id that the address gives: another one would be another node.
        if own.to_base58() != self.peer_id:
            raise AssertionError("libp2p derives another peer id than protocol.identity")
        peerstore = PeerStore()
        peerstore.add_key_pair(own, keys)
        # A new static key at each start: it is signed by the node's key, and a stolen one is worth nothing after.
        noise = LeanNoise(keys, noise_privkey=create_noise_key_pair().private_key)
        upgrader = TransportUpgrader({TProtocol(str(NOISE)): noise}, {})
        upgrader.muxer_multistream = HardMuxer({TProtocol(YAMUX): yamux.Session})
        most = min(MAX_CONNECTIONS, open_files() // 2)
        self._swarm = HardSwarm(
            own,
            peerstore,
            upgrader,
            [HardTcp(private=self.private)],
            # Whom to dial again, and when, is the redialler's to say (`redial.py`).
            retry_config=RetryConfig(max_retries=0),
            connection_config=ConnectionConfig(
                max_connections=most,
                high_watermark=most,
                # 0: the library keeps no number of connections up by itself; the redialler does.
                low_watermark=0,
                min_connections=0,
                dial_timeout=DIAL_SECONDS,
            ),
        )
        self._swarm.fault = self._fault
        # What a peer says of its addresses by identify is nobody's signed word (peerbook has that).
        self._host = BasicHost(self._swarm, disable_identify_address_discovery=True)
        links = self._links
        self._gossip = Gossip(
            self._host, keys.private_key, self._screen, links.still_connected, links.is_best, self._boot
        )
        self._swarm.register_notifee(_Arrivals(links, self._gossip))
        self._circuits.attach(self._host, self._swarm)
        links.attach(self._host, self._swarm, self._circuits)
        self._requests.attach(self._host)
        # Those that were subscribed before there was a host.
        for topic in self._screen.topics():
            self._gossip.subscribe(topic)

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[None]:
        """Run libp2p's parts; they outlive a cancellation until we have said goodbye."""
        async with trio.open_nursery() as nursery:
            scope = await nursery.start(self._run_services)
            try:
                yield
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                    await self._say_goodbye()
                scope.cancel()

    async def _run_services(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(Tasks(self._swarm, self._fault).run)
                await nursery.start(self._gossip.run)
                task_status.started(scope)

    async def _say_goodbye(self) -> None:
        async with trio.open_nursery() as nursery:
            for connection in self._swarm.get_connections():
                nursery.start_soon(close_quietly, connection)
        await self._host.close()

    # -- peers -------------------------------------------------------------------------------------

    def contacts(self) -> tuple[str, ...]:
        return announced(self._relayed_contacts(), self._addresses_told(), self.peer_id)

    def _direct_contacts(self) -> tuple[str, ...]:
        return announced((), self._addresses_told(), self.peer_id)

    def _addresses_told(self) -> tuple[str, ...]:
        # Nothing is announced before the node listens: who was told earlier would dial a closed port.
        return self.listening() and (self._announce or self.listening())

    def _relayed_contacts(self) -> tuple[str, ...]:
        relays = (self._links.redialer.where(relay) for relay in self._circuits.relays())
        return tuple(self._circuit_through(each) for each in relays if each)

    def _circuit_through(self, relay: AddressSet) -> str:
        # A relay's own direct address: a relay behind a relay would be dialled through a third, and so on.
        hint = next((each.address for each in relay.contacts if each.relay is None), "")
        return circuit_contact(hint, relay.peer_id, self.peer_id, MAX_CONTACT)

    def listening(self) -> tuple[str, ...]:
        """Where this node listens, a wildcard replaced by the interface's address; empty unless running."""
        if not self._links.up:
            return ()
        found = (address for each in self._swarm.listeners.values() for address in each.get_addrs())
        return tuple(reachable(str(address)) for address in found)

    def set_contact(self, member: Address, told: Told | None) -> None:
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

    def _fault(self, where: str, error: BaseException) -> None:
        self._tally.add(faults=1)
        log.debug("network.fault", where=where, error=repr(error))

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


class _Arrivals(INotifee):
    """Tells of connections that come and go."""

    def __init__(self, links: Links, gossip: Gossip) -> None:
        self._links = links
        self._gossip = gossip

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        self._links.arrived(conn)
        self._gossip.arrived(conn.muxed_conn.peer_id.to_bytes())

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self._links.left(conn)
        self._gossip.left(conn.muxed_conn.peer_id.to_bytes())

    async def opened_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def closed_stream(self, network: INetwork, stream: INetStream) -> None:
        return None

    async def listen(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None

    async def listen_close(self, network: INetwork, multiaddr: Multiaddr) -> None:
        return None


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


def reachable(address: str) -> str:
    """Replace a wildcard by the address of the interface that leads to the internet; by a public one that this machine
    has beside it, as where a VPN leads there; where none does, by one that leads to other machines."""
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
                    own = _beside_the_internet(family)
            if not is_public(ipaddress.ip_address(own)):
                own = _public(family) or own
            return address.replace(wildcard, wildcard[:5] + own + "/", 1)
    return address


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


BLOCK = 32 * 1024**2 - 64 * 1024
"""The largest that glibc learns from (mallopt(3), M_MMAP_THRESHOLD): 32 MiB with its own header."""


def keep_freed_blocks() -> None:
    """Let blocks of up to 32 MiB be cut from the heap, and up to 64 MiB of it stay when they are freed.

    The bytes of a blob pass through blocks of 64 KiB to 4 MiB. As a process starts, the C library maps and unmaps each
    of 128 KiB, and hands the heap's end back with each that is freed: a page fault for every 4 KiB that arrive, a
    quarter of what a transfer costs. glibc raises both bounds once it has freed a mapped block of that size; other
    libraries have other rules, and to them this is a block that nobody wrote to.
    """
    bytes(BLOCK)  # zeroed by the kernel where it is touched, which it is not; a bytearray would be zeroed by hand
