"""A swarm that fetches one blob: the decisions are the product's, links and clocks are simulated.

The product's own: which piece is asked of whom, who is served next, what the only holder gives away
(`node.blobs.scheduling`). Its bounds are those of `node.blobs.transfer`: sources that are asked, and that join by
telling; bytes under way; how often maps are told and sources looked through. An uploader shares its link among its
slots; a downloader takes what arrives one after another. Who has no line to the origin learns of the blob from others.
"""

import gc
import heapq
import itertools
import random
from collections.abc import Callable

import numpy as np

from node.blobs.circle import MAX_ACTIVE, MAX_JOINED
from node.blobs.pieces import TELL_EVERY
from node.blobs.scheduling.download import Download
from node.blobs.scheduling.sources import Flight, Tuning
from node.blobs.scheduling.upload import Reciprocity, SuperSeed, UploadQueue, UploadTicket
from node.blobs.transfer import MAX_IN_FLIGHT, STAGGER, TICK
from node.network.stack import MAX_CONNECTIONS
from protocol.blobs import DEFAULT_PIECE_SIZE, choose_piece_size

GBIT = 1e9 / 8
PEER_UP, PEER_DOWN = 0.2 * GBIT, 1.0 * GBIT
LATENCY = 0.02
START_OVER = 0.1
"""Seconds over which everybody begins."""
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

    __slots__ = ("flight", "left", "pieces", "size", "ticket", "waited")

    def __init__(
        self, ticket: UploadTicket[int], flight: Flight[int], pieces: np.ndarray, size: float, waited: float
    ) -> None:
        self.ticket = ticket
        self.flight = flight
        self.pieces = pieces
        self.size = size
        self.left = max(1.0, size)
        self.waited = waited


class Node:
    """A peer, or the origin (which has no download). up, down: bytes per second; hoards: it claims to have everything
    from the beginning and delivers each request after so many seconds, None: it is honest."""

    def __init__(self, swarm: "Swarm", number: int, up: float, down: float, hoards: float | None = None) -> None:
        self.swarm = swarm
        self.number = number
        self.up = up
        self.down = down
        self.hoards = hoards
        self.download: Download[int] | None = None
        self.seed: SuperSeed[int] | None = None
        self.finished = 0.0
        self.received = self.sent = 0.0
        self._under_way = 0
        self._ticking = False
        self._reciprocity: Reciprocity[int] = Reciprocity()
        self._queue: UploadQueue[int] = UploadQueue(self._reciprocity, slots=SLOTS)
        self._tickets: dict[Flight[int], UploadTicket[int]] = {}
        self._asked: dict[UploadTicket[int], Flight[int]] = {}
        self._sending: list[Sending] = []
        self._at = 0.0
        self._version = 0
        self._line_free = 0.0

    @property
    def map(self) -> np.ndarray:
        """What it says that it has: bool[pieces]."""
        return self.swarm.everything if self.download is None or self.hoards else self.download.have.copy()

    # -- fetching --

    @property
    def sources(self) -> int:
        """How many it asks."""
        return len(self.download._sources) if self.download else 0

    def add(self, source: int) -> bool:
        """Use this one, too, if there is room."""
        download = self.download
        if download is None or self.finished:
            return False
        if source not in download._sources and self.sources >= MAX_JOINED:
            return False
        download.add(source)
        return True

    def ask(self, source: int) -> None:
        download = self.download
        if download is None or self.finished:
            return
        now = self.swarm.clock.now
        while self._under_way < self.swarm.most_under_way and (flight := download.plan(source, now)) is not None:
            self._under_way += flight.size
            self.swarm.clock.after(LATENCY, self.swarm.nodes[source].asked, self.number, flight)
        if not self._ticking:
            self._ticking = True
            self.swarm.clock.after(self.swarm.tick, self._tick)

    def _tick(self) -> None:
        """All sources are looked at again, as the product does."""
        self._ticking = False
        if self.download is not None:
            for source in self.download.sources:
                self.ask(source)

    def choked(self, flight: Flight[int], seconds: float) -> None:
        if self.download is None or self.finished:
            return
        self._ended(flight)
        self.download.close(flight.source, self.swarm.clock.now + seconds)
        self.swarm.clock.after(seconds + 1e-6, self.ask, flight.source)

    def _ended(self, flight: Flight[int]) -> None:
        assert self.download is not None
        self._under_way -= flight.size
        self.download.failed(flight)

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
            self._ended(flight)
        else:
            self._under_way -= flight.size
            self._reciprocity.received(flight.source, int(size), now)
            for rival in self.download.landed(flight, pieces.tolist(), int(size), waited, now):
                self._ended(rival)
                self.swarm.nodes[rival.source].cancelled(rival)
        if self.download.complete:
            self._finish(self.download)
        else:
            self.ask(flight.source)

    def _finish(self, download: Download[int]) -> None:
        self.finished = self.swarm.clock.now
        self.swarm.left -= 1
        for flights in [download.remove(source) for source in download.sources]:
            for each in flights:
                self.swarm.nodes[each.source].cancelled(each)

    # -- serving --

    def asked(self, peer: int, flight: Flight[int]) -> None:
        if self.hoards:
            self.swarm.clock.after(self.hoards, self._hand_over, peer, flight)
            return
        ticket = self._queue.offer(peer, flight.size, self.swarm.clock.now)
        if ticket is None:
            self.swarm.clock.after(LATENCY, self.swarm.nodes[peer].choked, flight, self._queue.choke_seconds())
            return
        self._asked[ticket] = flight
        self._tickets[flight] = ticket
        self._grant()

    def _hand_over(self, peer: int, flight: Flight[int]) -> None:
        """At last, and as if it had not waited: who answers at once is asked for more."""
        size = self.swarm.bytes_of(flight.pieces)
        self.sent += size
        self.swarm.nodes[peer].arrived(flight, flight.pieces, size, 0.0)

    def cancelled(self, flight: Flight[int]) -> None:
        ticket = self._tickets.pop(flight, None)
        if ticket is None:
            return
        self._progress()
        self._queue.withdraw(ticket, self.swarm.clock.now)
        del self._asked[ticket]
        self.sent += sum(each.size - each.left for each in self._sending if each.ticket is ticket)
        self._sending = [each for each in self._sending if each.ticket is not ticket]
        self._grant()

    def _grant(self) -> None:
        self._progress()
        now = self.swarm.clock.now
        burden = self._burden if self.seed and self.seed.active else None
        while (ticket := self._queue.next(now, burden)) is not None:
            flight = self._asked[ticket]
            pieces = self._choose(ticket.peer, flight)
            self._sending.append(Sending(ticket, flight, pieces, self.swarm.bytes_of(pieces), now - ticket.at))
        self._schedule()

    def _burden(self, ticket: UploadTicket[int]) -> float:
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
            del self._tickets[each.flight]
            self.sent += each.size
            self.swarm.nodes[each.ticket.peer].arrived(each.flight, each.pieces, each.size, each.waited)
        self._grant()


class Swarm:
    """One origin and N peers that all want the same blob of `size` bytes at time 0.

    origin_up: bytes per second; pieces: None for the product's; hoarders: share of the peers that claim to have all and
    deliver a request after `hoard` seconds. tick: seconds between two looks through all sources, as
    many for each telling of maps as the product's; left: peers, hoarders aside, that have not got it yet.
    """

    def __init__(
        self,
        count: int,
        size: float,
        origin_up: float,
        seed: int,
        pieces: int | None = None,
        *,
        hoarders: float = 0.0,
        hoard: float = 1.9,
    ) -> None:
        self.clock = Clock()
        self.size = int(size)
        self.piece = -(-self.size // pieces) if pieces else choose_piece_size(self.size)
        self._random = random.Random(seed)
        self.pieces = -(-self.size // self.piece)
        self._last = self.size - (self.pieces - 1) * self.piece
        self.everything = np.ones(self.pieces, np.bool_)
        tuning = _tuning(self.piece)
        self.most_under_way = max(MAX_IN_FLIGHT, MAX_IN_FLIGHT // DEFAULT_PIECE_SIZE * self.piece)
        self.nodes = [Node(self, ORIGIN, origin_up, origin_up)]
        self.nodes[ORIGIN].seed = SuperSeed(self.pieces, seed)
        bad = set(self._random.sample(range(1, count + 1), int(hoarders * count)))
        for number in range(1, count + 1):
            peer = Node(self, number, PEER_UP, PEER_DOWN, hoard if number in bad else None)
            peer.download = Download(self.size, self.piece, np.zeros(self.pieces, np.bool_), seed + number, tuning)
            self.nodes.append(peer)
        self.honest = [peer for peer in self.nodes[1:] if not peer.hoards]
        self.left = len(self.honest)
        self._tell_every = max(TELL_EVERY, 3 * self.piece / PEER_UP)
        self.tick = TICK / TELL_EVERY * self._tell_every

    def bytes_of(self, pieces: np.ndarray) -> float:
        last = len(pieces) and pieces[-1] == self.pieces - 1
        return float(len(pieces) * self.piece - (self.piece - self._last if last else 0))

    def run(self, look: Callable[["Swarm"], None] | None = None) -> "Swarm":
        """Until every honest peer has it. look: called with every simulated half second."""
        gc.disable()  # millions of small objects, none of them garbage in a circle
        try:
            for one, two in self._introduce():
                self.clock.after(LATENCY + STAGGER * self._random.random(), self._tell, one, two)
            if look is not None:
                self._look(look)
            self.clock.run(lambda: not self.left, 50 * self.bound())
        finally:
            gc.enable()
        return self

    def _introduce(self) -> list[tuple[int, int]]:
        """Everybody asks the origin, if it has a line to it, and others at random; each is told of by others, too."""
        peers = range(1, len(self.nodes))
        lines = set(self._random.sample(peers, min(len(peers), MAX_CONNECTIONS)))
        pairs: dict[tuple[int, int], None] = {}
        for peer in self.honest:
            begins = self._random.random() * START_OVER + 2 * LATENCY
            if peer.number in lines:
                peer.add(ORIGIN)
                self.clock.after(begins, self._tell_origin, peer)
            for other in self._random.sample(peers, min(len(peers), MAX_ACTIVE)):
                if other != peer.number and peer.sources < MAX_ACTIVE:
                    peer.add(other)
                    pairs[(min(peer.number, other), max(peer.number, other))] = None
        return list(pairs)

    def _look(self, look: Callable[["Swarm"], None]) -> None:
        look(self)
        self.clock.after(0.5, self._look, look)

    def _tell(self, one: int, two: int) -> None:
        """Two peers exchange their maps; who is told of somebody uses it, too, if there is room."""
        first, second = self.nodes[one], self.nodes[two]
        if first.finished and second.finished:
            return
        self._learn(first, second)
        self._learn(second, first)
        self.clock.after(self._tell_every, self._tell, one, two)

    @staticmethod
    def _learn(peer: Node, source: Node) -> None:
        if not peer.hoards and peer.download is not None and peer.add(source.number):
            peer.download.learn(source.number, source.map)
            peer.ask(source.number)

    def _tell_origin(self, peer: Node) -> None:
        seed = self.nodes[ORIGIN].seed
        if peer.finished or seed is None or peer.download is None:
            return
        seed.seen(peer.number, peer.download.have)
        peer.download.learn(ORIGIN, self.everything, chooses=seed.active)
        peer.ask(ORIGIN)
        self.clock.after(self._tell_every, self._tell_origin, peer)

    def bound(self) -> float:
        """Seconds that no scheme could be faster than: the fluid limit of Kumar and Ross, of the honest ones."""
        total = self.nodes[ORIGIN].up + sum(peer.up for peer in self.honest)
        least = min(peer.down for peer in self.honest)
        return max(self.size / self.nodes[ORIGIN].up, self.size / least, len(self.honest) * self.size / total)


def _tuning(piece: int) -> Tuning:
    """The product's; pieces that are coarser than the product's, for speed, stand for as many of its pieces."""
    usual = Tuning()
    if piece <= DEFAULT_PIECE_SIZE:
        return usual
    return Tuning(request_bytes=piece, source_bytes=24 * piece, late=max(usual.late, 4 * piece / PEER_UP))


def described(swarm: Swarm) -> dict[str, float]:
    """One row: seconds until peers have all of it, who sent how many bytes, and how old the policy was meanwhile."""
    times = sorted(peer.finished for peer in swarm.honest)
    sent = sorted(peer.sent for peer in swarm.nodes[1:])
    taken = sum(peer.received for peer in swarm.honest) / len(times)
    return {
        "peers": len(swarm.nodes) - 1,
        "MB": swarm.size / 1e6,
        "pieces": swarm.pieces,
        "bound_s": round(swarm.bound(), 2),
        "p50_s": round(times[len(times) // 2], 2),
        "p99_s": round(times[int(0.99 * len(times))], 2),
        "last_s": round(times[-1], 2),
        "last_over_bound": round(times[-1] / swarm.bound(), 3),
        "stale_s": round(sum(times) / len(times), 2),
        "source_copies": round(swarm.nodes[ORIGIN].sent / swarm.size, 2),
        "node_MB_in": round(taken / 1e6, 1),
        "node_MB_out_mean": round(sum(sent) / len(sent) / 1e6, 1),
        "node_MB_out_most": round(sent[-1] / 1e6, 1),
        "twice_percent": round(100 * (taken / swarm.size - 1), 2),
    }


def fetch_seconds(count: int, size: float, seed: int) -> list[float]:
    """When each of `count` peers has a blob of `size` bytes that one origin of 1 Gbit/s begins with, ascending."""
    swarm = Swarm(count, size, GBIT, seed).run()
    return sorted(peer.finished for peer in swarm.nodes[1:])
