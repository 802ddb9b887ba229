"""Links: who is connected and how, and how many strangers may have a connection.

Knows connections; leaves to `dialling` how one comes up, to `redial` when, and to others what is said over it.
"""

from collections.abc import Callable

import structlog
import trio
from libp2p.abc import INetConn, INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from node.bounded_dict import BoundedDict
from node.changes import Bell
from node.network import yamux
from node.network.circuit.circuits import Circuits
from node.network.circuit.ends import is_direct
from node.network.contacts import AddressSet
from node.network.dialling import Dialler, directly, id_of
from node.network.errors import PeerUnavailable
from node.network.hardening import FOR_BULK, HardSwarm
from node.network.redial import PING_SECONDS, Redialer
from protocol.errors import InvalidIdentity
from protocol.identity import Address, address_of_peer
from protocol.liveness import MAX_MEMBERS

log = structlog.get_logger(__name__)


# Newcomers ask for the run before they are members, and light clients for a policy; whoever floods with keys of the
# moment drives out strangers only, never a member.
MAX_STRANGERS = 64
MAX_LANES = 12
"""Connections with one peer that are for bulk alone."""
MAX_WITH_ONE = MAX_LANES + 4
"""Direct connections with one member beside the first: lanes, and such as both dialled at once."""
MAX_BESIDE = 128
"""Direct connections beside the first, with all peers together."""


class Links:
    """own: this node; listening: where it listens, empty unless it runs; private: whether members are dialled at
    addresses that are not of the internet."""

    def __init__(self, own: Address, listening: Callable[[], tuple[str, ...]], *, private: bool) -> None:
        self._dialler = Dialler(lambda member: self.redialer.where(member), self._live_of, listening, private=private)
        self.redialer = Redialer(own, self._dialler.dial, self._dialler.link, self._ping)
        self.known = KnownPeers(self.redialer.knows)
        self._strangers: dict[INetConn, ID] = {}
        self._nursery: trio.Nursery | None = None
        self.sends_bulk = Bell()
        """Rung with each piece that is sent."""

    def attach(self, host: BasicHost, swarm: HardSwarm, circuits: Circuits) -> None:
        """Be part of a host, before it runs."""
        self._host, self._swarm, self._circuits = host, swarm, circuits
        self._dialler.attach(host, swarm, circuits)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Stay connected with the members until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(self.redialer.run)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None

    @property
    def up(self) -> bool:
        return self._nursery is not None

    # -- who is connected --------------------------------------------------------------------------

    def connected(self) -> frozenset[Address]:
        if not self.up:
            return frozenset()
        live = (peer for peer in self._swarm.connections if self._live_of(peer))
        return frozenset(address for peer in live if (address := self.known.address_of(peer.to_bytes())))

    def relayed(self) -> frozenset[Address]:
        found = ((peer, self._connections_of(peer)) for peer in self.connected())
        return frozenset(peer for peer, live in found if live and not directly(live))

    def seen_at(self, peer: Address) -> str | None:
        for connection in self.direct_with(peer):
            return next((str(address) for address in connection.get_transport_addresses()), None)
        return None

    def direct_with(self, peer: Address) -> list[INetConn]:
        """The live connections with a peer that go through no relay."""
        return directly(self._connections_of(peer))

    def direct(self) -> dict[ID, list[INetConn]]:
        """All live connections that go through no relay, by peer, the oldest first: that one is for news."""
        found = ((peer, directly(self._live_of(peer))) for peer in list(self._swarm.connections)) if self.up else ()
        return {peer: live for peer, live in found if live}

    def lanes(self, peer: Address) -> int:
        """Direct connections with a peer that are for bulk alone."""
        return max(len(self.direct_with(peer)) - 1, 0)

    def spare(self) -> int:
        """How many more there may be beside the first of each peer."""
        return max(MAX_BESIDE - sum(len(live) - 1 for live in self.direct().values()), 0)

    def _connections_of(self, peer: Address) -> list[INetConn]:
        """The live ones."""
        contact = self.redialer.where(peer)
        if self._nursery is None:
            return []
        # The id that the member's contact names is at hand; a stranger's must be looked for among all that are
        # connected.
        known = [id_of(contact.peer_id)] if contact else [*self._swarm.connections]
        ids = (id for id in known if self.known.address_of(id.to_bytes()) == peer)
        return [connection for id in ids for connection in self._live_of(id)]

    def still_connected(self, peer: bytes) -> bool:
        """Whether a raw peer id has a live connection."""
        return bool(self._live_of(ID(peer)))

    def is_best(self, stream: INetStream, *, bulk: bool = False) -> bool:
        """Whether it goes directly, or nothing does; bulk: also not by the connection for news, if there are others."""
        direct = directly(self._live_of(stream.muxed_conn.peer_id))
        if bulk and len(direct) > 1:
            return stream.muxed_conn is not direct[0].muxed_conn
        return is_direct(stream) or not direct

    def _live_of(self, peer: ID) -> list[INetConn]:
        return [each for each in self._swarm.connections.get(peer, ()) if not each.is_closed]

    def _sessions(self, peer: ID) -> list[yamux.YamuxSession]:
        found = (connection.muxed_conn for connection in self._swarm.connections.get(peer, ()))
        return [muxed for muxed in found if isinstance(muxed, yamux.YamuxSession)]

    # -- dialling ----------------------------------------------------------------------------------

    async def dial_beside(self, peer: ID, place: Multiaddr) -> INetConn:
        """One more connection with a peer. Raises what the library does."""
        return await self._swarm.dial_addr(place, peer)

    async def open_stream(self, peer: Address, protocol: str, *, bulk: bool = False) -> INetStream:
        """A new stream to a peer, which is dialled if it is a member and not connected. Raises PeerUnavailable."""
        peer_id = await self._reach(peer)
        # The library's own calls do not carry our argument down to the swarm, which chooses the connection: this does.
        before = FOR_BULK.set(bulk)
        try:
            return await self._host.new_stream(peer_id, [TProtocol(protocol)])
        except Exception as error:
            raise PeerUnavailable(peer, f"it does not serve {protocol}, or went away") from error
        finally:
            FOR_BULK.reset(before)

    async def _reach(self, peer: Address) -> ID:
        contact = self.redialer.where(peer)
        if contact is not None:
            if not self._live_of(id_of(contact.peer_id)):
                await self._dialler.dial(contact)
            return id_of(contact.peer_id)
        # A stranger is never dialled: where it is, only it says, and it could name anybody's address.
        for known in self._swarm.connections:
            if self.known.address_of(known.to_bytes()) == peer and self._live_of(known):
                return known
        raise PeerUnavailable(peer, "it is not connected, and nobody has told us where it is")

    async def _ping(self, where: AddressSet) -> None:
        """Close connections over which nothing at all comes back. A busy peer is not a dead one."""
        for session in self._sessions(id_of(where.peer_id)):
            # Whatever came lately is as good a sign of life as an answer, and costs nothing.
            if session.heard_at < trio.current_time() - PING_SECONDS:
                # Long: a peer that loads a model may hold its event loop for seconds, and a connection that is cut
                # costs both of them more.
                with trio.move_on_after(20.0) as waiting:
                    await session.ping()
                if waiting.cancelled_caught:
                    log.info("network.connection_dead", peer=where.member)
                    await session.close()

    # -- connections that come and go --------------------------------------------------------------

    def arrived(self, connection: INetConn) -> None:
        """A connection came up, in either direction. Strangers are few, and the oldest goes first."""
        peer = connection.muxed_conn.peer_id
        address = self.known.address_of(peer.to_bytes())
        # A peer id of another kind of key belongs to no node: nothing it signs can count.
        if address is None:
            self._close_soon(connection)
        elif self.known.is_member(address):
            # The library closes connections at its limit by age; members' are the last to go.
            self._swarm.protect(peer, "member")
            # The first is for news. Both sides may dial lanes at one moment, so a few more than MAX_LANES pass.
            beside = len(directly(self._live_of(peer))) - 1
            if is_direct(connection) and beside and (beside >= MAX_WITH_ONE or not self.spare()):
                self._close_soon(connection)
        else:
            self._strangers[connection] = peer  # each of its connections: who closes one keeps the others
            while len(self._strangers) > MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                self._close_soon(oldest)

    def left(self, connection: INetConn) -> None:
        """A connection ended."""
        self.redialer.lost()
        self._strangers.pop(connection, None)
        peer = connection.muxed_conn.peer_id
        address = self.known.address_of(peer.to_bytes())
        # A reservation at a relay lives as long as a direct connection with it, and lanes come and go.
        if address is not None and not self.direct_with(address):
            self._circuits.lost(address)

    def sort_strangers(self) -> None:
        """Who has become a member is none of them."""
        known = [each for each, peer in self._strangers.items() if self.known.is_members(peer.to_bytes())]
        for connection in known:
            del self._strangers[connection]

    def _close_soon(self, connection: INetConn) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(close_quietly, connection)


def session_of(connection: INetConn) -> yamux.YamuxSession:
    """Of a direct connection."""
    if not isinstance(connection.muxed_conn, yamux.YamuxSession):
        raise AssertionError("the connection has another muxer than ours")
    return connection.muxed_conn


async def close_quietly(connection: INetConn) -> None:
    try:
        await connection.close()
    except Exception as error:
        log.debug("network.close_failed", error=repr(error))


class KnownPeers:
    """is_member: whether a node is one, wherever it is."""

    def __init__(self, is_member: Callable[[Address], bool]) -> None:
        self.is_member = is_member
        # Twice the members: strangers may push out each other's entries, and not soon those of members.
        self._addresses: BoundedDict[bytes, Address] = BoundedDict(2 * MAX_MEMBERS)

    def address_of(self, peer: bytes) -> Address | None:
        """The address of a raw peer id, None if it is not a node's."""
        if peer not in self._addresses:
            try:
                self._addresses[peer] = address_of_peer(ID(peer).to_base58())
            except InvalidIdentity:
                return None
        return self._addresses[peer]

    def is_members(self, peer: bytes) -> bool:
        """Whether a raw peer id is a member's."""
        address = self.address_of(peer)
        return address is not None and self.is_member(address)
