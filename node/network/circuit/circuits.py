"""A node's part in circuits: it may be a relay, it may be called through one, and it may call through one.

Knows what is reserved where; leaves to others when to reserve, when to offer and whom to dial.
"""

from collections.abc import Callable

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from node.network.circuit import ends, wire
from node.network.circuit.punching import Punching
from node.network.circuit.relay import Relay, reset
from node.network.circuit.rules import RelayLimits, RelayRules
from node.network.hardening import HardSwarm
from node.network.yamux import YamuxSession, stream_below
from protocol.identity import Address

log = structlog.get_logger(__name__)

# For the relay's answer, the other end's, and a handshake through both: three round trips that may each cross the world
# twice.
UPGRADE_SECONDS = 15.0


class Circuits:
    """is_member: whom to serve as a relay; address_of: the node behind a raw peer id; contacts: where this node can be
    dialled without a relay. `held`: relays that pass calls on to this node, and until when on trio's clock."""

    def __init__(
        self,
        limits: RelayLimits,
        is_member: Callable[[Address], bool],
        address_of: Callable[[bytes], Address | None],
        contacts: Callable[[], tuple[str, ...]],
        punching: Punching,
    ) -> None:
        self._punching = punching
        self.rules = RelayRules(limits, is_member)
        self.held: dict[Address, float] = {}
        self._address_of = address_of
        self._relay = Relay(self.rules, address_of, self._open_stop, contacts)

    def attach(self, host: BasicHost, swarm: HardSwarm) -> None:
        """Be part of a host, before it runs."""
        self._host, self._swarm = host, swarm
        host.set_stream_handler(TProtocol(wire.HOP), self._relay.answer)
        host.set_stream_handler(TProtocol(wire.STOP), self._called)
        self._punching.attach(host, swarm)

    def relays(self) -> list[Address]:
        """Where this node can be called now."""
        now = trio.current_time()
        return [relay for relay, until in self.held.items() if until > now]

    async def reserve(self, relay: Address, relay_id: ID) -> float:
        """Seconds for which a connected relay will pass calls on. Raises Refused, and the library's errors."""
        with trio.fail_after(UPGRADE_SECONDS):
            stream = await self._host.new_stream(relay_id, [TProtocol(wire.HOP)])
            try:
                seconds = await ends.reserve(stream)
            except BaseException:
                await reset(stream_below(stream))
                raise
        self.held[relay] = trio.current_time() + seconds
        return seconds

    async def dial(self, relay_id: ID, target: ID) -> None:
        """Be connected with `target` through a relay. Raises Refused, and the library's errors."""
        with trio.fail_after(UPGRADE_SECONDS):
            stream = await self._host.new_stream(relay_id, [TProtocol(wire.HOP)])
            try:
                raw = await ends.call(stream, target)
                await self._swarm.upgrade_outbound_raw_conn(raw, target)
            except BaseException:
                await reset(stream_below(stream))
                raise

    def lost(self, peer: Address) -> None:
        """The last connection with a peer is gone, and with it what either had reserved."""
        self.rules.forget(peer)
        self.held.pop(peer, None)

    async def _open_stop(self, target: ID) -> INetStream:
        direct = [each for each in self._swarm.get_connections(target) if ends.is_direct(each) and not each.is_closed]
        if not direct:
            # A relay dials nobody on others' behalf: a caller could have it knock anywhere.
            raise ends.RelayRefused("whom it calls is not connected")
        return await self._host.new_stream(target, [TProtocol(wire.STOP)])

    async def _called(self, stream: INetStream) -> None:
        relay = self._address_of(stream.muxed_conn.peer_id.to_bytes())
        # Nobody else may bring calls: a stranger would choose for us whose bytes we take, and relays behind relays
        # would cost each of them.
        if relay not in self.relays() or not ends.is_direct(stream):
            await ends.refuse_call(stream)
            return
        claimed, raw = await ends.be_called(stream)
        muxed = await self._swarm.upgrade_inbound_raw_conn(raw, raw.get_transport_addresses()[0])
        # The handshake inside proves who calls; a relay that says otherwise lies, or was lied to.
        if muxed.peer_id != claimed or not isinstance(muxed, YamuxSession):
            log.info("relay.lied", peer=relay)
            await muxed.close()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._punching.while_relayed, muxed)
            await muxed.event_closed.wait()  # the stream below lives as long, and counts as one of the relay's
            nursery.cancel_scope.cancel()


def circuit_contact(relay_address: str, relay: str, own: str, longest: int) -> str:
    """Where a node behind a relay is dialled; without the relay's own address where that makes it too long."""
    tail = f"/p2p/{relay}/p2p-circuit/p2p/{own}"
    whole = str(Multiaddr(relay_address)) + tail
    return whole if len(whole) <= longest else tail
