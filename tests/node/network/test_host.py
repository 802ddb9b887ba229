"""The libp2p host against hostile peers and its own end."""

import logging
import socket
import sys
from functools import partial

import pytest
import trio
from libp2p.network.stream.exceptions import StreamError
from libp2p.peer.id import ID
from libp2p.pubsub.pb import rpc_pb2
from libp2p.transport.exceptions import OpenConnectionError
from libp2p.transport.tcp import tcp
from libp2p.utils import encode_varint_prefixed
from multiaddr import Multiaddr

from node.network import hardening, sockets, yamux
from node.network.errors import ListenFailed, PeerUnavailable, PortInUse
from node.network.gossip.gossip import MESHSUB
from node.network.hardening import HardTcp
from node.network.host import Libp2pNetwork
from node.network.interface import SentResponse
from node.network.links import MAX_LANES, MAX_WITH_ONE, session_of
from protocol.identity import Address, NodeKey
from tests.node.networks import know


async def _echo(asker: Address, request: bytes) -> bytes:
    return request


async def _pair(real) -> tuple[Libp2pNetwork, Libp2pNetwork]:
    one, two = real.make(), real.make()
    for network in (one, two):
        network.serve("/echo/1", _echo, max_request=1000)
    await real.start(one, two)
    await real.introduce(one, two)
    return one, two


async def _still_works(one: Libp2pNetwork, two: Libp2pNetwork) -> None:
    for asker, asked in ((one, two), (two, one)):
        assert await asker.request(asked.address, "/echo/1", b"x", max_response=1, timeout=10) == b"x"


def _raw(network: Libp2pNetwork) -> ID:
    return ID.from_base58(network.peer_id)


async def test_nobody_who_is_told_of_streams_does_anything_with_it(real) -> None:
    """So they are not told: it took three tasks, twice a stream, on both sides."""
    one, _ = await _pair(real)
    notifees = one._swarm.notifees
    assert len(notifees) >= 3
    for notifee in notifees:
        # Whoever looked at one would fail.
        await notifee.opened_stream(None, None)
        await notifee.closed_stream(None, None)


@pytest.mark.parametrize(
    "frame",
    [
        encode_varint_prefixed(b"\xff\xff\xff\xff not a protobuf"),
        b"\xff" * 32,
        encode_varint_prefixed(b"")[:1] + b"\x80",
        encode_varint_prefixed(
            rpc_pb2.RPC(publish=[rpc_pb2.Message(data=b"x", topicIDs=["news"], from_id=b"no id", key=b"no key",
                                                 signature=b"none", seqno=b"")]).SerializeToString()
        ),
        encode_varint_prefixed(
            rpc_pb2.RPC(
                control=rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID="news")] * 50)
            ).SerializeToString()
        ),
    ],
)  # fmt: skip
async def test_malformed_gossip_ends_neither_the_host_nor_its_other_peers(real, frame: bytes) -> None:
    one, two = await _pair(real)
    attacker = real.make()
    received = two.subscribe("news", lambda publisher, data: True)
    await real.start(attacker)
    await real.gossip_settles(one, received, "news")
    know(attacker, {two.address: two.contacts()[0]})
    await real.until(
        lambda: any(peer.open for peer in attacker._gossip.trees.peers.known.values())
    )  # it would end ours
    stream = await attacker._host.new_stream(_raw(two), [MESHSUB])
    await stream.write(frame)
    await trio.sleep(0.2)
    await _still_works(one, two)
    await one.publish("news", b"still here")
    with trio.fail_after(60):
        assert (await received.receive())[1] == b"still here"


async def test_pieces_go_by_lanes_and_news_by_the_first_connection(real) -> None:
    one, two = await _pair(real)

    async def much(asker: Address, request: bytes) -> SentResponse:
        return SentResponse(bytes(200_000), bulk=True)

    two.serve("/much/1", much, max_request=1)
    dialler, other = (one, two) if session_of(one._links.direct_with(two.address)[0]).is_initiator else (two, one)
    assert dialler.lanes(other.address) == 0
    with trio.fail_after(60):
        while dialler.lanes(other.address) < MAX_LANES:  # they open in steps
            await dialler._lanes._asked(other.address, b"")
            await trio.sleep(0.02)
    await real.until(lambda: one.lanes(two.address) == two.lanes(one.address) == MAX_LANES)
    before = [session_of(each).bulk for each in two._links.direct_with(one.address)]
    async with trio.open_nursery() as nursery:
        for _ in range(2 * MAX_LANES):
            ask = partial(one.request, two.address, "/much/1", b"", max_response=200_000, timeout=20)
            nursery.start_soon(ask)
    sent = [session_of(each).bulk for each in two._links.direct_with(one.address)]
    assert before[0] == sent[0] == 0 and all(sent[1:])
    await _still_works(one, two)
    assert one.paths()[two.address].connections == 1 + MAX_LANES or sys.platform != "linux"


async def test_a_member_gets_no_more_connections_than_it_may_have(real) -> None:
    one, two = await _pair(real)
    dialler, other = (one, two) if session_of(one._links.direct_with(two.address)[0]).is_initiator else (two, one)
    place = Multiaddr(other.contacts()[0])
    for _ in range(MAX_WITH_ONE + 4):
        await dialler._links.dial_beside(_raw(other), place)
    await real.until(lambda: other.lanes(dialler.address) < MAX_WITH_ONE)
    await _still_works(one, two)


async def test_an_error_inside_gossip_ends_one_stream_alone(real, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await _pair(real)

    def broken(*args: object) -> None:
        raise RuntimeError("a bug")

    before = two.stats().faults
    monkeypatch.setattr(two._gossip.trees, "subscribed", broken)
    one.subscribe("late", lambda publisher, data: True)
    await real.until(lambda: two.stats().faults != before)
    await _still_works(one, two)


async def test_a_request_that_stops_in_the_middle_or_lies_about_its_length_ends_nothing(real) -> None:
    one, two = await _pair(real)
    for start in (b"", b"\x00\x00", b"\x00\x00\x00\x09abc", b"\xff\xff\xff\xffabc"):
        stream = await one._host.new_stream(_raw(two), ["/echo/1"])
        if start:
            await stream.write(start)
        await stream.reset()
    await _still_works(one, two)


async def test_a_strangers_requests_are_throttled_and_a_members_are_not(real) -> None:
    stranger, node = real.make(), real.make()
    node.serve("/echo/1", _echo, max_request=10)
    await real.start(stranger, node)
    know(stranger, {node.address: node.contacts()[0]})

    async def refused() -> int:
        count = 0
        for _ in range(100):
            try:
                await stranger.request(node.address, "/echo/1", b"x", max_response=1, timeout=10)
            except PeerUnavailable:
                count += 1
        return count

    assert await refused() > 10
    know(node, {stranger.address: stranger.contacts()[0]})
    assert await refused() == 0


async def test_bytes_beyond_the_receive_buffer_close_the_connection(real, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await _pair(real)
    monkeypatch.setattr(yamux, "MAX_BUFFERED", 300_000)
    held = trio.Event()

    async def hold(asker: Address, request: bytes) -> bytes:
        await held.wait()
        return b""

    two.serve("/hold/1", hold, max_request=10)
    stream = await one._host.new_stream(_raw(two), ["/hold/1"])
    stream.muxed_stream.send_window = 10**7  # what an honest sender would never grant itself
    with trio.fail_after(60), pytest.raises(StreamError):
        for _ in range(500):
            await stream.write(bytes(60_000))
            await trio.sleep(0.01)
    held.set()
    await real.until(lambda: one.connected() and two.connected())


async def test_a_port_in_use_is_a_named_error(real) -> None:
    first = real.make()
    await real.start(first)
    listen = first.contacts()[0].partition("/p2p/")[0]
    with pytest.raises(PortInUse) as caught:
        await Libp2pNetwork(NodeKey.generate(), listen).run()
    assert listen in caught.value.what and caught.value.remedy


@pytest.mark.parametrize(
    "listen", ["", "nonsense", "/ip4/127.0.0.1", "/ip4/192.0.2.7/tcp/0", "/ip4/192.0.2.7/tcp/4001"]
)
async def test_an_address_that_is_not_ours_is_a_named_error(listen: str) -> None:
    with pytest.raises(ListenFailed), trio.fail_after(60):
        await Libp2pNetwork(NodeKey.generate(), listen).run()


async def test_one_port_is_listened_on_for_both_families_and_either_is_dialled(real) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = Libp2pNetwork(NodeKey.generate(), [f"/ip4/0.0.0.0/tcp/{port}", f"/ip6/::/tcp/{port}"])
    real.networks.append(both)
    four, six = real.make(), real.make()
    await real.start(both, four, six)
    assert [each.split("/")[1] for each in both.contacts()] == ["ip4", "ip6"]
    tail = f"tcp/{port}/p2p/{both.peer_id}"
    know(four, {both.address: ("/ip4/127.0.0.1/tcp/1/p2p/nobody", f"/ip4/127.0.0.1/{tail}")})
    know(six, {both.address: (f"/ip4/127.0.0.2/tcp/1/p2p/{both.peer_id}", f"/ip6/::1/{tail}")})
    await real.until(lambda: len(both.connected()) == 2)
    assert "/ip4/127.0.0.1/" in (both.seen_at(four.address) or "")
    assert "/ip6/::1/" in (both.seen_at(six.address) or "")


async def test_a_listener_for_ipv6_leaves_ipv4_to_others() -> None:
    (listener,) = await sockets.open_listeners("::", 0)
    async with listener:
        with pytest.raises(OSError):
            await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])


async def test_no_address_that_is_not_of_the_internet_is_dialled_where_none_shall_be(real) -> None:
    careful = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0", private=False)
    other = real.make()
    await real.start(careful, other)
    know(careful, {other.address: other.contacts()[0]})
    with pytest.raises(PeerUnavailable, match="no address that this node dials"):
        await careful.request(other.address, "/echo/1", b"", max_response=1, timeout=5)


async def test_a_stopped_network_leaves_no_tasks_and_its_peers_notice(real) -> None:
    one = real.make()
    await real.start(one)
    tasks = trio.lowlevel.current_statistics().tasks_living
    async with trio.open_nursery() as nursery:
        two = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
        await nursery.start(lambda task_status: two.run(task_status=task_status))
        know(two, {one.address: one.contacts()[0]})
        await real.until(lambda: one.connected() and two.connected())
        nursery.cancel_scope.cancel()
    await real.until(lambda: not one.connected())
    await real.until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks)
    assert two.contacts() == () and two.connected() == frozenset()


def test_the_librarys_loggers_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    hardening.quieten()
    logging.getLogger("libp2p.anything").warning("noise")
    logging.getLogger("libp2p.network.connection").warning("noise")
    assert capsys.readouterr().err == ""


async def test_a_subscription_made_while_a_stream_is_opened_still_reaches_the_peer(real, monkeypatch) -> None:
    one, two = real.make(), real.make()
    await real.start(one, two)
    open_stream = two._host.new_stream
    subscribed: list[trio.MemoryReceiveChannel] = []

    async def subscribe_meanwhile(peer: ID, protocols: list[str]) -> object:
        stream = await open_stream(peer, protocols)
        if MESHSUB in protocols and not subscribed:
            subscribed.append(two.subscribe("late", lambda publisher, data: True))
        return stream

    monkeypatch.setattr(two._host, "new_stream", subscribe_meanwhile)
    await real.introduce(one, two)
    await real.until(lambda: bool(subscribed))
    await real.gossip_settles(one, subscribed[0], "late")


async def test_nodes_of_this_program_know_each_other(real) -> None:
    one, two = await _pair(real)
    await real.until(lambda: one._gossip.trees.peers.known and two._gossip.trees.peers.known)
    await real.until(lambda: all(peer.kin for node in (one, two) for peer in node._gossip.trees.peers.known.values()))


@pytest.mark.parametrize("size", [1001, 1_000_000])
async def test_a_stream_on_which_a_request_was_refused_is_not_kept(real, size: int) -> None:
    """Its other end reads no more: the next request on it would wait for its window."""
    one, two = await _pair(real)
    with pytest.raises(PeerUnavailable):
        await one.request(two.address, "/echo/1", bytes(size), max_response=1, timeout=10)
    assert one._requests._kept.take(two.address, "/echo/1", trio.current_time()) == (None, [])
    await _still_works(one, two)
    assert one._requests._kept.take(two.address, "/echo/1", trio.current_time())[0] is not None


@pytest.mark.parametrize("host", ["ip4/127.0.0.1", "dns4/a.name", "ip6/64:ff9b::7f00:1"])
async def test_a_name_is_looked_at_after_it_is_resolved(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last look stands where the library calls: whoever asks it to has no other way."""

    async def resolve(*_: object, **__: object) -> list[Multiaddr]:
        return [Multiaddr("/ip4/127.0.0.1/tcp/9")]

    async def called(host: str, port: int) -> None:
        raise AssertionError(f"{host} was called")

    monkeypatch.setattr(tcp, "resolve_multiaddr_with_retry", resolve)
    monkeypatch.setattr(trio, "open_tcp_stream", called)
    with pytest.raises(OpenConnectionError, match="is not dialled|any resolved address"):
        await HardTcp(private=False).dial(Multiaddr(f"/{host}/tcp/9"))


async def test_what_may_be_dialled_is() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        port = listener.socket.getsockname()[1]
        raw = await HardTcp(private=True).dial(Multiaddr(f"/ip4/127.0.0.1/tcp/{port}"))
        await raw.close()
