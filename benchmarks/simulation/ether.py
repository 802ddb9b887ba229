"""The network between the simulated nodes: gossip over the mesh, requests between full ones, and what that costs.

A `Port` is what a board, a membership and a blob exchange see of it: `node.network.interface.Network`, as far as they
need it.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Set

import numpy as np
import trio

from benchmarks.simulation import EPOCH, TICK
from benchmarks.simulation.scenario import Scenario
from node.network.contacts import Multiaddrs
from node.network.errors import PeerUnavailable, RequestTimedOut
from node.network.gossip.digests import DIGEST_PEERS
from node.network.gossip.messages import TOLD_TICKS
from node.network.gossip.trees import TICK as TICK_SECONDS
from protocol.identity import Address

Accept = Callable[[Address, bytes], bool]
Handler = Callable[[Address, bytes], Awaitable[bytes]]
FULL_PEERS = 8
"""Full nodes that a full node is connected with, and asks for what it missed."""
TOLD_SECONDS = TOLD_TICKS * TICK_SECONDS
"""Of messages that a node names each second to DIGEST_PEERS others."""
SAMPLED = 8
"""Of so many messages the delays of one are kept."""
BUSIEST = 0.95
"""Share of a core that messages may take; what is beyond is lost."""


# gossip over a tree in a graph of bounded degree: when a message reaches whom
#
# A node knows DEGREE neighbours or so, never above MOST, and looks for more below LEAST. Of the links between them a
# tree is what pushes, as the product's rules leave it (`gossip.py` runs those): here the shortest paths from some node.
# Times are paths over the tree, plus what each hop computes.

LEAST, DEGREE, MOST = 4, 6, 9
"""Links that are made at first, before all that bring the same twice are pruned."""
SPREAD = 0.5
"""Of the logarithm of a link's delay."""


class Mesh:
    """size: places for nodes; delay: seconds of a hop, the median."""

    def __init__(self, size: int, delay: float, seed: int) -> None:
        self.online = np.zeros(size, bool)
        self.island = np.zeros(size, int)
        self.slow = np.zeros(size)
        """Seconds that a node's own line adds to each of its links."""
        self.hop_seconds = 0.0
        """What a node computes before it hands a message on."""
        self._delay = delay
        self._random = random.Random(seed)
        self._peers: list[dict[int, float]] = [{} for _ in range(size)]
        self._times: dict[int, np.ndarray] = {}
        self._tree: list[set[int]] = [set() for _ in range(size)]
        self._table: tuple[np.ndarray, np.ndarray] | None = None
        self._audiences: dict[int, np.ndarray] = {}

    def repair(self) -> None:
        """Forget who is gone, find new peers for who has few; what was computed is computed anew."""
        for node, peers in enumerate(self._peers):
            if not self.online[node]:
                for other in list(peers):
                    self._part(node, other)
        live = np.flatnonzero(self.online).tolist()
        for node in live:
            if len(self._reached(node)) < LEAST:
                self._graft(node, live)
        self._times.clear()
        self._audiences.clear()
        self._tree = self._spanning(live)
        self._table = self._table_of(self._tree)

    def _spanning(self, live: list[int]) -> list[set[int]]:
        """The links of a tree on each island: shortest paths from one of its nodes."""
        graph = self._table_of([set(peers) for peers in self._peers])
        tree: list[set[int]] = [set() for _ in self._peers]
        for island in {int(self.island[node]) for node in live}:
            root = self._random.choice([node for node in live if self.island[node] == island])
            times, parents = self._paths(root, *graph)
            self._audiences[island] = np.isfinite(times)
            for node in np.flatnonzero(np.isfinite(times)).tolist():
                if node != root:
                    tree[node].add(int(parents[node]))
                    tree[int(parents[node])].add(node)
        return tree

    def degree(self, node: int) -> int:
        return len(self._tree[node])

    def times(self, end: int) -> np.ndarray:
        """Seconds from each node to this one, and from this one to each; infinite where no way leads."""
        if end not in self._times:
            assert self._table is not None
            self._times[end] = self._paths(end, *self._table)[0]
        return self._times[end]

    def audience(self, source: int) -> np.ndarray:
        """bool[nodes]: who hears this one, itself among them."""
        heard = self._audiences.get(int(self.island[source]))
        return heard if heard is not None and heard[source] else np.arange(len(self.online)) == source

    def _reached(self, node: int) -> list[int]:
        """Its peers on the same side of a partition."""
        return [other for other in self._peers[node] if self.island[other] == self.island[node]]

    def _graft(self, node: int, live: list[int]) -> None:
        for _ in range(4 * DEGREE):
            if len(self._reached(node)) >= DEGREE:
                return
            other = self._random.choice(live)
            room = len(self._peers[other]) < MOST and self.island[other] == self.island[node]
            if room and other != node and other not in self._peers[node]:
                link = self._delay * self._random.lognormvariate(0.0, SPREAD) + float(
                    self.slow[node] + self.slow[other]
                )
                self._peers[node][other] = self._peers[other][node] = link

    def _part(self, one: int, other: int) -> None:
        del self._peers[one][other]
        del self._peers[other][one]

    def _table_of(self, links: list[set[int]]) -> tuple[np.ndarray, np.ndarray]:
        """(neighbours int[nodes, most], seconds float[nodes, most]); infinite where there is no link."""
        width = max((len(peers) for peers in links), default=0) or 1
        neighbours = np.zeros((len(links), width), int)
        seconds = np.full((len(links), width), np.inf, np.float32)
        for node, peers in enumerate(links):
            reached = [other for other in peers if self.island[other] == self.island[node]]
            neighbours[node, : len(reached)] = reached
            seconds[node, : len(reached)] = [self._peers[node][other] for other in reached]
        return neighbours, seconds + self.hop_seconds

    @staticmethod
    def _paths(source: int, neighbours: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(seconds from the source, infinite where no way leads; the node before on the way)."""
        times = np.full(len(neighbours), np.inf, np.float32)
        times[source] = 0.0
        while True:
            over = times[neighbours] + seconds
            better = np.minimum(times, over.min(axis=1))
            if np.array_equal(better, times):
                return times, neighbours[np.arange(len(times)), over.argmin(axis=1)]
            times = better


# the network as a node sees it


class Port:
    """One node's end. number: its place in the mesh; host: the place of whose board it reads, if it has none."""

    def __init__(self, ether: "Ether", address: Address, number: int) -> None:
        self.address = address
        self.number = number
        self.host: int | None = None
        self.accept: Accept | None = None
        self.peers: set[Address] = set()
        self._ether = ether
        self._muted: dict[Address, float] = {}
        self._handlers: dict[str, Handler] = {}

    def connected(self) -> frozenset[Address]:
        return frozenset(peer for peer in self.peers if self._ether.reaches(self.address, peer))

    def contacts(self) -> tuple[str, ...]:
        return ()

    def set_contact(self, member: Address, told: Multiaddrs | None) -> None:
        """Who is dialled is the mesh's to say."""

    def stay_with(self, members: Set[Address]) -> None:
        """As above."""

    def failures(self) -> Mapping[Address, int]:
        return {}

    def relayed(self) -> frozenset[Address]:
        return frozenset()

    def mute(self, member: Address, seconds: float) -> None:
        self._muted[member] = trio.current_time() + seconds

    async def publish(self, topic: str, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._ether.spread(self, data)

    def subscribe(self, topic: str, accept: Accept) -> trio.MemoryReceiveChannel[tuple[Address, bytes]]:
        """What is accepted is not queued: the board does everything in `accept`."""
        self.accept = accept
        self._silent, channel = trio.open_memory_channel[tuple[Address, bytes]](0)
        return channel

    def serve(self, protocol: str, handler: Handler, *, max_request: int) -> None:
        self._handlers[protocol] = handler

    async def request(self, peer: Address, protocol: str, data: bytes, *, max_response: int, timeout: float) -> bytes:
        with trio.move_on_after(timeout):
            return await self._ether.ask(self, peer, protocol, data)
        raise RequestTimedOut(peer, timeout)

    async def answer(self, asker: Address, protocol: str, data: bytes) -> bytes:
        return await self._handlers[protocol](asker, data)

    def take(self, publisher: Address, data: bytes) -> bool:
        """A message arrives for the first time."""
        if self.accept is None or self._muted.get(publisher, 0.0) > trio.current_time():
            return False
        return self.accept(publisher, data)


class Ether:
    """Everybody's messages. places: nodes that there will ever be."""

    def __init__(self, scenario: Scenario, places: int) -> None:
        self.mesh = Mesh(places, scenario.delay, scenario.seed)
        self.costs = scenario.costs
        self._delay = scenario.delay
        self._random = random.Random(scenario.seed + 1)
        self._ports: dict[Address, Port] = {}
        self._full: list[Port] = []
        self._due: dict[int, list[tuple[Port, Address, bytes]]] = defaultdict(list)
        self._since, self._published = 0.0, 0
        self.heard = np.zeros(places)
        self.bytes_in = np.zeros(places)
        self.bytes_ihave = 0.0
        self.sent: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.lost = self.offered = self.refused = 0
        self.rate = 0.0
        self._lost = 0.0
        self.busy: list[float] = []
        self.delays: list[float] = []

    # who is there

    def join(self, port: Port, *, full: bool) -> None:
        self._ports[port.address] = port
        self.mesh.online[port.number] = True
        if full:
            self._full.append(port)
            for other in self._random.sample(self._full, min(FULL_PEERS + 1, len(self._full))):
                if other is not port:
                    port.peers.add(other.address)
                    other.peers.add(port.address)

    def leave(self, port: Port) -> None:
        self._ports.pop(port.address, None)
        self.mesh.online[port.number] = False
        if port in self._full:
            self._full.remove(port)

    def cut(self, numbers: set[int]) -> None:
        """These are an island; none of them: everybody is together again."""
        self.mesh.island[:] = 0
        self.mesh.island[list(numbers)] = 1
        self.mesh.repair()

    def reaches(self, one: Address, other: Address) -> bool:
        first, second = self._ports.get(one), self._ports.get(other)
        return bool(first and second and self.mesh.island[first.number] == self.mesh.island[second.number])

    # gossip

    def spread(self, port: Port, data: bytes) -> None:
        """A node publishes."""
        if port.address not in self._ports:
            return
        self._published += 1
        others = self.mesh.audience(port.number).astype(np.float32)
        others[port.number] = 0.0
        self.heard += others
        self.bytes_in += others * (self.costs.copies * (len(data) + self.costs.overhead))
        now, lost = trio.current_time(), self._lost
        for other in self._full:
            after = float(self.mesh.times(other.number)[port.number])
            if other is port or after == math.inf:
                continue
            if self._published % SAMPLED == 0:
                self.delays.append(after)
            self.offered += 1
            if lost and self._random.random() < lost:
                self.lost += 1
            else:
                self._due[int((now + after) / TICK) + 1].append((other, port.address, data))

    def _load(self) -> float:
        """Share of a core that the messages of the last epoch took."""
        return self.costs.idle + self.rate * self.costs.message_ms / 1000

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._maintain)
            tick = int(trio.current_time() / TICK)
            while True:
                await trio.sleep_until(tick * TICK)
                for port, publisher, data in self._due.pop(tick, ()):
                    if port.address in self._ports and not port.take(publisher, data):
                        self.refused += 1
                tick += 1

    async def _maintain(self) -> None:
        """The mesh is repaired; who computes more keeps a message for longer."""
        while True:
            now = trio.current_time()
            self.rate = self._published / max(now - self._since, 1.0) if now > self._since else 0.0
            self._since, self._published = now, 0
            live = int(self.mesh.online.sum())
            self.bytes_ihave += (
                self.rate * TOLD_SECONDS * self.costs.ihave * min(DIGEST_PEERS, max(live - 2, 0)) * EPOCH
            )
            needed = self._load()
            self.busy.append(needed)
            self._lost = max(0.0, 1 - BUSIEST / needed)
            load = min(needed, BUSIEST)
            self.mesh.hop_seconds = self.costs.message_ms / 1000 * (1 + load / (2 * (1 - load)))
            self.mesh.repair()
            await trio.sleep(EPOCH)

    # requests

    async def ask(self, asker: Port, peer: Address, protocol: str, data: bytes) -> bytes:
        await trio.sleep(self._delay)
        other = self._ports.get(peer)
        if other is None or not self.reaches(asker.address, peer):
            raise PeerUnavailable(peer, "it is not connected")
        body = await other.answer(asker.address, protocol, data)
        await trio.sleep(self._delay)
        self.asked["requests"] += 1
        self.asked["bytes"] += len(data) + len(body)
        return body
