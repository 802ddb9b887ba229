"""Doing without a relay: both ends of a circuit dial each other at one moment, each from the port that it listens on.

The protocol is libp2p's DCUtR (/libp2p/dcutr). Who was called opens the stream; each tells where it is seen from
outside; who was called says "now" and dials half a round trip later, the other one dials when it hears that. The two
calls become one connection, in which the one that called through the relay is the client.

An address that the other end tells is a claim: of one host, dialled three times a minute at most, and only because that
very member asks for it through a circuit. Knows nothing of who reserves where.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple
from weakref import WeakSet

import structlog
import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from libp2p.stream_muxer.exceptions import MuxedStreamError
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from node.addresses import may_call
from node.bounded_dict import BoundedDict
from node.changes import seen
from node.network import sockets
from node.network.budget import Budgets
from node.network.circuit import wire
from node.network.circuit.ends import is_direct
from node.network.circuit.relay import reset
from node.network.contacts import Place, ip_of, place_of
from node.network.hardening import HardSwarm
from node.network.yamux import YamuxSession, YamuxStream, stream_below
from protocol.identity import Address

log = structlog.get_logger(__name__)

DCUTR = "/libp2p/dcutr"
TRIES = 3
"""On one stream, and in a minute with one peer."""
MAX_OBSERVED = 8
MAX_FAILED = 1024


class PunchWaits(NamedTuple):
    """Seconds."""

    first: float = 2.0
    """In which who was called may find that it can dial the caller by its contacts."""
    upgrade: float = 3.0
    """For the handshake: where two calls missed each other, one came to a listener, and both ends are servers."""
    accept: float = 0.5
    """Until a call of the other end has come in."""
    again: float = 60.0
    """Until a hole is tried again after a first failure; twice as long after each that follows."""
    longest: float = 3600.0
    answer: float = 10.0
    connect: float = 6.0
    """For one try: long enough for a system to send its first packet thrice."""


class Punching:
    """seen_at: the host by which others see this node, None while unknown; is_member: with whom it is done;
    address_of: the node behind a raw peer id; private: whether addresses that are not of the internet are dialled."""

    def __init__(
        self,
        seen_at: Callable[[], str | None],
        is_member: Callable[[Address], bool],
        address_of: Callable[[bytes], Address | None],
        *,
        private: bool,
        waits: PunchWaits | None = None,
    ) -> None:
        self._waits = waits or PunchWaits()
        self.failed: BoundedDict[Address, float] = BoundedDict(MAX_FAILED, refresh=True)
        """Members to whom no hole could be made, and since when on trio's clock."""
        self._seen_at = seen_at
        self._is_member = is_member
        self._address_of = address_of
        self._private = private
        self._tries = Budgets(TRIES / 60, TRIES)
        self._made: WeakSet[object] = WeakSet()

    def attach(self, host: BasicHost, swarm: HardSwarm) -> None:
        """Be part of a host, before it runs."""
        self._host, self._swarm = host, swarm
        host.set_stream_handler(TProtocol(DCUTR), self._asked)

    def made(self, connection: INetConn) -> bool:
        """Whether a connection goes through a hole."""
        return connection.muxed_conn in self._made

    async def while_relayed(self, circuit: YamuxSession) -> None:
        """Try, ever more seldom, as long as a circuit on which this node was called lives."""
        pause = self._waits.again
        await trio.sleep(self._waits.first)
        while not circuit.is_closed:
            if not self._direct(circuit.peer_id):
                made = await self._try(circuit.peer_id)
                pause = self._waits.again if made else min(2 * pause, self._waits.longest)
            await trio.sleep(pause)

    async def _try(self, peer: ID) -> bool:
        """Whatever goes wrong, the circuit goes on."""
        try:
            return await self._punch(peer)
        except Exception as error:  # the library's are many
            log.debug("punch.failed", peer=str(peer), error=repr(error))
            return False

    def _direct(self, peer: ID) -> bool:
        live = [each for each in self._swarm.connections.get(peer, ()) if not each.is_closed]
        return any(is_direct(each) for each in live)

    async def _accepted(self, peer: ID) -> bool:
        """Whether a call of the other end came in where this node listens, which its router may let through."""
        with trio.move_on_after(self._waits.accept):
            await seen(lambda: self._direct(peer), 0.05)  # the library has no event for it
        return self._direct(peer)

    # who was called

    async def _punch(self, peer: ID) -> bool:
        member = self._address_of(peer.to_bytes())
        if member is None or not self._is_member(member) or self._own() is None:
            return False
        try:
            stream = stream_below(await self._host.new_stream(peer, [TProtocol(DCUTR)]))
        except Exception as error:  # of another version, or gone; the library's own are many
            log.debug("punch.not_asked", peer=member, error=repr(error))
            return False
        try:
            done = await self._invite(stream, peer, member)
        except (wire.Malformed, MuxedStreamError, trio.TooSlowError) as error:
            log.debug("punch.no_answer", peer=member, error=repr(error))
            done = await self._accepted(peer)
        finally:
            await reset(stream)
        self._remember(member, done)
        return done

    async def _invite(self, stream: YamuxStream, peer: ID, member: Address) -> bool:
        for _ in range(TRIES):
            if not self._tries.take(peer, 1, trio.current_time()):
                return False
            asked_at = trio.current_time()
            with trio.fail_after(self._waits.answer):
                await wire.write(stream, self._where())
                target = self._target(await wire.read(stream, HolePunch), HolePunch.CONNECT)
                if target is None:
                    return False
                wait = min((trio.current_time() - asked_at) / 2, 2.0)  # half of a round trip that is believed
                await wire.write(stream, HolePunch(type=HolePunch.SYNC))
            await trio.sleep(wait)
            if await self._meet(target, peer, client=False) or await self._accepted(peer):
                log.info("punch.made", peer=member)
                return True
        return False

    # who had called

    async def _asked(self, stream: INetStream) -> None:
        peer, below = stream.muxed_conn.peer_id, stream_below(stream)
        member = self._address_of(peer.to_bytes())
        if member is None or not self._is_member(member) or is_direct(stream) or self._own() is None:
            await reset(below)
            return
        try:
            done = await self._follow(below, peer)
        except (wire.Malformed, MuxedStreamError, trio.TooSlowError) as error:
            log.debug("punch.ended", peer=member, error=repr(error))
            done = await self._accepted(peer)
        self._remember(member, done)
        await reset(below)

    async def _follow(self, stream: YamuxStream, peer: ID) -> bool:
        for _ in range(TRIES):
            with trio.fail_after(self._waits.connect + self._waits.answer):
                target = self._target(await wire.read(stream, HolePunch), HolePunch.CONNECT)
                if target is None or not self._tries.take(peer, 1, trio.current_time()):
                    return False
                await wire.write(stream, self._where())
                if (await wire.read(stream, HolePunch)).type != HolePunch.SYNC:
                    raise wire.Malformed("it does not say when")
            # Both ends dial, so nothing but the circuit says who is the client of what comes up.
            if await self._meet(target, peer, client=True) or await self._accepted(peer):
                return True
        return False

    # both

    def _remember(self, member: Address, done: bool) -> None:
        if done:
            self.failed.pop(member, None)
        else:
            self.failed[member] = trio.current_time()

    def _own(self) -> Place | None:
        """Where others see this node, if its router lets the port be."""
        seen = self._seen_at()
        source = self._source(seen) if seen else None
        return (seen, source[1]) if seen and source else None

    def _where(self) -> HolePunch:
        own = self._own()
        observed = [multiaddr_of(own).to_bytes()] if own else []
        return HolePunch(type=HolePunch.CONNECT, ObsAddrs=observed)

    def _target(self, told: HolePunch, kind: "HolePunch.Type.ValueType") -> Place | None:
        """The one address that is tried, of all that the other end tells."""
        if told.type != kind:
            raise wire.Malformed(f"a message of type {told.type} came")
        return chosen(told.ObsAddrs, lambda host: self._source(host) is not None, private=self._private)

    def _source(self, host: str) -> Place | None:
        """Where this node listens in the host's family."""
        found = (place_of(str(each)) for one in self._swarm.listeners.values() for each in one.get_addrs())
        return next((place for place in found if place and (":" in place[0]) == (":" in host)), None)

    async def _meet(self, target: Place, peer: ID, *, client: bool) -> bool:
        """Whether the two calls met, and it was the peer."""
        source = self._source(target[0])
        if source is None:
            return False
        with trio.move_on_after(self._waits.connect):
            try:
                stream = await sockets.connect_from(source, *target)
                with trio.fail_after(self._waits.upgrade):
                    muxed = await self._upgraded(stream, target, peer, client)
            except Exception as error:  # the system's, or one of the library's many
                log.debug("punch.missed", target=target, error=repr(error))
                return False
            if muxed.peer_id != peer:
                await muxed.close()
                return False
            self._made.add(muxed)
            return True
        return False

    async def _upgraded(self, stream: trio.SocketStream, target: Place, peer: ID, client: bool) -> IMuxedConn:
        raw = RawConnection(sockets.lean(TrioTCPStream(stream)), client)
        try:
            if client:
                return (await self._swarm.upgrade_outbound_raw_conn(raw, peer)).muxed_conn
            return await self._swarm.upgrade_inbound_raw_conn(raw, multiaddr_of(target))
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise


def chosen(told: Iterable[bytes], usable: Callable[[str], bool], *, private: bool) -> Place | None:
    """The first address of a stranger's list that may be dialled: TCP, by number, no port of the system's, and of the
    internet unless `private`. usable: whether this node could dial a host's family."""
    lowest_port = 1024
    for raw in list(told)[:MAX_OBSERVED]:
        try:
            address = str(Multiaddr(raw))
        # The library raises all three for bytes of a stranger, by which code in them it does not know.
        except (MultiaddrError, ValueError, LookupError):
            continue
        place, ip = place_of(address), ip_of(address)
        if place is None or ip is None or place[1] < lowest_port or not usable(place[0]):
            continue
        if may_call(ip, private=private):
            return place
    return None


def multiaddr_of(place: Place) -> Multiaddr:
    host, port = place
    return Multiaddr(f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{port}")
