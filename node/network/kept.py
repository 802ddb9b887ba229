"""Streams whose last answer came whole, kept for further requests: negotiating a new one costs milliseconds of CPU.

Knows streams by whom they lead to and what they speak; decides which to use and which to give up, and closes none.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

from node.recent import Recent
from protocol.identity import Address

MOST_KEPT = 8
"""Idle streams of one peer and protocol."""
MAX_PLACES = 1024
IDLE_SECONDS = 10.0
"""After which a stream is not used any more: well before the other side closes it (wire: KEEP_SECONDS)."""


class Keepable(Protocol):
    """What this module needs of a stream."""

    @property
    def closed(self) -> bool: ...


S = TypeVar("S", bound=Keepable)


class KeptStreams(Generic[S]):
    """The clock is an argument: seconds, monotonic."""

    def __init__(self) -> None:
        self._idle: Recent[tuple[Address, str], deque[tuple[float, S]]] = Recent(MAX_PLACES, refresh=True)

    def take(self, peer: Address, protocol: str, now: float) -> tuple[S | None, list[S]]:
        """(the stream used last, if one is fit for use; those that were given up: too old, or closed by the peer)."""
        idle = self._idle.get((peer, protocol))
        given_up: list[S] = []
        while idle and idle[0][0] < now - IDLE_SECONDS:
            given_up.append(idle.popleft()[1])
        while idle:
            stream = idle.pop()[1]
            if not stream.closed:
                return stream, given_up
            given_up.append(stream)
        return None, given_up

    def put(self, peer: Address, protocol: str, stream: S, now: float) -> list[S]:
        """Keep a stream for later; returns those that were given up for it."""
        place = (peer, protocol)
        idle = self._idle.get(place, deque[tuple[float, S]]())
        idle.append((now, stream))
        self._idle[place] = idle
        return [idle.popleft()[1]] if len(idle) > MOST_KEPT else []
