"""Which pieces of one blob to ask of which source next.

Rarest first, ties broken at random, so that nodes which fetch at the same time soon have different pieces to share.
A source's next request is as large as what it delivers, by all its requests together, in a moment: slow ones hold
little back. Near the end, when every missing piece has been asked for, the slowest requests are asked of a faster
source, too, and the loser is cancelled.

What a piece that lands costs must not grow with all that is under way, or many sources stall the loop: so counts are
kept along, and a source's oldest request stands for its others.

Knows maps, requests in flight and times; knows nothing of bytes, hashes or the network.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.blobs.scheduling.bitfield import Flags

Peer = TypeVar("Peer", bound=Hashable)
SPAN = 0.05
"""Seconds over which a source's rate is measured, at least."""
MARGIN = 0.1
"""Seconds that asking a second source must save, at least."""


class Tuning(msgspec.Struct, frozen=True):
    """How much is asked for at once. Sizes in bytes, times in seconds.

    request_bytes: the largest request (one piece, if a piece is bigger); request_seconds: how long a request should
    take; depth: requests in flight per source, at first and at most; source_bytes: bytes in flight per source; queued:
    how long a request should wait at its source before its turn, at least and at most: less, and its line may run
    dry; copies: sources that may be asked for one piece at a time; late: age after which
    a request is doubtful; patience: how many times its expected duration a request may take before it is.
    """

    request_bytes: int = 4 * 1024**2  # as large as an answer may be
    request_seconds: float = 0.25
    depth: tuple[int, int] = (2, 24)
    source_bytes: int = 8 * 1024**2
    queued: tuple[float, float] = (0.1, 1.0)
    copies: int = 2
    late: float = 2.0
    patience: float = 4.0


class Flight(msgspec.Struct, Generic[Peer], eq=False):
    """One request under way. pieces: what was asked for; when empty, `count` pieces of the source's choice."""

    source: Peer
    pieces: NDArray[np.int64]
    count: int
    size: int
    since: float


class _Source(Generic[Peer]):
    """What we know of one source. have: its map; chooses: it decides itself which pieces it sends (super-seeding)."""

    def __init__(self, count: int) -> None:
        self.have: Flags = np.zeros(count, np.bool_)
        self.full = False  # whether it has all of them
        self.chooses = False
        self.rate = 0.0  # bytes per second of one request, its waiting for others included, smoothed
        self.whole = 0.0  # bytes per second of all requests together, smoothed
        self.counted = 0  # bytes of the span that is being measured
        self.counted_since = float("-inf")
        self.closed_until = 0.0
        self.doubted_at = float("-inf")  # when we last looked for requests of others that it should take over
        self.flights: list[Flight[Peer]] = []
        self.window = 0.0  # requests that may be in flight
        self.lanes = 0


class Download(Generic[Peer]):
    """The state of one blob's transfer. have: bool[pieces], what is here already."""

    def __init__(self, size: int, piece_size: int, have: Flags, seed: int, tuning: Tuning | None = None) -> None:
        self.have = have.copy()
        self.tuning = tuning or Tuning()
        self._size = size
        self._piece_size = piece_size
        self._least = min(size, piece_size)  # bytes of the smallest request
        self._count = len(have)
        self._copies = np.zeros(self._count, np.uint8)  # requests in flight per piece
        self._open = ~have  # missing, and not asked for
        self._opens = int(self._open.sum())
        self._missing = self._opens
        self._rarity = np.random.default_rng(seed).random(self._count, np.float32)  # holders + a tie-break in [0, 1)
        self._sources: dict[Peer, _Source[Peer]] = {}

    # -- what is known -----------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return self._missing == 0

    @property
    def ending(self) -> bool:
        """Whether everything that is missing has been asked for."""
        return self._opens == 0

    @property
    def done(self) -> int:
        """Bytes that are here."""
        last = bool(self._count and self.have[-1])
        return (self._count - self._missing) * self._piece_size - last * (self._count * self._piece_size - self._size)

    @property
    def sources(self) -> tuple[Peer, ...]:
        return tuple(self._sources)

    @property
    def in_flight(self) -> int:
        """Bytes asked for."""
        return sum(flight.size for source in self._sources.values() for flight in source.flights)

    def busy(self, peer: Peer) -> int:
        """Requests in flight at `peer`."""
        source = self._sources.get(peer)
        return len(source.flights) if source else 0

    def delivering(self) -> int:
        """Sources with a request in flight that have delivered before."""
        return sum(1 for source in self._sources.values() if source.flights and source.rate)

    def skip(self) -> Flags:
        """What a source that chooses by itself need not send: here, or asked for."""
        return ~self._open

    def add(self, peer: Peer) -> None:
        """Use `peer`, once its map is known."""
        if peer not in self._sources:
            self._sources[peer] = _Source(self._count)
            self._sources[peer].window = self.tuning.depth[0]

    def remove(self, peer: Peer) -> list[Flight[Peer]]:
        """Forget a source; returns its requests, which the caller must end."""
        source = self._sources.get(peer)
        if source is None:
            return []
        self.learn(peer, np.zeros(self._count, np.bool_))
        flights = list(source.flights)
        for flight in flights:
            self.failed(flight)
        del self._sources[peer]
        return flights

    def learn(self, peer: Peer, have: Flags, *, chooses: bool = False) -> None:
        """A source's map, as it says. bool[pieces]"""
        source = self._sources[peer]
        self._rarity += have
        self._rarity -= source.have
        source.have = have
        source.full = bool(have.all())
        source.chooses = chooses

    def close(self, peer: Peer, until: float) -> None:
        """Ask nothing of `peer` before `until`: it said so, or it is not trusted for a while."""
        if peer in self._sources:
            self._sources[peer].closed_until = max(self._sources[peer].closed_until, until)

    # -- requests ----------------------------------------------------------------------------------

    def spread(self, peer: Peer, lanes: int, least: int) -> None:
        """Several slow connections lead to `peer`: have at least so many requests in flight there, and ask again for
        what one of them is late with."""
        source = self._sources.get(peer)
        if source is not None:
            source.lanes = lanes
            source.window = min(max(source.window, least), self.tuning.depth[1])

    def plan(self, peer: Peer, now: float) -> Flight[Peer] | None:
        """The next request to send to `peer`, None if there is nothing to ask of it now."""
        source = self._sources.get(peer)
        if source is None or now < source.closed_until or not self._missing or not self._room(source):
            return None
        limit = self._request_pieces(source)
        if self._may_choose(peer, source):
            unknown = sum(flight.count for flight in source.flights if not len(flight.pieces))
            left = self._opens - unknown
            if left > (0 if source.lanes else 2 * limit):
                return self._fly(peer, source, np.zeros(0, np.int64), min(limit, left), now)
            if unknown and not self._late(source, now):
                return None  # what we would name now may be what it has chosen
        candidates = np.flatnonzero(source.have & self._open) if self._opens else ()
        if len(candidates):
            pieces = self._rarest(np.asarray(candidates), limit)
        else:
            pieces = self._overdue(peer, source, limit, now)
            if not len(pieces) and self.ending and (late := self._late(source, now)):
                pieces = late[0].pieces
        return self._fly(peer, source, pieces, len(pieces), now) if len(pieces) else None

    def landed(
        self, flight: Flight[Peer], good: Iterable[int], size: int, waited: float, now: float
    ) -> list[Flight[Peer]]:
        """A request was answered: `good` pieces, `size` bytes, after it had `waited` for its turn (seconds).

        Returns other requests that have become pointless.
        """
        source = self._sources.get(flight.source)
        if source is not None:
            self._adapt(source, waited)
        if source is not None and size:
            rate = size / max(1e-6, now - flight.since)
            source.rate = 0.7 * source.rate + 0.3 * rate if source.rate else rate
            self._measure(source, flight, size, now)
        new = self.take(good)
        self._end(flight)
        return self._pointless(new)

    def take(self, pieces: Iterable[int]) -> list[int]:
        """Pieces that are here now, by whatever way; returns those that are new."""
        new = [piece for piece in pieces if not self.have[piece]]
        for piece in new:
            if self._open[piece]:
                self._open[piece] = False
                self._opens -= 1
            self.have[piece] = True
        self._missing -= len(new)
        return new

    def lacks(self, flight: Flight[Peer]) -> None:
        """The source has not got what its map says, or has nothing left to choose."""
        source = self._sources.get(flight.source)
        if source is None:
            return
        if not len(flight.pieces):
            source.chooses = False
            return
        have = source.have.copy()
        have[flight.pieces] = False
        self.learn(flight.source, have)

    def settled(self, peer: Peer) -> bool:
        """Whether its map cannot change any more, and it need not know ours."""
        source = self._sources.get(peer)
        return source is not None and not source.chooses and source.full

    def failed(self, flight: Flight[Peer]) -> None:
        """A request ended without an answer: its pieces may be asked of others."""
        self._end(flight)

    def slowed(self, flight: Flight[Peer], now: float) -> None:
        """A request was given up as too slow: its source is expected to be as slow again."""
        source = self._sources.get(flight.source)
        if source is not None:
            rate = flight.size / max(1e-6, now - flight.since)
            source.rate = min(source.rate, rate) if source.rate else rate

    def _may_choose(self, peer: Peer, source: _Source[Peer]) -> bool:
        """Only the one source that has everything: two would choose the same pieces."""
        return source.chooses and all(other == peer or not each.full for other, each in self._sources.items())

    def _room(self, source: _Source[Peer]) -> bool:
        flights = source.flights
        if not flights:
            return True
        return len(flights) < int(source.window) and sum(each.size for each in flights) < self.tuning.source_bytes

    def _adapt(self, source: _Source[Peer], waited: float) -> None:
        """Keep as many requests at a source that it never runs out of them, and hardly more."""
        least, most = self.tuning.depth
        short, long = self.tuning.queued
        if waited < short:
            source.window = min(most, source.window + 1)
        elif waited > long:
            source.window = max(least, source.window - 0.5)

    def _measure(self, source: _Source[Peer], flight: Flight[Peer], size: int, now: float) -> None:
        """How fast a source is as a whole, over spans in which it was never idle."""
        if not source.counted:
            source.counted_since = max(source.counted_since, flight.since)
        source.counted += size
        span = now - source.counted_since
        if span < SPAN:
            return
        rate = source.counted / span
        source.whole = 0.7 * source.whole + 0.3 * rate if source.whole else rate
        source.counted, source.counted_since = 0, now

    def _request_pieces(self, source: _Source[Peer]) -> int:
        """As many as it delivers in a moment, and fewer towards the end, so that all sources end together."""
        most = max(1, self.tuning.request_bytes // self._piece_size)
        usual = int(max(source.whole, source.rate) * self.tuning.request_seconds / self._piece_size)
        share = -(-self._opens // (2 * max(1, len(self._sources))))
        return max(1, min(most, usual, share))

    def _rarest(self, candidates: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
        if len(candidates) > limit:
            order = np.argpartition(self._rarity[candidates], limit - 1)[:limit]
            candidates = candidates[order]
        return np.sort(candidates)

    def _overdue(self, peer: Peer, source: _Source[Peer], limit: int, now: float) -> NDArray[np.int64]:
        """Pieces that another source is delivering too slowly, and that this one would deliver sooner."""
        if self._opens and now - source.doubted_at < self.tuning.late / 4:
            return np.zeros(0, np.int64)
        source.doubted_at = now
        late = [
            holder
            for other, holder in self._sources.items()
            if holder.flights and other != peer and not self._in_time(holder, source, now)
        ]
        wanted = self._wanted(source) if late else set[int]()
        worst, latest = np.zeros(0, np.int64), 0.0
        if not wanted:
            return worst
        for holder in late:
            for flight in holder.flights:
                gain = self._gain(flight, holder, source, now)
                if gain > latest and not wanted.isdisjoint(flight.pieces.tolist()):
                    worst, latest = flight.pieces, gain
        return np.array([piece for piece in worst.tolist() if piece in wanted][:limit], np.int64)

    def _late(self, source: _Source[Peer], now: float) -> list[Flight[Peer]]:
        """Requests, asked once, that take longer than this source's usually do: another of its lanes may be quicker."""
        waits = (flight for flight in source.flights if (self._copies[flight.pieces] < self.tuning.copies).all())
        return [each for each in waits if source.lanes and source.rate and now - each.since > each.size / source.rate]

    def _in_time(self, holder: _Source[Peer], source: _Source[Peer], now: float) -> bool:
        """Whether a look at its oldest request shows that `_gain` is 0 for all of them."""
        oldest = now - holder.flights[0].since
        if self._opens or not source.rate:
            return oldest <= self.tuning.late
        if 2 * holder.rate < source.rate:  # this source is so much faster that even what is not late gains
            return False
        return oldest < self._least / holder.rate or oldest <= 2 * self._least / source.rate + MARGIN

    def _wanted(self, source: _Source[Peer]) -> set[int]:
        """Pieces that may be asked of `source` although somebody else was asked for them."""
        wanted = source.have & ~self.have
        wanted &= self._copies < self.tuning.copies
        for flight in source.flights:
            wanted[flight.pieces] = False
        return set(np.flatnonzero(wanted).tolist())

    def _gain(self, flight: Flight[Peer], holder: _Source[Peer], source: _Source[Peer], now: float) -> float:
        """Seconds that asking `source`, too, is expected to save; 0 if the request is not worth doubting."""
        age = now - flight.since
        expected = flight.size / holder.rate if holder.rate else self.tuning.late
        left = expected - age if age < expected else age  # overdue: as long again
        if self._opens or not source.rate:  # work elsewhere, or no idea of the speed: help only what is very late
            return left if age > max(self.tuning.late, self.tuning.patience * expected) else 0.0
        here = flight.size / source.rate
        return left - here if left > 2 * here + MARGIN else 0.0

    def _fly(
        self, peer: Peer, source: _Source[Peer], pieces: NDArray[np.int64], count: int, now: float
    ) -> Flight[Peer]:
        self._copies[pieces] += 1
        opened = int(self._open[pieces].sum())
        self._open[pieces] = False
        self._opens -= opened
        flight = Flight(peer, pieces, count, min(self._size, count * self._piece_size), now)
        source.flights.append(flight)
        return flight

    def _end(self, flight: Flight[Peer]) -> None:
        source = self._sources.get(flight.source)
        if source is None or flight not in source.flights:
            return
        source.flights.remove(flight)
        pieces = flight.pieces
        self._copies[pieces] -= 1
        free = pieces[(self._copies[pieces] == 0) & ~self.have[pieces]]
        self._open[free] = True
        self._opens += len(free)

    def _pointless(self, new: Sequence[int]) -> list[Flight[Peer]]:
        """Requests all of whose pieces are here, at least one of them since just now."""
        doubled = {piece for piece in new if self._copies[piece]}
        if not doubled:
            return []
        return [
            flight
            for source in self._sources.values()
            for flight in source.flights
            if not doubled.isdisjoint(flight.pieces.tolist()) and self.have[flight.pieces].all()
        ]
