"""Which requests under way are doubtful: they are asked of another source, or by another lane, too. And which have
become pointless by that.

What a piece that lands costs must not grow with all that is under way, or many sources stall the loop: so a source's
oldest request stands for its others.
"""

from collections.abc import Sequence
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from node.blobs.scheduling.pieces import PieceTable
from node.blobs.scheduling.sources import BlobSource, Flight, Peer, Tuning

MARGIN = 0.1
"""Seconds that asking a second source must save, at least."""


class Doubts(Generic[Peer]):
    """least: bytes of the smallest request."""

    def __init__(self, pieces: PieceTable, sources: dict[Peer, BlobSource[Peer]], least: int, tuning: Tuning) -> None:
        self._pieces, self._sources, self._least, self._tuning = pieces, sources, least, tuning

    def overdue(self, peer: Peer, source: BlobSource[Peer], limit: int, now: float) -> NDArray[np.int64]:
        """Pieces that another source is delivering too slowly, and that this one would deliver sooner."""
        if self._pieces.opens and now - source.doubted_at < self._tuning.late / 4:
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

    def late(self, source: BlobSource[Peer], now: float) -> list[Flight[Peer]]:
        """Requests, asked once, that take longer than this source's usually do: another of its lanes may be quicker."""
        copies, most = self._pieces.copies, self._tuning.copies
        waits = (flight for flight in source.flights if (copies[flight.pieces] < most).all())
        return [each for each in waits if source.lanes and source.rate and now - each.since > each.size / source.rate]

    def _in_time(self, holder: BlobSource[Peer], source: BlobSource[Peer], now: float) -> bool:
        """Whether a look at its oldest request shows that `_gain` is 0 for all of them."""
        oldest = now - holder.flights[0].since
        if self._pieces.opens or not source.rate:
            return oldest <= self._tuning.late
        if 2 * holder.rate < source.rate:  # this source is so much faster that even what is not late gains
            return False
        return oldest < self._least / holder.rate or oldest <= 2 * self._least / source.rate + MARGIN

    def _wanted(self, source: BlobSource[Peer]) -> set[int]:
        """Pieces that may be asked of `source` although somebody else was asked for them."""
        wanted = source.have & ~self._pieces.have
        wanted &= self._pieces.copies < self._tuning.copies
        for flight in source.flights:
            wanted[flight.pieces] = False
        return set(np.flatnonzero(wanted).tolist())

    def _gain(self, flight: Flight[Peer], holder: BlobSource[Peer], source: BlobSource[Peer], now: float) -> float:
        """Seconds that asking `source`, too, is expected to save; 0 if the request is not worth doubting."""
        age = now - flight.since
        expected = flight.size / holder.rate if holder.rate else self._tuning.late
        left = expected - age if age < expected else age  # overdue: as long again
        # Work elsewhere, or no idea of the speed: help only what is very late.
        if self._pieces.opens or not source.rate:
            return left if age > max(self._tuning.late, self._tuning.patience * expected) else 0.0
        here = flight.size / source.rate
        return left - here if left > 2 * here + MARGIN else 0.0

    def pointless(self, new: Sequence[int]) -> list[Flight[Peer]]:
        """Requests all of whose pieces are here, at least one of them since just now."""
        doubled = {piece for piece in new if self._pieces.copies[piece]}
        if not doubled:
            return []
        return [
            flight
            for source in self._sources.values()
            for flight in source.flights
            if not doubled.isdisjoint(flight.pieces.tolist()) and self._pieces.have[flight.pieces].all()
        ]
