"""A swarm that fetches one blob: the product's decisions (`node.blobs.scheduling`), links and clocks that are simulated.

An uploader shares its link among its slots; a downloader takes what arrives one after another.
"""

import heapq
import itertools
import random
from collections.abc import Callable

import numpy as np

from node.blobs.scheduling.download import Download, Flight, Tuning
from node.blobs.scheduling.seeding import SuperSeed
from node.blobs.scheduling.upload import Reciprocity, Ticket, UploadQueue

GBIT = 1e9 / 8
PEER_UP, PEER_DOWN = 0.2 * GBIT, 1.0 * GBIT
LATENCY = 0.02
NEIGHBOURS = 16
PIECES = 512
SLOTS = 4
ORIGIN = 0


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, do: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._numbers), do, args))

    def run(self, done: Callable[[], bool], limit: float) -> None:
        while self._heap and not done():
            self.now, _, do, args = heapq.heappop(self._heap)
            if self.now > limit:
                raise RuntimeError(f"not done after {limit:.0f} simulated seconds")
            do(*args)


class Sending:
    """One answer on its way out. left: bytes."""

    def __init__(
        self, ticket: Ticket[int], flight: Flight[int], pieces: np.ndarray, left: float, waited: float
    ) -> None:
        self.ticket = ticket
        self.flight = flight
        self.pieces = pieces
        self.left = left
        self.waited = waited


class Node:
    """A peer, or the origin (which has no download). up, down: bytes per second."""

    def __init__(self, swarm: "Swarm", number: int, up: float, down: float) -> None:
        self.swarm = swarm
        self.number = number
        self.up = up
        self.down = down
        self.download: Download[int] | None = None
        self.seed: SuperSeed[int] | None = None
        self.finished = 0.0
        self.received = 0.0
        self._reciprocity: Reciprocity[int] = Reciprocity()
        self._queue: UploadQueue[int] = UploadQueue(self._reciprocity, slots=SLOTS)
        self._asked: dict[Ticket[int], Flight[int]] = {}
        self._sending: list[Sending] = []
        self._at = 0.0
        self._version = 0
        self._line_free = 0.0

    # -- fetching --

    def ask(self, source: int) -> None:
        if self.download is None:
            return
        now = self.swarm.clock.now
        while (flight := self.download.plan(source, now)) is not None:
            self.swarm.clock.after(LATENCY, self.swarm.nodes[source].asked, self.number, flight)

    def choked(self, flight: Flight[int], seconds: float) -> None:
        if self.download is None:
            return
        self.download.failed(flight)
        self.download.close(flight.source, self.swarm.clock.now + seconds)
        self.swarm.clock.after(seconds + 1e-6, self.ask, flight.source)

    def arrived(self, flight: Flight[int], pieces: np.ndarray, size: float, waited: float) -> None:
        """The last byte left the sender; our own line takes what came before it first."""
        now = self.swarm.clock.now
        self._line_free = max(self._line_free + size / self.down, now)
        self.swarm.clock.after(self._line_free - now + LATENCY, self.took, flight, pieces, size, waited)

    def took(self, flight: Flight[int], pieces: np.ndarray, size: float, waited: float) -> None:
        if self.download is None or self.finished:
            return
        now = self.swarm.clock.now
        self.received += size
        if not len(pieces):
            self.download.lacks(flight)
            self.download.failed(flight)
        else:
            self._reciprocity.received(flight.source, int(size), now)
            for rival in self.download.landed(flight, pieces.tolist(), int(size), waited, now):
                self.download.failed(rival)
                self.swarm.nodes[rival.source].cancelled(rival)
        if self.download.complete:
            self.finished = now
            self.swarm.left -= 1
            for flights in [self.download.remove(source) for source in self.download.sources]:
                for each in flights:
                    self.swarm.nodes[each.source].cancelled(each)
            return
        self.ask(flight.source)
        if self.download.ending:
            for source in self.download.sources:
                self.ask(source)

    # -- serving --

    def asked(self, peer: int, flight: Flight[int]) -> None:
        ticket = self._queue.offer(peer, flight.size, self.swarm.clock.now)
        if ticket is None:
            self.swarm.clock.after(LATENCY, self.swarm.nodes[peer].choked, flight, self._queue.choke_seconds())
            return
        self._asked[ticket] = flight
        self._grant()

    def cancelled(self, flight: Flight[int]) -> None:
        for ticket in [ticket for ticket, each in self._asked.items() if each is flight]:
            self._progress()
            self._queue.withdraw(ticket, self.swarm.clock.now)
            del self._asked[ticket]
            self._sending = [each for each in self._sending if each.ticket is not ticket]
        self._grant()

    def _grant(self) -> None:
        self._progress()
        now = self.swarm.clock.now
        burden = self._burden if self.seed and self.seed.active else None
        while (ticket := self._queue.next(now, burden)) is not None:
            flight = self._asked[ticket]
            pieces = self._choose(ticket.peer, flight)
            size = self.swarm.bytes_of(pieces)
            self._sending.append(Sending(ticket, flight, pieces, max(1.0, size), now - ticket.at))
        self._schedule()

    def _burden(self, ticket: Ticket[int]) -> float:
        return self.seed.burden(ticket.peer) if self.seed else 0.0

    def _choose(self, peer: int, flight: Flight[int]) -> np.ndarray:
        if len(flight.pieces):
            if self.seed is not None:
                self.seed.given(peer, flight.pieces)
            return flight.pieces
        download = self.swarm.nodes[peer].download
        if self.seed is None or download is None:
            return np.zeros(0, np.int64)
        return self.seed.choose(peer, download.skip(), flight.count)

    def _progress(self) -> None:
        """What the slots, sharing the line, have sent since we last looked."""
        now = self.swarm.clock.now
        if self._sending:
            part = (now - self._at) * self.up / len(self._sending)
            for each in self._sending:
                each.left -= part
        self._at = now

    def _schedule(self) -> None:
        self._version += 1
        if self._sending:
            least = min(each.left for each in self._sending)
            self.swarm.clock.after(max(0.0, least) * len(self._sending) / self.up, self._sent, self._version)

    def _sent(self, version: int) -> None:
        if version != self._version:
            return
        self._progress()
        done = [each for each in self._sending if each.left <= 1e-3]
        self._sending = [each for each in self._sending if each.left > 1e-3]
        for each in done:
            self._queue.withdraw(each.ticket, self.swarm.clock.now)
            del self._asked[each.ticket]
            size = self.swarm.bytes_of(each.pieces)
            self.swarm.nodes[each.ticket.peer].arrived(each.flight, each.pieces, size, each.waited)
        self._grant()


class Swarm:
    """One origin and N peers that all want the same blob of `size` bytes at time 0."""

    def __init__(self, count: int, size: float, origin_up: float, seed: int, pieces: int = PIECES) -> None:
        self.clock = Clock()
        self.size = int(size)
        self.piece = -(-self.size // pieces)
        self.left = count
        self._random = random.Random(seed)  # noqa: S311
        pieces = -(-self.size // self.piece)
        self._last = self.size - (pieces - 1) * self.piece
        self._pieces = pieces
        tuning = Tuning(request_bytes=self.piece, source_bytes=24 * self.piece, late=max(2.0, 4 * self.piece / PEER_UP))
        self.nodes = [Node(self, ORIGIN, origin_up, origin_up)]
        self.nodes[ORIGIN].seed = SuperSeed(pieces, seed)
        for number in range(1, count + 1):
            peer = Node(self, number, PEER_UP, PEER_DOWN)
            peer.download = Download(self.size, self.piece, np.zeros(pieces, np.bool_), seed + number, tuning)
            self.nodes.append(peer)
        self._pairs = self._introduce(count)
        self._tell_every = max(0.5, 3 * self.piece / PEER_UP)

    def bytes_of(self, pieces: np.ndarray) -> float:
        last = len(pieces) and pieces[-1] == self._pieces - 1
        return float(len(pieces) * self.piece - (self.piece - self._last if last else 0))

    def _introduce(self, count: int) -> list[tuple[int, int]]:
        """Everybody picks half of its neighbours at random; they learn of each other by being told."""
        pairs: set[tuple[int, int]] = set()
        for number in range(1, count + 1):
            for other in self._random.sample(range(1, count + 1), min(count, NEIGHBOURS // 2 + 1)):
                if other != number:
                    pairs.add((min(number, other), max(number, other)))
        return sorted(pairs)

    def run(self) -> "Swarm":
        everything = np.ones(self._pieces, np.bool_)
        for peer in self.nodes[1:]:
            assert peer.download is not None  # noqa: S101
            peer.download.add(ORIGIN)
            peer.download.learn(ORIGIN, everything, chooses=True)
            self.clock.after(self._random.random() * 0.1, peer.ask, ORIGIN)
            self.clock.after(self._random.random() * self._tell_every, self._tell_origin, peer)
        for one, two in self._pairs:
            self._know(one, two)
            self.clock.after(self._random.random() * self._tell_every, self._tell, one, two)
        self.clock.run(lambda: not self.left, 50 * self.bound())
        return self

    def _know(self, one: int, two: int) -> None:
        for here, there in ((one, two), (two, one)):
            download = self.nodes[here].download
            assert download is not None  # noqa: S101
            download.add(there)

    def _tell(self, one: int, two: int) -> None:
        """Two peers exchange their maps."""
        first, second = self.nodes[one], self.nodes[two]
        if first.finished and second.finished:
            return
        self._learn(first, second)
        self._learn(second, first)
        self.clock.after(self._tell_every, self._tell, one, two)

    def _learn(self, peer: Node, source: Node) -> None:
        if not peer.finished and peer.download and source.download:
            peer.download.learn(source.number, source.download.have.copy())
            peer.ask(source.number)

    def _tell_origin(self, peer: Node) -> None:
        seed = self.nodes[ORIGIN].seed
        if peer.finished or seed is None or peer.download is None:
            return
        seed.seen(peer.number, peer.download.have)
        everything = np.ones(self._pieces, np.bool_)
        peer.download.learn(ORIGIN, everything, chooses=seed.active)
        peer.ask(ORIGIN)
        self.clock.after(self._tell_every, self._tell_origin, peer)

    def bound(self) -> float:
        peers = self.nodes[1:]
        total = self.nodes[ORIGIN].up + sum(peer.up for peer in peers)
        least = min(peer.down for peer in peers)
        return max(self.size / self.nodes[ORIGIN].up, self.size / least, len(peers) * self.size / total)


def fetch_seconds(count: int, size: float, seed: int, pieces: int = PIECES) -> list[float]:
    """When each of `count` peers has a blob of `size` bytes that one origin of 1 Gbit/s begins with, ascending."""
    swarm = Swarm(count, size, GBIT, seed, pieces).run()
    return sorted(peer.finished for peer in swarm.nodes[1:])
