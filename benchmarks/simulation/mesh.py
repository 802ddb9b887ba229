"""Gossip over a tree in a graph of bounded degree: when a message reaches whom. Numbers only.

A node knows DEGREE neighbours or so, never above MOST, and looks for more below LEAST. Of the links between them a tree
is what pushes, as the product's rules leave it (`gossip.py` runs those): here the shortest paths from some node. Times
are paths over the tree, plus what each hop computes.
"""

import random

import numpy as np

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
        self._random = random.Random(seed)  # noqa: S311 - a model
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
            assert self._table is not None  # noqa: S101 - repaired before anybody speaks
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
