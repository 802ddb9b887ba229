"""Turns: who writes next on a connection, and how much at once.

News (gossip, pings, answers of a few KiB, the multiplexer's own frames) goes before bulk (pieces). A turn lasts
TURN_SECONDS on the line at the rate that the line has shown, so that news waits no longer than that for the piece in
front of it. Knows sizes and times; knows nothing of streams or sockets.
"""

from collections import deque

import trio

TURN_SECONDS = 0.025


class Turns:
    """A lock with two queues. `enter` and `leave` around each turn; one that is free is taken without a turn of the
    event loop."""

    def __init__(self) -> None:
        self.held = False
        self._news: deque[trio.Event] = deque()
        self._bulk: deque[trio.Event] = deque()
        self._ahead = 0  # bytes of news that went before bulk that waits

    async def enter(self, *, bulk: bool) -> None:
        if not self.held:
            self.held = True
            return
        queue, turn = self._bulk if bulk else self._news, trio.Event()
        queue.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._pass_on(0)
            else:
                queue.remove(turn)
            raise

    def leave(self, size: int, most: int, *, bulk: bool) -> None:
        """Pass the turn on. size: bytes that were written; most: those of a whole turn."""
        self._ahead = 0 if bulk or not self._bulk else self._ahead + size
        self._pass_on(most)

    def _pass_on(self, most: int) -> None:
        # Turns of news after which bulk that waits has one: a fifth of the line at least.
        bulk_is_due = self._bulk and (not self._news or self._ahead >= 4 * most > 0)
        queue = self._bulk if bulk_is_due else self._news
        self.held = bool(queue)
        if queue:
            queue.popleft().set()


class LinePace:
    """turn: bytes that may be written at once. The line's rate is what it took between two moments at which it took no
    more, or, as a lower bound, what it took in a while in which it always took more. The clock is an argument."""

    def __init__(self, first: int, most: int, *, span: float = 0.1) -> None:
        self._span = span  # seconds over which the line's rate is measured, at least
        self.turn = first
        self._most = most
        self._since = self._last = float("-inf")
        self._from_full = self._waits = False
        self._bytes = 0

    def begins(self, now: float) -> None:
        """A write begins."""
        self._waits = False
        # Seconds without a write after which the measurement begins anew: the line may have run dry.
        if now - self._last > 0.05:
            self._restart(now, full=False)

    def full(self, now: float) -> None:
        """The line takes no more at once."""
        self._waits = True
        if self._from_full and now - self._since >= self._span:
            self.turn = self._turn(now)
            self._restart(now, full=True)
        elif not self._from_full:
            self._restart(now, full=True)

    def took(self, size: int, now: float) -> None:
        """A write ended."""
        self._bytes += size
        self._last = now
        if not self._waits and now - self._since >= 2 * self._span:
            self.turn = max(self.turn, self._turn(now))
            self._restart(now, full=False)

    def _turn(self, now: float) -> int:
        # Bytes. 33 ms at 1 Mbit/s; less would be mostly headers and wake-ups.
        return int(min(self._most, max(4 * 1024, self._bytes / (now - self._since) * TURN_SECONDS)))

    def _restart(self, now: float, *, full: bool) -> None:
        self._since, self._from_full, self._bytes = now, full, 0
