"""Sources of one blob: what each has, how fast it is, and how many requests keep it busy."""

from collections.abc import Hashable
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.blobs.scheduling.bitfield import Flags

Peer = TypeVar("Peer", bound=Hashable)


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


class BlobSource(Generic[Peer]):
    """What we know of one source. have: its map; chooses: it decides itself which pieces it sends (super-seeding)."""

    def __init__(self, count: int, tuning: Tuning) -> None:
        self._tuning = tuning
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
        self.window: float = tuning.depth[0]  # requests that may be in flight
        self.lanes = 0

    @property
    def has_room(self) -> bool:
        """For one more request."""
        flights = self.flights
        if not flights:
            return True
        return len(flights) < int(self.window) and sum(each.size for each in flights) < self._tuning.source_bytes

    def waited(self, seconds: float) -> None:
        """Keep as many requests here that it never runs out of them, and hardly more. seconds: that one waited for its
        turn."""
        least, most = self._tuning.depth
        short, long = self._tuning.queued
        if seconds < short:
            self.window = min(most, self.window + 1)
        elif seconds > long:
            self.window = max(least, self.window - 0.5)

    def delivered(self, flight: Flight[Peer], size: int, now: float) -> None:
        """So many bytes of a request: how fast it is by one, and as a whole, over spans in which it was never idle."""
        rate = size / max(1e-6, now - flight.since)
        self.rate = 0.7 * self.rate + 0.3 * rate if self.rate else rate
        if not self.counted:
            self.counted_since = max(self.counted_since, flight.since)
        self.counted += size
        span = now - self.counted_since
        if span < 0.05:  # seconds over which a source's rate is measured, at least
            return
        rate = self.counted / span
        self.whole = 0.7 * self.whole + 0.3 * rate if self.whole else rate
        self.counted, self.counted_since = 0, now

    def slowed(self, flight: Flight[Peer], now: float) -> None:
        """A request was given up as too slow: it is expected to be as slow again."""
        rate = flight.size / max(1e-6, now - flight.since)
        self.rate = min(self.rate, rate) if self.rate else rate
