"""The product's own rules of gossip (`node.network.gossip.trees`) in a large swarm, under a virtual clock.

    python -m benchmarks.simulation.gossip [--nodes 100 1000] [--seconds 60] [--rate 20] [--silent 0.1]
                                           [--quick] [--json]

Every node has NEIGHBOURS others, as the product dials them; links take 40 ms in the median, log-normal. In the first
stretch the trees are made. Then a share of the nodes dies at once; then a third of the living is cut off, and is back
in the stretch after that; and in the last one a share of the living hands on nobody's messages but its own, and says
all else as before: no rule is broken that a neighbour could show. Of each stretch: copies of a message, seconds until a
node has it (median, 99 of 100, the last), what never came to a node on its author's side, and what control messages
cost. Messages carry no signature here, and are not parsed.
"""

import gc
import heapq
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from libp2p.pubsub.pb import rpc_pb2

from benchmarks.command import parser_of
from node.network.gossip.trees import TICK, Trees
from node.network.packets import Cutter

NEIGHBOURS = 24
HOP, SPREAD = 0.04, 0.5
"""Seconds of a link, the median, and what its logarithm varies by."""
TOPIC = "simulation"
DRAIN = 8.0
"""Seconds for which the last messages of a third may still come."""


@lru_cache(maxsize=4096)
def _read(packet: bytes) -> rpc_pb2.RPC:
    """The same bytes go to many nodes: they are read once, and everybody keeps the one message."""
    (body,) = Cutter(2**20).cut(packet)
    return rpc_pb2.RPC.FromString(body)


class Node:
    """One of them. silent: it hands on nothing of others'."""

    def __init__(self, swarm: "Swarm", name: bytes) -> None:
        self.name = name
        self.alive, self.silent, self.side = True, False, 0
        self.links: dict[bytes, float] = {}
        self.trees = Trees(self._send, lambda: swarm.now, lambda peer: True, swarm.draw)
        self._swarm = swarm

    def _send(self, peer: bytes, packet: bytes) -> None:
        self._swarm.send(self, peer, packet)

    def take(self, giver: bytes, rpc: rpc_pb2.RPC) -> None:
        if rpc.subscriptions:
            self.trees.subscribed(giver, rpc.subscriptions)
        for message in rpc.publish:
            self._swarm.copies += 1
            if not self.trees.knows(giver, message):
                self.trees.came(giver, message)
                self._swarm.heard(message.seqno)
                self.trees.spread(message, giver)
        if rpc.HasField("control"):
            self.trees.control(giver, rpc.control)

    def tick(self) -> None:
        if self.alive:
            self.trees.tick()
            self._swarm.after(TICK * self._swarm.draw.uniform(0.8, 1.2), self.tick)


class Swarm:
    """All nodes, the clock, and what is counted since `begin`."""

    def __init__(self, size: int, seed: int) -> None:
        self.now = 0.0
        self.draw = random.Random(seed)
        self._due: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self.nodes = {name: Node(self, name) for name in (b"%039d" % number for number in range(size))}
        self.begin()
        self._connect()

    def begin(self) -> None:
        self.copies = self.control_bytes = self.packets = 0
        self.due = 0
        self.born: dict[bytes, float] = {}
        self.delays: list[float] = []

    def _connect(self) -> None:
        names = list(self.nodes)
        for node in self.nodes.values():
            for peer in self.draw.sample(names, min(NEIGHBOURS // 2, len(names) - 1)):
                if peer != node.name:
                    node.links[peer] = self.nodes[peer].links[node.name] = HOP * self.draw.lognormvariate(0, SPREAD)
        for node in self.nodes.values():
            node.trees.join(TOPIC)
            for peer in node.links:
                self.after(self.draw.uniform(0, 5), node.trees.opened, peer)
            self.after(self.draw.uniform(0, TICK), node.tick)

    def after(self, seconds: float, deed: Any, *args: Any) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), deed, args))

    def send(self, node: Node, peer: bytes, packet: bytes) -> None:
        rpc = _read(packet)
        if node.silent:
            own = [message for message in rpc.publish if message.from_id == node.name]
            if len(own) < len(rpc.publish):
                return
        if not rpc.publish:
            self.control_bytes += len(packet)
        self.packets += 1
        self.after(node.links[peer], self._arrive, node.name, peer, rpc)

    def _arrive(self, giver: bytes, peer: bytes, rpc: rpc_pb2.RPC) -> None:
        if self.nodes[peer].alive and self.nodes[peer].side == self.nodes[giver].side:
            self.nodes[peer].take(giver, rpc)

    def heard(self, number: bytes) -> None:
        if number in self.born:
            self.delays.append(self.now - self.born[number])

    def publish(self) -> None:
        """A message of somebody's, drawn."""
        living = self.living()
        author, number = self.draw.choice(living), next(self._numbers).to_bytes(8)
        self.born[number] = self.now
        self.due += sum(node.side == author.side for node in living) - 1
        author.trees.spread(rpc_pb2.Message(from_id=author.name, seqno=number, data=bytes(300), topicIDs=[TOPIC]))

    def living(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    def kill(self, names: Iterable[bytes]) -> None:
        """Without a word; their neighbours' connections end."""
        for name in names:
            self.nodes[name].alive = False
            for peer in self.nodes[name].links:
                self.after(HOP, self.nodes[peer].trees.gone, name)

    def cut(self, names: Iterable[bytes]) -> None:
        """These are an island from now on: connections with the others end."""
        for name in names:
            self.nodes[name].side = 1
        for node, peer in self._across():
            self.after(HOP, node.trees.gone, peer)

    def heal(self) -> None:
        """Everybody is together again, and connects anew."""
        across = list(self._across())
        for node in self.nodes.values():
            node.side = 0
        for node, peer in across:
            self.after(self.draw.uniform(0, 5), node.trees.opened, peer)

    def _across(self) -> Iterator[tuple[Node, bytes]]:
        for node in self.living():
            yield from ((node, peer) for peer in node.links if self._is_across(node, self.nodes[peer]))

    @staticmethod
    def _is_across(one: Node, other: Node) -> bool:
        return other.alive and one.side != other.side

    def live(self, seconds: float) -> None:
        until = self.now + seconds
        while self._due and self._due[0][0] <= until:
            self.now, _, deed, args = heapq.heappop(self._due)
            deed(*args)
        self.now = until

    def stretch(self, seconds: float, rate: float) -> dict[str, float]:
        """So long, with so many messages a second; what was counted."""
        self.begin()
        for number in range(int(seconds * rate)):
            self.after(number / rate, self.publish)
        self.live(seconds + DRAIN)
        delays, living = sorted(self.delays), len(self.living())
        return {
            "copies": round(self.copies / max(len(delays), 1), 3),
            "median_s": round(statistics.median(delays), 3),
            "p99_s": round(delays[int(0.99 * len(delays))], 3),
            "last_s": round(delays[-1], 3),
            "lost_percent": round(100 * (1 - len(delays) / self.due), 4),
            "control_kB_per_node_s": round(self.control_bytes / living / (seconds + DRAIN) / 1000, 2),
            "packets_per_node_s": round(self.packets / living / (seconds + DRAIN), 1),
        }


def stretches(swarm: Swarm, seconds: float, rate: float, silent: float) -> Iterator[tuple[str, dict[str, float]]]:
    """One after the other; silent: share of all nodes."""
    size = len(swarm.nodes)
    swarm.live(6.0)
    yield "quiet", swarm.stretch(seconds, rate)
    swarm.kill(swarm.draw.sample(list(swarm.nodes), size // 10))
    yield "after deaths", swarm.stretch(seconds, rate)
    living = swarm.living()
    swarm.cut(node.name for node in swarm.draw.sample(living, len(living) // 3))
    yield "a third cut off", swarm.stretch(seconds, rate)
    swarm.heal()
    yield "together again", swarm.stretch(seconds, rate)
    for node in swarm.draw.sample(living, int(silent * size)):
        node.silent = True
    yield "with silent ones", swarm.stretch(seconds, rate)


def main() -> None:
    gc.disable()  # millions of small objects, none of them garbage in a circle
    parser = parser_of(__doc__, "60 nodes, 10 seconds a stretch", "line")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--seconds", type=float, default=20.0, help="of swarm time, for each stretch")
    parser.add_argument("--rate", type=float, default=20.0, help="messages a second of all nodes together")
    parser.add_argument("--silent", type=float, default=0.1, help="share that hands on nothing")
    given = parser.parse_args()
    sizes, seconds = ([60], 10.0) if given.quick else (given.nodes, given.seconds)
    rows = []
    for size in sizes:
        print(f"{size} nodes, {given.rate:g} messages a second", file=sys.stderr)
        swarm, row = Swarm(size, 1), dict[str, Any](nodes=size)
        for name, counted in stretches(swarm, seconds, given.rate, given.silent):
            row[name] = counted
            told = "  ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in counted.items())
            print(f"  {name:18}{told}", file=sys.stderr)
        links = [len(node.trees.links[TOPIC]) for node in swarm.living()]
        rows.append(row | {"links": {"mean": round(statistics.mean(links), 2), "most": max(links)}})
        print(f"  links {rows[-1]['links']}, {time.process_time():.0f} CPU s so far", file=sys.stderr)
    if given.json:
        print(json.dumps({"rate": given.rate, "rows": rows}))


if __name__ == "__main__":
    main()
