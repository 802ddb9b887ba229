"""Swarms of two or three nodes, over either network."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Set
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import trio

from node.network.contacts import Multiaddrs
from node.network.host import Libp2pNetwork
from node.network.interface import Network
from protocol.identity import Address, NodeKey
from tests.memory_network import MemoryHub, MemoryNetwork

_TOLD = WeakKeyDictionary[Network, set[Address]]()


def know(network: Network, contacts: Mapping[Address, Multiaddrs], dialled: Set[Address] | None = None) -> None:
    """Tell a network of its members, in the place of those before; dialled: whom to stay connected with (None: all)."""
    for gone in _TOLD.get(network, set()) - contacts.keys():
        network.set_contact(gone, None)
    _TOLD[network] = set(contacts)
    network.stay_with(set(contacts) if dialled is None else dialled)
    for member, told in contacts.items():
        network.set_contact(member, told)


class Swarm:
    """Makes networks of one kind, runs them, and introduces them to each other."""

    def __init__(self, make: Callable[[NodeKey], Network], nursery: trio.Nursery) -> None:
        self._make = make
        self._nursery = nursery
        self.networks: list[Network] = []

    def make(self, key: NodeKey | None = None) -> Network:
        network = self._make(key or NodeKey.generate())
        self.networks.append(network)
        return network

    async def start(self, *networks: Network) -> None:
        for network in networks:
            await self._nursery.start(lambda task_status, each=network: each.run(task_status=task_status))

    async def introduce(self, *networks: Network) -> None:
        """Make them members of each other's contacts, and wait until all are connected."""
        contacts = {network.address: network.contacts()[0] for network in networks}
        for network in networks:
            know(network, contacts)
        await self.until(lambda: all(len(each.connected()) >= len(networks) - 1 for each in networks))

    async def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Wait for something that no event announces."""
        with trio.fail_after(seconds):
            while True:
                if condition():
                    return
                await trio.sleep(0.02)

    async def gossip_settles(self, sender: Network, receive: "trio.MemoryReceiveChannel", topic: str) -> None:
        """Wait until what `sender` publishes arrives at `receive`; subscriptions travel after connections."""
        with trio.fail_after(60):
            while True:
                await sender.publish(topic, b"settle")
                with trio.move_on_after(2.0):  # who subscribed meanwhile is told what came before, and once is enough
                    await receive.receive()
                    break
            await trio.sleep(0.3)
            while True:
                try:
                    receive.receive_nowait()
                except trio.WouldBlock:
                    return


@pytest.fixture(params=["memory", "libp2p"])
async def swarm(request: pytest.FixtureRequest) -> AsyncIterator[Swarm]:
    """The same tests run over both implementations of the contract."""
    hub = MemoryHub()

    def make(key: NodeKey) -> Network:
        if request.param == "memory":
            return MemoryNetwork(key, hub)
        return Libp2pNetwork(key, "/ip4/127.0.0.1/tcp/0")

    async with trio.open_nursery() as nursery:
        yield Swarm(make, nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def real() -> AsyncIterator[Swarm]:
    """Real networks only."""
    async with trio.open_nursery() as nursery:
        yield Swarm(lambda key: Libp2pNetwork(key, "/ip4/127.0.0.1/tcp/0"), nursery)
        nursery.cancel_scope.cancel()


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """A new folder at each step."""
    return (tmp_path / str(number) for number in range(100))
