"""The real network: py-libp2p over TCP and Noise, with yamux and gossip of our own.

Knows how members are dialled, how requests travel, and how much a peer may ask and say.
Leaves the library's defects to `hardening`, who hears what to `gossip`, the bytes of a request to `wire`.
"""

import socket
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import lru_cache

import structlog
import trio
from libp2p.abc import INetConn, INetStream, INetwork, INotifee
from libp2p.crypto.secp256k1 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.peer.peerstore import PeerStore, PeerStoreError
from libp2p.pubsub.pb import rpc_pb2
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.stream_muxer.exceptions import MuxedStreamError
from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.network import hardening, wire, yamux
from node.network.budget import Budgets, TokenBucket
from node.network.circuit.circuits import Circuits, circuit_contact
from node.network.circuit.ends import is_direct
from node.network.circuit.punching import Punching
from node.network.circuit.rules import Limits
from node.network.contacts import (
    MAX_CONTACT,
    READ,
    Contact,
    Told,
    Whereabouts,
    announced,
    better_than_relays,
    ways_to,
)
from node.network.errors import (
    ListenFailed,
    MessageTooLarge,
    NotRunning,
    PeerMisbehaved,
    PeerUnavailable,
    PortInUse,
    RequestRefused,
    RequestTimedOut,
)
from node.network.gossip.gossip import Gossip
from node.network.hardening import HardMuxer, HardSwarm, HardTcp, Tasks
from node.network.heap import keep_freed_blocks
from node.network.interface import (
    MAX_GOSSIP_BYTES,
    SUBSCRIPTION_BUFFER,
    Accept,
    Answer,
    Handler,
    NetworkStats,
    Tally,
)
from node.network.kept import KeptStreams
from node.network.knocks import Knocks
from node.network.noise import LeanNoise
from node.network.redial import PING_SECONDS, Link, Redialer
from node.network.replay import Window
from node.recent import Recent
from protocol.errors import InvalidIdentity
from protocol.identity import Address, NodeKey, PeerId, address_of_peer
from protocol.liveness import MAX_MEMBERS

log = structlog.get_logger(__name__)

PING = "/intellect-node/ping/1"

MAX_CONNECTIONS = 512
MAX_STRANGERS = 64
DIAL_SECONDS = 10.0
READ_SECONDS = 15.0
KEEP_SECONDS = 30.0
"""For a further request on a stream, after an answer."""
SENT_AT_ONCE = yamux.WINDOW_BYTES // 2
"""A request that fits the other side's window, whatever it reads."""
SERVE_SECONDS = 120.0
PING_TIMEOUT = 20.0
CLOSE_SECONDS = 3.0
MAX_SERVED_AT_ONCE = 512
MAX_WINDOW = 15 * 1024**2
ADDRESS_TTL = 3600

# Per peer that hands us messages, and per peer that wrote them: messages per second, and in a burst.
FORWARDED = (200.0, 1000.0)
PUBLISHED = (25.0, 400.0)
# What strangers may ask: requests per second each, and response bytes per second together.
STRANGER_REQUESTS = (5.0, 50.0)
STRANGER_BYTES = (4.0 * 1024**2, 32.0 * 1024**2)


def _unheard(delivered: bool) -> None:
    """Nobody asked to be told."""


class _Subscription:
    def __init__(self, accept: Accept) -> None:
        self.accept = accept
        self.send, self.receive = trio.open_memory_channel[tuple[Address, bytes]](SUBSCRIPTION_BUFFER)


class Libp2pNetwork:
    """`interface.Network` over libp2p.

    listen: multiaddrs, port 0 for any free port; announce: multiaddrs (without peer id) that others
    should dial instead of the ones listened on, for a node behind a port forward; relay: what this node does for
    others as a relay, once it offers to be one; private: whether members are dialled at addresses that are not of the
    internet.
    """

    def __init__(
        self,
        key: NodeKey,
        listen: str | Sequence[str] = "/ip4/0.0.0.0/tcp/4001",
        *,
        announce: Sequence[str] = (),
        relay: Limits | None = None,
        private: bool = True,
    ) -> None:
        self.address: Address = key.address
        self.peer_id: PeerId = key.peer_id
        self._key = key
        self._listen = (listen,) if isinstance(listen, str) else tuple(listen)
        self._announce = tuple(announce)
        self._private = private
        self._knocks = Knocks()
        self._tally = Tally()
        self._subscriptions: dict[str, _Subscription] = {}
        self._handlers: dict[str, tuple[Handler, int]] = {}
        self._addresses: Recent[bytes, Address] = Recent(2 * MAX_MEMBERS)
        self._strangers: dict[INetConn, ID] = {}
        self._forwarded = Budgets(*FORWARDED)
        self._published = Budgets(*PUBLISHED)
        self._muted: dict[Address, float] = {}
        self._windows: dict[Address, Window] = {}
        self._stranger_requests = Budgets(*STRANGER_REQUESTS)
        self._stranger_bytes = TokenBucket(*STRANGER_BYTES)
        self._serving = trio.CapacityLimiter(MAX_SERVED_AT_ONCE)
        self._kept = KeptStreams[_Kept]()
        self._redialer = Redialer(self.address, self._dial, self._link, self._ping)
        self._seen_at: str | None = None
        self._punching = Punching(lambda: self._seen_at, self._is_member, self._address_of, private=private)
        self._circuits = Circuits(
            relay or Limits(), self._is_member, self._address_of, self._direct_contacts, self._punching
        )
        self._nursery: trio.Nursery | None = None
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
                refused = refused or ("" if await self._swarm.listen(address) else text)
            if not refused:
                await self._live(task_status)
        if refused:
            raise ListenFailed(refused, "the system refused that address")

    async def _live(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(self._redialer.run)
                log.info("network.listening", contacts=self.contacts())
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def _build(self) -> None:
        keys = create_new_key_pair(self._key.secret)
        own = ID.from_pubkey(keys.public_key)
        if own.to_base58() != self.peer_id:
            raise AssertionError("libp2p derives another peer id than protocol.identity")
        peerstore = PeerStore()
        peerstore.add_key_pair(own, keys)
        noise = LeanNoise(keys, noise_privkey=create_noise_key_pair().private_key)
        upgrader = TransportUpgrader({TProtocol(str(NOISE)): noise}, {})
        upgrader.muxer_multistream = HardMuxer({TProtocol(YAMUX): yamux.Session})
        self._swarm = HardSwarm(
            own,
            peerstore,
            upgrader,
            [HardTcp()],
            retry_config=RetryConfig(max_retries=0),
            connection_config=ConnectionConfig(
                max_connections=MAX_CONNECTIONS,
                high_watermark=MAX_CONNECTIONS,
                low_watermark=0,
                min_connections=0,
                dial_timeout=DIAL_SECONDS,
            ),
        )
        self._swarm.fault = self._fault
        self._host = BasicHost(self._swarm, disable_identify_address_discovery=True)
        self._gossip = Gossip(self._host, keys.private_key, _Listener(self), self._still_connected, self._is_best)
        self._swarm.register_notifee(_Arrivals(self))
        self._circuits.attach(self._host, self._swarm)
        for topic in self._subscriptions:
            self._gossip.subscribe(topic)
        for protocol in self._handlers:
            self._host.set_stream_handler(TProtocol(protocol), self._stream_handler(protocol))

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
                nursery.start_soon(_close_quietly, connection)
        await self._host.close()

    # -- peers -------------------------------------------------------------------------------------

    def contacts(self) -> tuple[str, ...]:
        return announced(self._relayed_contacts(), self._addresses_told(), self.peer_id)

    def _direct_contacts(self) -> tuple[str, ...]:
        return announced((), self._addresses_told(), self.peer_id)

    def _addresses_told(self) -> tuple[str, ...]:
        return self.listening() and (self._announce or self.listening())

    def _relayed_contacts(self) -> tuple[str, ...]:
        relays = (self._redialer.where(relay) for relay in self._circuits.relays())
        return tuple(self._circuit_through(each) for each in relays if each)

    def _circuit_through(self, relay: Whereabouts) -> str:
        hint = next((each.address for each in relay.contacts if each.relay is None), "")
        return circuit_contact(hint, relay.peer_id, self.peer_id, MAX_CONTACT)

    def listening(self) -> tuple[str, ...]:
        """Where this node listens, a wildcard replaced by the interface's address; empty unless running."""
        if self._nursery is None:
            return ()
        found = (address for each in self._swarm.listeners.values() for address in each.get_addrs())
        return tuple(reachable(str(address)) for address in found)

    def set_contacts(self, contacts: Mapping[Address, Told], dialled: Set[Address] | None = None) -> None:
        self._redialer.set(contacts, dialled)
        self._sort_strangers()
        for publisher in [each for each in self._windows if not self._is_member(each)]:
            del self._windows[publisher]

    def set_contact(self, member: Address, told: Told | None) -> None:
        self._redialer.place(member, told)
        self._sort_strangers()
        if told is None:
            self._windows.pop(member, None)

    def stay_with(self, members: Set[Address]) -> None:
        self._redialer.stay_with(members)

    def _sort_strangers(self) -> None:
        """Who has become a member is none of them."""
        known = [each for each, peer in self._strangers.items() if self._is_members(peer.to_bytes())]
        for connection in known:
            del self._strangers[connection]

    def _is_members(self, peer: bytes) -> bool:
        address = self._address_of(peer)
        return address is not None and self._is_member(address)

    def mute(self, member: Address, seconds: float) -> None:
        now = trio.current_time()
        self._muted = {muted: until for muted, until in self._muted.items() if until > now}
        self._muted[member] = now + seconds

    def connected(self) -> frozenset[Address]:
        if self._nursery is None:
            return frozenset()
        live = (peer for peer in self._swarm.connections if self._open_connections(peer))
        return frozenset(address for peer in live if (address := self._address_of(peer.to_bytes())))

    def relayed(self) -> frozenset[Address]:
        found = ((peer, self._connections_of(peer)) for peer in self.connected())
        return frozenset(peer for peer, live in found if live and not self._direct(live))

    def seen_at(self, peer: Address) -> str | None:
        for connection in self._direct(self._connections_of(peer)):
            return next((str(address) for address in connection.get_transport_addresses()), None)
        return None

    def punched(self) -> frozenset[Address]:
        return frozenset(
            peer for peer in self.connected() if any(map(self._punching.made, self._direct(self._connections_of(peer))))
        )

    def unpunched(self) -> frozenset[Address]:
        return self.relayed() & self._punching.failed.keys()

    def told_host(self, host: str) -> None:
        self._seen_at = host

    def offer_relay(self, offered: bool) -> None:
        self._circuits.rules.offered = offered

    async def reserve(self, relay: Address) -> float:
        contact = self._redialer.where(relay)
        if contact is None or contact.hidden or not self._direct(self._connections_of(relay)):
            raise PeerUnavailable(relay, "it is not connected directly")
        try:
            return await self._circuits.reserve(relay, _id_of(contact.peer_id))
        except Exception as error:  # the library's own are many
            raise RequestRefused(relay, f"it is no relay for us: {error}") from error

    def release(self) -> None:
        self._circuits.held.clear()

    def _is_member(self, address: Address) -> bool:
        return self._redialer.knows(address)

    def _connections_of(self, peer: Address) -> list[INetConn]:
        """The live ones."""
        contact = self._redialer.where(peer)
        if self._nursery is None:
            return []
        known = [_id_of(contact.peer_id)] if contact else [*self._swarm.connections]
        found = (self._swarm.connections.get(id, ()) for id in known if self._address_of(id.to_bytes()) == peer)
        return [connection for each in found for connection in each if not connection.is_closed]

    @staticmethod
    def _direct(connections: list[INetConn]) -> list[INetConn]:
        return [connection for connection in connections if is_direct(connection)]

    def stats(self) -> NetworkStats:
        return self._tally.snapshot(len(self.connected()))

    def _address_of(self, peer: bytes) -> Address | None:
        """The address of a raw peer id, None if it is not a node's."""
        if peer not in self._addresses:
            try:
                self._addresses[peer] = address_of_peer(ID(peer).to_base58())
            except InvalidIdentity:
                return None
        return self._addresses[peer]

    def _open_connections(self, peer: ID) -> bool:
        return any(not connection.is_closed for connection in self._swarm.connections.get(peer, ()))

    def _still_connected(self, peer: bytes) -> bool:
        return self._open_connections(ID(peer))

    def _is_best(self, stream: INetStream) -> bool:
        """Whether it goes directly, or nothing does."""
        return is_direct(stream) or not self._direct(self._live_of(stream.muxed_conn.peer_id))

    def _link(self, where: Whereabouts) -> Link:
        """Who can be dialled is, though a relay connects us already."""
        live = self._live_with(where.peer_id)
        if not live:
            return Link.APART
        return Link.BEST if self._direct(live) or not better_than_relays(self._ways(where)) else Link.RELAYED

    def _live_with(self, peer_id: PeerId) -> list[INetConn]:
        return self._live_of(_id_of(peer_id))

    def _live_of(self, peer: ID) -> list[INetConn]:
        return [each for each in self._swarm.connections.get(peer, ()) if not each.is_closed]

    def _ways(self, where: Whereabouts) -> list[Contact]:
        return ways_to(where, self.listening(), private=self._private)

    async def _dial(self, where: Whereabouts) -> None:
        """By its contacts, the best first; only by those that are better than a relay which connects us already."""
        ways = self._ways(where)
        if self._live_with(where.peer_id):
            ways = better_than_relays(ways)
        failed = PeerUnavailable(where.member, "it names no address that this node dials")
        for contact in ways:
            try:
                await self._dial_one(contact, DIAL_SECONDS / len(ways))
            except PeerUnavailable as error:
                failed = error
            else:
                return
        raise failed

    async def _dial_one(self, contact: Contact, seconds: float) -> None:
        if contact.relay is not None:
            await self._call(contact, contact.relay)
            return
        if not self._knocks.may(contact, trio.current_time()):
            raise PeerUnavailable(contact.member, "another member was claimed to be there, and nobody was")
        try:
            await self._dial_directly(contact, seconds)
        except PeerUnavailable:
            self._knocks.missed(contact, trio.current_time())
            raise
        self._knocks.answered(contact)
        log.debug("network.connected", peer=contact.member)

    async def _dial_directly(self, contact: Contact, seconds: float) -> None:
        peer = _id_of(contact.peer_id)
        self._swarm.unblock_peer(peer)  # a failed dial bars the peer for 60 s otherwise
        try:
            self._swarm.peerstore.clear_addrs(peer)  # what identify heard is not what the member announced
        except PeerStoreError:
            log.debug("network.first_dial", peer=contact.member)
        try:
            with trio.fail_after(seconds):
                if self._open_connections(peer):  # through a relay
                    await self._swarm.dial_addr(Multiaddr(contact.address), peer)
                else:
                    await self._host.connect(PeerInfo(peer, [Multiaddr(contact.address)]))
        except trio.TooSlowError:
            raise PeerUnavailable(contact.member, f"no connection within {seconds:g} s") from None
        except Exception as error:
            raise PeerUnavailable(contact.member, "it cannot be dialled") from error

    async def _call(self, contact: Contact, relay: PeerId) -> None:
        """Through a relay, which must be a member that we are connected with or can dial: where a contact says that it
        is, is nobody's word but the contact's."""
        member = address_of_peer(relay)
        known = self._redialer.where(member)
        if known is None or known.hidden:
            raise PeerUnavailable(contact.member, f"its relay {member} is no member that can be dialled")
        if not self._direct(self._live_with(relay)):
            await self._dial(known)
        try:
            await self._circuits.dial(_id_of(relay), _id_of(contact.peer_id))
        except Exception as error:
            raise PeerUnavailable(contact.member, f"its relay {member} does not get through: {error}") from error
        log.debug("network.connected", peer=contact.member, relay=member)

    async def _ping(self, where: Whereabouts) -> None:
        """Close connections over which nothing at all comes back. A busy peer is not a dead one."""
        for session in self._sessions(_id_of(where.peer_id)):
            if session.heard_at < trio.current_time() - PING_SECONDS:
                with trio.move_on_after(PING_TIMEOUT) as waiting:
                    await session.ping()
                if waiting.cancelled_caught:
                    log.info("network.connection_dead", peer=where.member)
                    await session.close()

    def _sessions(self, peer: ID) -> list[yamux.Session]:
        found = (connection.muxed_conn for connection in self._swarm.connections.get(peer, ()))
        return [muxed for muxed in found if isinstance(muxed, yamux.Session)]

    def _arrived(self, connection: INetConn) -> None:
        """A connection came up, in either direction. Strangers are few, and the oldest goes first."""
        peer = connection.muxed_conn.peer_id
        address = self._address_of(peer.to_bytes())
        if address is None:
            self._close_soon(connection)
        elif self._is_member(address):
            self._swarm.protect(peer, "member")
        else:
            self._strangers[connection] = peer  # each of its connections: who closes one keeps the others
            while len(self._strangers) > MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                self._close_soon(oldest)

    def _left(self, connection: INetConn) -> None:
        self._redialer.lost()
        self._strangers.pop(connection, None)
        peer = connection.muxed_conn.peer_id
        address = self._address_of(peer.to_bytes())
        if address is not None and not self._direct(self._connections_of(address)):
            self._circuits.lost(address)

    def _close_soon(self, connection: INetConn) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(_close_quietly, connection)

    def _fault(self, where: str, error: BaseException) -> None:
        self._tally.add(faults=1)
        log.debug("network.fault", where=where, error=repr(error))

    # -- gossip ------------------------------------------------------------------------------------

    async def publish(self, topic: str, data: bytes) -> None:
        if len(data) > MAX_GOSSIP_BYTES:
            raise MessageTooLarge(len(data), MAX_GOSSIP_BYTES)
        if self._nursery is None:
            raise NotRunning
        await self._gossip.publish(topic, data)
        self._tally.add(messages_out=1, bytes_out=len(data))

    def subscribe(self, topic: str, accept: Accept) -> trio.MemoryReceiveChannel[tuple[Address, bytes]]:
        if topic in self._subscriptions:
            raise ValueError(f"already subscribed to {topic}")
        subscription = self._subscriptions[topic] = _Subscription(accept)
        if self._nursery is not None:
            self._gossip.subscribe(topic)
        return subscription.receive

    def admit(self, giver: bytes, message: rpc_pb2.Message) -> bool:
        """Before any signature: so nothing is charged to the publisher, whose name may be borrowed."""
        now = trio.current_time()
        if self._forwarded.take(giver, 1, now) and self._is_worth_reading(message, now):
            return True
        self._tally.add(dropped=1)
        return False

    def _is_worth_reading(self, message: rpc_pb2.Message, now: float) -> bool:
        publisher = self._address_of(message.from_id)
        if publisher is None or self._muted.get(publisher, 0.0) > now:
            return False
        window = self._windows.get(publisher)
        return window is None or window.fresh(_number(message))

    def accepts(self, topic: str, message: rpc_pb2.Message) -> bool:
        """Whether a signed message may be delivered and forwarded. Never raises."""
        publisher = self._address_of(message.from_id)
        if publisher is None or len(message.data) > MAX_GOSSIP_BYTES:
            self._tally.add(rejected=1)
            return False
        if not self._is_news(publisher, message) or not self._published.take(publisher, 1, trio.current_time()):
            self._tally.add(dropped=1)
            return False
        try:
            accepted = bool(self._subscriptions[topic].accept(publisher, message.data))
        except Exception as error:
            self._fault("accept", error)
            accepted = False
        if not accepted:
            self._tally.add(rejected=1)
        return accepted

    def _is_news(self, publisher: Address, message: rpc_pb2.Message) -> bool:
        """Members only: anybody can make up publishers, and windows would be forgotten for theirs."""
        if not self._is_member(publisher):
            return True
        return self._windows.setdefault(publisher, Window()).take(_number(message))

    def deliver(self, topic: str, message: rpc_pb2.Message) -> None:
        publisher = self._address_of(message.from_id)
        subscription = self._subscriptions.get(topic)
        if publisher is None or subscription is None:
            return
        try:
            subscription.send.send_nowait((publisher, message.data))
            self._tally.add(messages_in=1, bytes_in=len(message.data))
        except (trio.WouldBlock, trio.BrokenResourceError):
            self._tally.add(dropped=1)

    # -- requests ----------------------------------------------------------------------------------

    def serve(self, protocol: str, handler: Handler, *, max_request: int) -> None:
        self._handlers[protocol] = (handler, max_request)
        if self._nursery is not None:
            self._host.set_stream_handler(TProtocol(protocol), self._stream_handler(protocol))

    async def request(self, peer: Address, protocol: str, data: bytes, *, max_response: int, timeout: float) -> bytes:
        if self._nursery is None:
            raise NotRunning
        self._tally.add(requests_out=1)
        with trio.move_on_after(timeout):
            status, body = await self._exchange(peer, protocol, data, max_response)
            if status != wire.OK:
                raise RequestRefused(peer, wire.REASONS.get(status, "it could not answer"))
            self._tally.add(bytes_out=len(data), bytes_in=len(body))
            return body
        raise RequestTimedOut(peer, timeout)

    async def _exchange(self, peer: Address, protocol: str, data: bytes, limit: int) -> tuple[int, bytes]:
        kept, given_up = self._kept.take(peer, protocol, trio.current_time())
        for each in given_up:
            await _finish(each.stream, clean=True)
        try:
            if kept is not None:
                try:
                    return await self._ask_on(kept, peer, protocol, data, limit)
                except (wire.Ended, MuxedStreamError):
                    log.debug("network.kept_stream_gone", peer=peer)  # nothing of an answer had come
            opened = _Kept(await self._open_stream(peer, protocol))
            return await self._ask_on(opened, peer, protocol, data, limit)
        except wire.WireError as error:
            if error.announced >= 0:
                raise PeerMisbehaved(peer, str(error)) from error
            raise PeerUnavailable(peer, str(error)) from error
        except MuxedStreamError as error:
            raise PeerUnavailable(peer, "the stream was cut") from error

    async def _ask_on(self, on: "_Kept", peer: Address, protocol: str, data: bytes, limit: int) -> tuple[int, bytes]:
        """One request on an open stream, which is kept if all of it was taken, and answered whole."""
        clean = kept = False
        try:
            await on.muxed.widen(min(limit + wire.RESPONSE_HEADER, MAX_WINDOW))
            answer, taken = await _converse(on.muxed, data, limit)
            clean, kept = True, taken and answer[0] == wire.OK
            return answer
        finally:
            if kept and not on.closed and self._is_best(on.stream):
                for each in self._kept.put(peer, protocol, on, trio.current_time()):
                    await _finish(each.stream, clean=True)
            else:
                await _finish(on.stream, clean)

    async def _open_stream(self, peer: Address, protocol: str) -> INetStream:
        peer_id = await self._reach(peer)
        try:
            return await self._host.new_stream(peer_id, [TProtocol(protocol)])
        except Exception as error:
            raise PeerUnavailable(peer, f"it does not serve {protocol}, or went away") from error

    async def _reach(self, peer: Address) -> ID:
        contact = self._redialer.where(peer)
        if contact is not None:
            if not self._open_connections(_id_of(contact.peer_id)):
                await self._dial(contact)
            return _id_of(contact.peer_id)
        for known in self._swarm.connections:
            if self._address_of(known.to_bytes()) == peer and self._open_connections(known):
                return known
        raise PeerUnavailable(peer, "it is not connected, and nobody has told us where it is")

    def _stream_handler(self, protocol: str) -> "_StreamHandler":
        return _StreamHandler(self, protocol)

    async def answer(self, protocol: str, stream: INetStream) -> None:
        """Serve one incoming stream. Every error ends here; the guard around us resets the stream."""
        asker = self._address_of(stream.muxed_conn.peer_id.to_bytes())
        if asker is None:
            await stream.reset()
            return
        muxed, patience = yamux.stream_below(stream), READ_SECONDS
        while await self._answer_one(asker, *self._handlers[protocol], muxed, patience):
            patience = KEEP_SECONDS
        await stream.close()

    async def _answer_one(
        self, asker: Address, handler: Handler, max_request: int, stream: yamux.Stream, patience: float
    ) -> bool:
        """Whether another request may come on this stream."""
        stranger = not self._is_member(asker)
        if stranger and not self._stranger_may_ask(asker):
            with trio.fail_after(SERVE_SECONDS):
                await wire.write_response(stream, wire.BUSY, b"")
            return False
        try:
            with trio.fail_after(patience):
                request, keep = await wire.read_request(stream, max_request)
        except wire.Ended:
            return False
        except trio.TooSlowError:
            if patience == KEEP_SECONDS:
                return False  # nobody asked again
            raise
        except wire.WireError as error:
            if error.announced < 0:
                raise
            with trio.fail_after(SERVE_SECONDS):
                await wire.write_response(stream, wire.TOO_LARGE, b"")
            return False
        self._tally.add(requests_in=1, bytes_in=len(request))
        with trio.fail_after(SERVE_SECONDS):
            async with self._serving:
                answer = await handler(asker, request)
            await self._send(stream, stranger, answer if isinstance(answer, Answer) else Answer(answer, _unheard))
        return keep and not stranger  # who has no contact asks little, and each time anew

    async def _send(self, stream: yamux.Stream, stranger: bool, answer: Answer) -> None:
        delivered = False
        try:
            if stranger:
                self._stranger_bytes.charge(len(answer.body))
            self._tally.add(bytes_out=len(answer.body))
            await wire.write_response(stream, wire.OK, answer.body)
            delivered = True
        finally:
            answer.sent(delivered)

    def _stranger_may_ask(self, asker: Address) -> bool:
        now = trio.current_time()
        return self._stranger_requests.take(asker, 1, now) and self._stranger_bytes.take(1, now)


def _number(message: rpc_pb2.Message) -> int:
    return int.from_bytes(message.seqno[:8])


class _Listener:
    """A network in the form that gossip asks."""

    def __init__(self, network: Libp2pNetwork) -> None:
        self.admit = network.admit
        self.accepts = network.accepts
        self.deliver = network.deliver
        self.fault = network._fault
        self._network = network

    def is_member(self, peer: bytes) -> bool:
        return self._network._is_members(peer)


class _StreamHandler:
    """A protocol's stream handler in the form that libp2p calls."""

    def __init__(self, network: Libp2pNetwork, protocol: str) -> None:
        self._network = network
        self._protocol = protocol

    async def __call__(self, stream: INetStream) -> None:
        await self._network.answer(self._protocol, stream)


class _Arrivals(INotifee):
    """Tells the network of connections that come and go."""

    def __init__(self, network: Libp2pNetwork) -> None:
        self._network = network

    async def connected(self, network: INetwork, conn: INetConn) -> None:
        self._network._arrived(conn)
        self._network._gossip.arrived(conn.muxed_conn.peer_id.to_bytes())

    async def disconnected(self, network: INetwork, conn: INetConn) -> None:
        self._network._left(conn)
        self._network._gossip.left(conn.muxed_conn.peer_id.to_bytes())

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


class _Kept:
    """A stream of ours, and what is below the library's wrapper."""

    def __init__(self, stream: INetStream) -> None:
        self.stream = stream
        self.muxed = yamux.stream_below(stream)

    @property
    def closed(self) -> bool:
        return self.muxed.recv_closed or self.muxed.send_closed


@lru_cache(maxsize=4 * READ)
def _id_of(peer_id: PeerId) -> ID:
    return ID.from_base58(peer_id)


async def _converse(stream: yamux.Stream, data: bytes, limit: int) -> tuple[tuple[int, bytes], bool]:
    """Send and receive at once: a peer may answer, and stop reading, before it has read all of the request. The answer,
    and whether all of the request was sent before it."""
    sent = False

    async def send() -> None:
        nonlocal sent
        try:
            await wire.write_request(stream, data, keep=True)
            sent = True
        except Exception as error:  # the answer, or its absence, says more
            log.debug("network.request_cut", error=repr(error))

    if len(data) <= SENT_AT_ONCE:
        await send()
        return await wire.read_response(stream, limit), sent
    failure: Exception | None = None
    answer = (wire.FAILED, b"")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        try:
            answer = await wire.read_response(stream, limit)
        except (wire.WireError, MuxedStreamError) as error:
            failure = error
        taken = sent
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer, taken


async def _finish(stream: INetStream, clean: bool) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
        try:
            await (stream.close() if clean else stream.reset())
        except Exception as error:
            log.debug("network.stream_close_failed", error=repr(error))


async def _close_quietly(connection: INetConn) -> None:
    try:
        await connection.close()
    except Exception as error:
        log.debug("network.close_failed", error=repr(error))


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
