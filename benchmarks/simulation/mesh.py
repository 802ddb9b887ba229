"""Gossip over a mesh of bounded degree: when a message reaches whom, and in how many copies. Numbers only.

A node keeps DEGREE mesh peers, never above MOST, and asks for more below LEAST. It hands a message to all of them but
the one that it came from. Times are shortest paths over the links, plus what each hop computes.
"""

import random

import numpy as np

LEAST, DEGREE, MOST = 4, 6, 9
"""Measured at 12 nodes without opportunistic grafting: 4 to 9."""
LANDMARKS, MANY = 64, 2000
"""Where there are more than MANY nodes, messages start from LANDMARKS of them: the mesh looks alike from everywhere."""
SPREAD = 0.5
"""Of the logarithm of a link's delay."""


class Mesh:
    """size: places for nodes; delay: seconds of a hop, the median."""

    def __init__(self, size: int, delay: float, seed: int) -> None:
        self.online = np.zeros(size, bool)
        self.island = np.zeros(size, int)
        self.hop_seconds = 0.0
        """What a node computes before it hands a message on."""
        self._delay = delay
        self._random = random.Random(seed)  # noqa: S311 - a model
        self._peers: list[dict[int, float]] = [{} for _ in range(size)]
        self._rows: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._table: tuple[np.ndarray, np.ndarray] | None = None

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
        self._rows.clear()
        self._table = None

    def degree(self, node: int) -> int:
        return len(self._peers[node])

    def row(self, source: int) -> tuple[np.ndarray, np.ndarray]:
        """(seconds until each node has it, infinite for who has it never; copies that each is sent)."""
        many = len(self._peers) > MANY and len(self._rows) >= LANDMARKS
        if source not in self._rows and many and self.island[source] == 0:
            alike = [known for known in self._rows if self.island[known] == 0]
            source = alike[source % len(alike)] if alike else source
        if source not in self._rows:
            self._rows[source] = self._computed(source)
        return self._rows[source]

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
                link = self._delay * self._random.lognormvariate(0.0, SPREAD)
                self._peers[node][other] = self._peers[other][node] = link

    def _part(self, one: int, other: int) -> None:
        del self._peers[one][other]
        del self._peers[other][one]

    def _links(self) -> tuple[np.ndarray, np.ndarray]:
        """(neighbours int[nodes, most], seconds float[nodes, most]); infinite where there is no link."""
        if self._table is None:
            width = max((len(peers) for peers in self._peers), default=0) or 1
            neighbours = np.zeros((len(self._peers), width), int)
            seconds = np.full((len(self._peers), width), np.inf, np.float32)
            for node, peers in enumerate(self._peers):
                reached = [other for other in peers if self.island[other] == self.island[node]]
                neighbours[node, : len(reached)] = reached
                seconds[node, : len(reached)] = [peers[other] for other in reached]
            self._table = neighbours, seconds + self.hop_seconds
        return self._table

    def _computed(self, source: int) -> tuple[np.ndarray, np.ndarray]:
        neighbours, seconds = self._links()
        times = np.full(len(self._peers), np.inf, np.float32)
        times[source] = 0.0
        while True:
            over = times[neighbours] + seconds
            better = np.minimum(times, over.min(axis=1))
            if np.array_equal(better, times):
                break
            times = better
        heard = np.isfinite(times)
        parents = neighbours[np.arange(len(times)), over.argmin(axis=1)]
        has_parent = heard.copy()
        has_parent[source] = False
        children = np.bincount(parents[has_parent], minlength=len(times))
        copies = np.where(heard, np.isfinite(seconds).sum(axis=1) - children, 0)
        return times, copies.astype(np.float32)
