"""What every `Network` promises, run over the real one and over its double."""

import pytest
import trio

from node.network.errors import MessageTooLarge, NotRunning, PeerMisbehaved, PeerUnavailable, RequestRefused
from node.network.interface import MAX_GOSSIP_BYTES, Network
from protocol.identity import Address, NodeKey
from tests.node.networks import know


async def _double(asker: Address, request: bytes) -> bytes:
    return request * 2


async def _fail(asker: Address, request: bytes) -> bytes:
    raise RuntimeError("a bug in a handler")


async def _pair(swarm) -> tuple[Network, Network]:
    one, two = swarm.make(), swarm.make()
    two.serve("/double/1", _double, max_request=100)
    two.serve("/fail/1", _fail, max_request=100)
    await swarm.start(one, two)
    await swarm.introduce(one, two)
    return one, two


async def test_a_request_is_answered_and_the_asker_is_authenticated(swarm) -> None:
    one, two = await _pair(swarm)
    askers = []

    async def handler(asker: Address, request: bytes) -> bytes:
        askers.append(asker)
        return request[::-1]

    two.serve("/reverse/1", handler, max_request=100)
    assert await one.request(two.address, "/reverse/1", b"abc", max_response=10, timeout=10) == b"cba"
    assert askers == [one.address]


async def test_a_failing_handler_costs_that_request_alone(swarm) -> None:
    one, two = await _pair(swarm)
    with pytest.raises(PeerUnavailable):
        await one.request(two.address, "/fail/1", b"x", max_response=10, timeout=10)
    assert await one.request(two.address, "/double/1", b"x", max_response=10, timeout=10) == b"xx"
    assert two.stats().faults == 1


async def test_an_oversize_request_is_refused_and_an_oversize_response_blamed(swarm) -> None:
    one, two = await _pair(swarm)
    for size in (101, 1_000_000):
        with pytest.raises(RequestRefused):
            await one.request(two.address, "/double/1", bytes(size), max_response=10, timeout=10)
    with pytest.raises(PeerMisbehaved):
        await one.request(two.address, "/double/1", bytes(100), max_response=199, timeout=10)
    assert len(await one.request(two.address, "/double/1", bytes(100), max_response=200, timeout=10)) == 200


async def test_a_request_that_nobody_serves_or_answers_in_time_fails(swarm) -> None:
    one, two = await _pair(swarm)

    async def never(asker: Address, request: bytes) -> bytes:
        await trio.sleep_forever()
        return b""

    two.serve("/never/1", never, max_request=10)
    with pytest.raises(PeerUnavailable):
        await one.request(two.address, "/unknown/1", b"", max_response=10, timeout=10)
    with pytest.raises(PeerUnavailable):
        await one.request(two.address, "/never/1", b"", max_response=10, timeout=0.2)
    with pytest.raises(PeerUnavailable):
        await one.request(NodeKey.generate().address, "/double/1", b"", max_response=10, timeout=10)


async def test_gossip_reaches_others_through_a_third_and_names_its_publisher(swarm) -> None:
    left, middle, right = (swarm.make() for _ in range(3))
    received = [each.subscribe("news", lambda publisher, data: True) for each in (left, middle, right)]
    await swarm.start(left, middle, right)
    await swarm.introduce(left, middle)
    contacts = {each.address: each.contacts()[0] for each in (left, middle, right)}
    know(middle, contacts)
    await swarm.until(lambda: right.address in middle.connected())
    await swarm.gossip_settles(left, received[2], "news")
    await left.publish("news", b"hello")
    with trio.fail_after(60):
        assert await received[2].receive() == (left.address, b"hello")
    assert right.address not in left.connected()
    with pytest.raises(trio.WouldBlock):
        received[0].receive_nowait()


async def test_gossip_that_a_subscriber_rejects_goes_no_further_and_its_errors_end_nothing(swarm) -> None:
    one, two = await _pair(swarm)

    def accept(publisher: Address, data: bytes) -> bool:
        if data == b"crash":
            raise RuntimeError("a bug in a check")
        return data != b"bad"

    received = two.subscribe("news", accept)
    await swarm.gossip_settles(one, received, "news")
    for data in (b"crash", b"bad", b"good"):
        await one.publish("news", data)
    with trio.fail_after(60):
        assert await received.receive() == (one.address, b"good")
    assert two.stats().rejected == 2


async def test_a_muted_member_is_not_heard_for_a_while_and_is_answered_all_the_same(swarm) -> None:
    one, two = await _pair(swarm)
    heard = two.subscribe("news", lambda publisher, data: True)
    await swarm.gossip_settles(one, heard, "news")
    two.mute(one.address, 0.5)
    await one.publish("news", b"unheard")
    assert await one.request(two.address, "/double/1", b"x", max_response=10, timeout=10) == b"xx"
    await trio.sleep(0.6)
    await one.publish("news", b"heard")
    with trio.fail_after(60):
        assert (await heard.receive())[1] == b"heard"


async def test_limits_of_our_own_are_errors_of_our_own(swarm) -> None:
    one, _ = await _pair(swarm)
    with pytest.raises(MessageTooLarge):
        await one.publish("news", bytes(MAX_GOSSIP_BYTES + 1))
    stopped = swarm.make()
    with pytest.raises(NotRunning):
        await stopped.publish("news", b"")
    with pytest.raises(NotRunning):
        await stopped.request(one.address, "/double/1", b"", max_response=1, timeout=1)
    assert stopped.contacts() == ()


async def test_a_contact_whose_peer_id_belongs_to_another_address_is_ignored(swarm) -> None:
    one, two = swarm.make(), swarm.make()
    await swarm.start(one, two)
    know(one, {NodeKey.generate().address: two.contacts()[0], two.address: "/ip4/127.0.0.1/tcp/1"})
    await trio.sleep(1.2)
    assert one.connected() == frozenset()


async def test_a_member_whose_new_contact_cannot_be_read_stays_a_member_and_connected(swarm) -> None:
    one, two = await _pair(swarm)
    know(two, {})  # only `one` would dial
    one.set_contact(two.address, "nowhere")
    assert one.connected() == {two.address}
    assert await one.request(two.address, "/double/1", b"x", max_response=10, timeout=10) == b"xx"
    know(one, {two.address: "nowhere"})
    assert one.connected() == {two.address}
