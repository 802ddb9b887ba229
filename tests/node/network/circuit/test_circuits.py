"""Two nodes that do not dial each other, and a third between them, over loopback."""

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.stream_muxer.exceptions import MuxedStreamError

from node.network import yamux
from node.network.circuit import wire
from node.network.circuit.ends import is_direct
from node.network.circuit.rules import RelayLimits, RelayStatus
from node.network.errors import PeerUnavailable, RequestRefused
from node.network.host import Libp2pNetwork
from protocol.identity import NodeKey
from tests.node.networks import know


async def _echo(asker: str, request: bytes) -> bytes:
    return request


async def _three(real, limits: RelayLimits | None = None) -> tuple[Libp2pNetwork, Libp2pNetwork, Libp2pNetwork]:
    """(a relay, two that know it and not yet each other)."""
    relay, one, two = real.make(), real.make(), real.make()
    if limits is not None:
        relay._circuits.rules.__init__(limits, relay._links.known.is_member)
    for each in (relay, one, two):
        each.serve("/echo/1", _echo, max_request=4 * 1024**2)
    await real.start(relay, one, two)
    known = {each.address: each.contacts()[0] for each in (relay, one, two)}
    know(relay, {one.address: known[one.address], two.address: known[two.address]})
    for each in (one, two):
        know(each, {relay.address: known[relay.address]})
    await real.until(lambda: len(relay.connected()) == 2 and one.connected() and two.connected())
    relay.offer_relay(True)
    return relay, one, two


def _raw(network: Libp2pNetwork) -> ID:
    return ID.from_base58(network.peer_id)


async def _hop(asker: Libp2pNetwork, relay: Libp2pNetwork, message: HopMessage) -> HopMessage:
    stream = await asker._host.new_stream(_raw(relay), [TProtocol(wire.HOP)])
    below = yamux.stream_below(stream)
    await wire.write(below, message)
    return await wire.read(below, HopMessage)


async def test_two_that_cannot_dial_each_other_ask_and_gossip_through_a_third(real) -> None:
    relay, one, two = await _three(real)
    heard = two.subscribe("news", lambda publisher, data: True)
    one.subscribe("news", lambda publisher, data: True)
    await two.reserve(relay.address)
    contact = two.contacts()[0]
    assert contact.endswith(f"/p2p/{relay.peer_id}/p2p-circuit/p2p/{two.peer_id}")
    know(one, {relay.address: relay.contacts()[0], two.address: contact})
    big = bytes(range(256)) * 8192
    answer = await one.request(two.address, "/echo/1", big, max_response=len(big), timeout=20)
    assert answer == big
    assert one.relayed() == {two.address}
    assert two.relayed() == {one.address}
    assert one.seen_at(two.address) is None
    assert one.seen_at(relay.address) is not None
    await real.gossip_settles(one, heard, "news")


async def test_a_relay_that_is_not_offered_or_does_not_know_the_asker_refuses(real) -> None:
    relay, one, two = await _three(real)
    relay.offer_relay(False)
    with pytest.raises(RequestRefused, match="RESERVATION_REFUSED"):
        await one.reserve(relay.address)
    relay.offer_relay(True)
    know(relay, {two.address: two.contacts()[0]})
    with pytest.raises(RequestRefused, match="PERMISSION_DENIED"):
        await one.reserve(relay.address)
    assert two.contacts()[0].startswith("/ip4/127.0.0.1/tcp/")


async def test_a_call_to_who_has_not_reserved_fails_and_nothing_else_does(real) -> None:
    relay, one, two = await _three(real)
    called = HopMessage(type=HopMessage.CONNECT)
    called.peer.id = _raw(two).to_bytes()
    assert (await _hop(one, relay, called)).status == RelayStatus.NO_RESERVATION
    called.peer.id = b"nobody"
    assert (await _hop(one, relay, called)).status == RelayStatus.MALFORMED_MESSAGE
    assert (await _hop(one, relay, HopMessage(type=HopMessage.STATUS))).status == RelayStatus.UNEXPECTED_MESSAGE
    assert await one.request(relay.address, "/echo/1", b"x", max_response=1, timeout=5) == b"x"


async def test_what_is_no_message_is_answered_so(real) -> None:
    relay, one, _ = await _three(real)
    stream = await one._host.new_stream(_raw(relay), [TProtocol(wire.HOP)])
    below = yamux.stream_below(stream)
    await below.write(b"\xff\xff\xff\xff\xff")
    assert (await wire.read(below, HopMessage)).status == RelayStatus.MALFORMED_MESSAGE


async def test_a_call_from_where_nothing_is_reserved_is_refused(real) -> None:
    relay, one, two = await _three(real)
    stream = await relay._host.new_stream(_raw(two), [TProtocol(wire.STOP)])
    below = yamux.stream_below(stream)
    call = StopMessage(type=StopMessage.CONNECT)
    call.peer.id = _raw(one).to_bytes()
    await wire.write(below, call)
    assert (await wire.read(below, StopMessage)).status == RelayStatus.PERMISSION_DENIED


async def test_a_relay_that_names_a_caller_who_is_another_is_hung_up_on(real) -> None:
    relay, one, two = await _three(real)
    await two.reserve(relay.address)
    relay._circuits._relay._call = _calls_as(relay, NodeKey.generate().peer_id)
    know(one, {relay.address: relay.contacts()[0], two.address: two.contacts()[0]})
    with pytest.raises(PeerUnavailable):
        await one.request(two.address, "/echo/1", b"x", max_response=1, timeout=3)
    assert one.address not in two.connected()


def _calls_as(relay: Libp2pNetwork, name: str):
    call = type(relay._circuits._relay)._call

    async def lie(target: ID, caller: ID):
        return await call(relay._circuits._relay, target, ID.from_base58(name))

    return lie


async def test_a_circuit_that_has_carried_enough_is_cut(real) -> None:
    relay, one, two = await _three(real, RelayLimits(data=500_000))
    relay.offer_relay(True)
    await two.reserve(relay.address)
    know(one, {relay.address: relay.contacts()[0], two.address: two.contacts()[0]})
    big = bytes(1_000_000)
    with pytest.raises(PeerUnavailable):
        await one.request(two.address, "/echo/1", big, max_response=len(big), timeout=10)
    await real.until(lambda: relay._circuits.rules.circuits == 0)
    assert await one.request(two.address, "/echo/1", b"x", max_response=1, timeout=10) == b"x"


async def test_a_relay_that_goes_takes_its_reservation_with_it(real) -> None:
    relay, one, two = await _three(real)
    await two.reserve(relay.address)
    await relay._swarm.close_peer(_raw(two))
    await real.until(lambda: relay.address not in two._circuits.held)
    assert relay._circuits.rules.reservations(trio.current_time()) == 0
    assert "p2p-circuit" not in two.contacts()[0]


async def test_who_can_be_dialled_is_though_a_relay_connects_both(real) -> None:
    relay, one, two = await _three(real)
    await two.reserve(relay.address)
    know(one, {relay.address: relay.contacts()[0], two.address: two.contacts()[0]})
    await one.request(two.address, "/echo/1", b"x", max_response=1, timeout=10)
    assert one.relayed() == {two.address}
    know(two, {relay.address: relay.contacts()[0], one.address: one.contacts()[0]})
    await real.until(lambda: not two.relayed() and not one.relayed())
    assert one.address in two.connected()


async def test_what_began_through_a_relay_moves_to_a_direct_connection_and_nothing_is_lost(real) -> None:
    relay, one, two = await _three(real)
    heard = two.subscribe("news", lambda publisher, data: True)
    one.subscribe("news", lambda publisher, data: True)
    await two.reserve(relay.address)
    know(one, {relay.address: relay.contacts()[0], two.address: two.contacts()[0]})
    await one.request(two.address, "/echo/1", b"x", max_response=1, timeout=10)
    await real.gossip_settles(one, heard, "news")
    assert one.relayed() == {two.address}
    know(two, {relay.address: relay.contacts()[0], one.address: one.contacts()[0]})
    lines = [(each._gossip._lines, _raw(other).to_bytes()) for each, other in ((one, two), (two, one))]
    said: list[bytes] = []
    with trio.fail_after(60):
        while not all(is_direct(lines[peer].stream) for lines, peer in lines):
            said.append(b"%d" % len(said))
            await one.publish("news", said[-1])
            await trio.sleep(0.01)
    assert sorted([(await heard.receive())[1] for _ in said]) == sorted(said)
    await one.request(two.address, "/echo/1", b"x", max_response=1, timeout=10)
    kept, _ = one._requests._kept.take(two.address, "/echo/1", trio.current_time())
    assert kept and is_direct(kept.stream)


async def test_who_is_not_a_neighbour_is_dialled_when_it_is_asked(real) -> None:
    one, two = real.make(), real.make()
    two.serve("/echo/1", _echo, max_request=10)
    await real.start(one, two)
    know(two, {one.address: one.contacts()[0]}, set())
    know(one, {two.address: two.contacts()[0]}, set())
    await trio.sleep(1.2)  # beyond the redialer's first delay
    assert not one.connected()
    assert await one.request(two.address, "/echo/1", b"x", max_response=1, timeout=10) == b"x"
    know(one, {two.address: two.contacts()[0]}, {two.address})
    assert one.connected() == {two.address}


async def test_no_relay_is_asked_through_a_relay(real) -> None:
    relay, one, two = await _three(real)
    await two.reserve(relay.address)
    know(one, {relay.address: relay.contacts()[0], two.address: two.contacts()[0]})
    await one.request(two.address, "/echo/1", b"x", max_response=1, timeout=10)
    know(two, {relay.address: relay.contacts()[0], one.address: one.contacts()[0]}, {relay.address})
    two.offer_relay(True)
    with pytest.raises((PeerUnavailable, StreamError, MuxedStreamError)):
        await one.reserve(two.address)
    assert (await _hop(one, two, HopMessage(type=HopMessage.RESERVE))).status == RelayStatus.PERMISSION_DENIED
