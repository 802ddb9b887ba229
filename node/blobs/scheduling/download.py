"""Which pieces of one blob to ask of which source next.

Rarest first, ties broken at random, so that nodes which fetch at the same time soon have different pieces to share.
A source's next request is as large as what it delivers, by all its requests together, in a moment: slow ones hold
little back. Near the end, when every missing piece has been asked for, the slowest requests are asked of a faster
source, too, and the loser is cancelled.

What a piece that lands costs must not grow with all that is under way, or many sources stall the loop: so counts are
kept along.

Knows maps, requests in flight and times; knows nothing of bytes, hashes or the network.
"""

from collections.abc import Iterable
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from node.blobs.scheduling.bitfield import Flags
from node.blobs.scheduling.doubts import Doubts
from node.blobs.scheduling.pieces import PieceTable
from node.blobs.scheduling.sources import BlobSource, Flight, Peer, Tuning


class Download(Generic[Peer]):
    """The state of one blob's transfer. have: bool[pieces], what is here already."""

    def __init__(self, size: int, piece_size: int, have: Flags, seed: int, tuning: Tuning | None = None) -> None:
        self._pieces = PieceTable(have, seed)
        self.have = self._pieces.have
        self.tuning = tuning or Tuning()
        self._size = size
        self._piece_size = piece_size
        self._count = len(have)
        self._sources: dict[Peer, BlobSource[Peer]] = {}
        self._doubts = Doubts(self._pieces, self._sources, min(size, piece_size), self.tuning)

    # -- what is known -----------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        return self._pieces.missing == 0

    @property
    def ending(self) -> bool:
        """Whether everything that is missing has been asked for."""
        return self._pieces.opens == 0

    @property
    def done(self) -> int:
        """Bytes that are here."""
        last = bool(self._count and self.have[-1])
        whole = (self._count - self._pieces.missing) * self._piece_size
        return whole - last * (self._count * self._piece_size - self._size)

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
        return ~self._pieces.open

    def add(self, peer: Peer) -> None:
        """Use `peer`, once its map is known."""
        if peer not in self._sources:
            self._sources[peer] = BlobSource(self._count, self.tuning)

    def remove(self, peer: Peer) -> list[Flight[Peer]]:
        """Forget a source; returns its requests, which the caller must end."""
        source = self._sources.get(peer)
        if source is None:
            return []
        # Its map must not count any more for how rare a piece is.
        self.learn(peer, np.zeros(self._count, np.bool_))
        flights = list(source.flights)
        for flight in flights:
            self.failed(flight)
        del self._sources[peer]
        return flights

    def learn(self, peer: Peer, have: Flags, *, chooses: bool = False) -> None:
        """A source's map, as it says. bool[pieces]"""
        source = self._sources[peer]
        self._pieces.rarity += have
        self._pieces.rarity -= source.have
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
        if source is None or now < source.closed_until or not self._pieces.missing or not source.has_room:
            return None
        limit = self._request_pieces(source)
        if self._may_choose(peer, source):
            unknown = sum(flight.count for flight in source.flights if not len(flight.pieces))
            left = self._pieces.opens - unknown
            if left > (0 if source.lanes else 2 * limit):
                return self._fly(peer, source, np.zeros(0, np.int64), min(limit, left), now)
            if unknown and not self._doubts.late(source, now):
                return None  # what we would name now may be what it has chosen
        candidates = np.flatnonzero(source.have & self._pieces.open) if self._pieces.opens else ()
        if len(candidates):
            pieces = self._pieces.rarest(np.asarray(candidates), limit)
        else:
            pieces = self._doubts.overdue(peer, source, limit, now)
            if not len(pieces) and self.ending and (late := self._doubts.late(source, now)):
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
            source.waited(waited)
        if source is not None and size:
            source.delivered(flight, size, now)
        new = self.take(good)
        self._end(flight)
        return self._doubts.pointless(new)

    def take(self, pieces: Iterable[int]) -> list[int]:
        """Pieces that are here now, by whatever way; returns those that are new."""
        return self._pieces.took(pieces)

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
            source.slowed(flight, now)

    def _may_choose(self, peer: Peer, source: BlobSource[Peer]) -> bool:
        """Only the one source that has everything: two would choose the same pieces."""
        return source.chooses and all(other == peer or not each.full for other, each in self._sources.items())

    def _request_pieces(self, source: BlobSource[Peer]) -> int:
        """As many as it delivers in a moment, and fewer towards the end, so that all sources end together."""
        most = max(1, self.tuning.request_bytes // self._piece_size)
        usual = int(max(source.whole, source.rate) * self.tuning.request_seconds / self._piece_size)
        share = -(-self._pieces.opens // (2 * max(1, len(self._sources))))
        return max(1, min(most, usual, share))

    def _fly(
        self, peer: Peer, source: BlobSource[Peer], pieces: NDArray[np.int64], count: int, now: float
    ) -> Flight[Peer]:
        self._pieces.asked(pieces)
        flight = Flight(peer, pieces, count, min(self._size, count * self._piece_size), now)
        source.flights.append(flight)
        return flight

    def _end(self, flight: Flight[Peer]) -> None:
        source = self._sources.get(flight.source)
        if source is None or flight not in source.flights:
            return
        source.flights.remove(flight)
        self._pieces.unasked(flight.pieces)
