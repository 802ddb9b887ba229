"""Doing without the relay: on loopback, where every port is open, and what a member may make another dial."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import trio
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import StreamFailure
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch
from libp2p.stream_muxer.exceptions import MuxedStreamError
from multiaddr import Multiaddr

from node.network import yamux
from node.network.circuit import punching, wire
from node.network.circuit.punching import DCUTR, TRIES, PunchWaits, chosen
from node.network.host import Libp2pNetwork
from tests.node.networks import Swarm, know


@pytest.fixture
async def real() -> AsyncIterator[Swarm]:
    """Networks that try at once."""
    waits = PunchWaits(first=0.1, accept=0.1, upgrade=0.5)
    async with trio.open_nursery() as nursery:
        yield Swarm(lambda key: Libp2pNetwork(key, "/ip4/127.0.0.1/tcp/0", punch_waits=waits), nursery)
        nursery.cancel_scope.cancel()


async def _carried(real, seen_at: tuple[str, str]) -> tuple[Libp2pNetwork, Libp2pNetwork]:
    """Two that a third connects, of whom the first calls; seen_at: where each thinks that it is seen."""
    relay, one, two = real.make(), real.make(), real.make()
    await real.start(relay, one, two)
    know(relay, {one.address: one.contacts()[0], two.address: two.contacts()[0]})
    for each, host in zip((one, two), seen_at, strict=True):
        know(each, {relay.address: relay.contacts()[0]})
        each.told_host(host)
    await real.until(lambda: len(relay.connected()) == 2 and one.connected() and two.connected())
    relay.offer_relay(True)
    await two.reserve(relay.address)
    through = next(each for each in two.contacts() if "circuit" in each)
    back = f"/p2p/{relay.peer_id}/p2p-circuit/p2p/{one.peer_id}"
    know(two, {relay.address: relay.contacts()[0], one.address: back}, {relay.address})
    know(one, {relay.address: relay.contacts()[0], two.address: through}, {relay.address})
    with pytest.raises(Exception):  # noqa: B017 - nobody serves that; the circuit is what it is about
        await one.request(two.address, "/nothing/1", b"", max_response=1, timeout=10)
    return one, two


async def test_two_that_a_relay_connects_meet_directly_where_their_routers_let_them(real) -> None:
    one, two = await _carried(real, ("127.0.0.1", "127.0.0.1"))
    await real.until(lambda: bool(one.punched() | two.punched()) and not one.relayed() | two.relayed())
    assert two.address in one.connected()
    assert not one.unpunched() | two.unpunched()


async def test_only_members_on_a_circuit_are_answered(real) -> None:
    one, two = real.make(), real.make()
    await real.start(one, two)
    await real.introduce(one, two)
    for each in (one, two):
        each.told_host("127.0.0.1")
    with pytest.raises((wire.Malformed, MuxedStreamError, StreamFailure)), trio.fail_after(60):
        stream = await one._host.new_stream(ID.from_base58(two.peer_id), [TProtocol(DCUTR)])
        below = yamux.stream_below(stream)
        here = Multiaddr("/ip4/127.0.0.1/tcp/4001").to_bytes()
        await wire.write(below, HolePunch(type=HolePunch.CONNECT, ObsAddrs=[here]))
        await wire.read(below, HolePunch)


@pytest.mark.parametrize("careless", [0, 1])
async def test_where_nobody_meets_the_relay_goes_on_and_few_dials_were_spent_on_it(
    real, monkeypatch, careless: int
) -> None:
    dialled: list[str] = []

    async def count(source: tuple[str, int], host: str, port: int) -> trio.SocketStream:
        dialled.append(host)
        raise OSError("nobody")

    monkeypatch.setattr(punching.sockets, "connect_from", count)
    one, two = await _carried(real, ("127.0.0.77", "127.0.0.78"))
    (one, two)[careless]._punching._tries = SimpleNamespace(take=lambda *_: True)
    await real.until(lambda: one.unpunched() == {two.address} and two.unpunched() == {one.address})
    for _ in range(3):
        await two._punching._punch(ID.from_base58(one.peer_id))
    assert 1 <= dialled.count(("127.0.0.77", "127.0.0.78")[careless]) <= TRIES, "the other one counts"
    assert one.relayed() == {two.address} and not one.punched()


async def test_what_is_no_invitation_ends_the_try(real) -> None:
    one, two = await _carried(real, ("127.0.0.77", "127.0.0.78"))
    stream = await two._host.new_stream(ID.from_base58(one.peer_id), [TProtocol(DCUTR)])
    below = yamux.stream_below(stream)
    with pytest.raises((wire.Malformed, MuxedStreamError)), trio.fail_after(60):
        await wire.write(below, HolePunch(type=HolePunch.SYNC))
        await wire.read(below, HolePunch)
    assert one.relayed() == {two.address}


@pytest.mark.parametrize(
    ("told", "private", "found"),
    [
        (["/ip4/8.8.8.8/tcp/4001", "/ip4/1.1.1.1/tcp/4001"], False, ("8.8.8.8", 4001)),
        (["/ip6/2a00::1/tcp/4001", "/ip4/8.8.8.8/tcp/4001"], False, ("8.8.8.8", 4001)),
        (["/ip4/192.168.1.1/tcp/4001"], False, None),
        (["/ip4/192.168.1.1/tcp/4001"], True, ("192.168.1.1", 4001)),
        (["/ip4/8.8.8.8/tcp/22", "/ip4/8.8.8.8/udp/4001", "/dns4/a.example/tcp/4001"], True, None),
        (["/ip4/224.0.0.1/tcp/4001", "/ip4/0.0.0.0/tcp/4001"], True, None),
        (["/ip4/8.8.8.8/udp/1"] * 8 + ["/ip4/8.8.8.8/tcp/4001"], True, None),
    ],
)
def test_of_what_a_peer_tells_one_address_is_dialled(
    told: list[str], private: bool, found: tuple[str, int] | None
) -> None:
    raw = [b"nonsense", *(Multiaddr(each).to_bytes() for each in told)][-9:]
    assert chosen(raw, lambda host: ":" not in host, private=private) == found
