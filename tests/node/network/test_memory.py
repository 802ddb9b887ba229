"""The switches of the in-memory network."""

import pytest
import trio
import trio.testing

from node.network.errors import PeerUnavailable
from protocol.identity import Address, NodeKey
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.node.networks import know


async def _echo(asker: Address, request: bytes) -> bytes:
    return request


async def _swarm(hub: MemoryHub, nursery: trio.Nursery, count: int) -> list[MemoryNetwork]:
    networks = [MemoryNetwork(NodeKey.generate(), hub) for _ in range(count)]
    for network in networks:
        network.serve("/echo/1", _echo, max_request=10)
        await nursery.start(lambda task_status, each=network: each.run(task_status=task_status))
    for network in networks:
        know(network, {each.address: each.contacts()[0] for each in networks})
    return networks


async def test_a_delay_passes_on_the_mock_clock(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> None:
    one, two = await _swarm(MemoryHub(delay=60), nursery, 2)
    received = two.subscribe("news", lambda publisher, data: True)
    start = trio.current_time()
    await one.request(two.address, "/echo/1", b"x", max_response=10, timeout=1000)
    assert trio.current_time() - start == 120
    await one.publish("news", b"x")
    await received.receive()
    assert trio.current_time() - start == 180


async def test_a_partition_cuts_and_heals(nursery: trio.Nursery) -> None:
    hub = MemoryHub()
    one, two, three = await _swarm(hub, nursery, 3)
    hub.partition([one.address, two.address], [three.address])
    assert one.connected() == {two.address}
    with pytest.raises(PeerUnavailable):
        await one.request(three.address, "/echo/1", b"", max_response=1, timeout=1)
    hub.isolate(two.address)
    assert one.connected() == frozenset()
    hub.heal()
    assert one.connected() == {two.address, three.address}


async def test_lost_gossip_is_lost_the_same_way_every_time(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    arrived = []
    for _ in range(2):
        one, two = await _swarm(MemoryHub(drop=0.5, seed=7), nursery, 2)
        received = two.subscribe("news", lambda publisher, data: True)
        for number in range(50):
            await one.publish("news", bytes([number]))
        await trio.sleep(1)
        arrived.append([])
        while received.statistics().current_buffer_used:
            arrived[-1].append((await received.receive())[1])
    assert arrived[0] == arrived[1]
    assert 10 < len(arrived[0]) < 40


async def test_a_stopped_node_is_gone(nursery: trio.Nursery) -> None:
    hub = MemoryHub()
    (one,) = await _swarm(hub, nursery, 1)
    async with trio.open_nursery() as second:
        two = MemoryNetwork(NodeKey.generate(), hub)
        await second.start(lambda task_status: two.run(task_status=task_status))
        know(one, {two.address: two.contacts()[0]})
        assert one.connected() == {two.address}
        second.cancel_scope.cancel()
    assert one.connected() == frozenset()
