"""What one peer says on its stream: heard by the connection's reader as it comes, and by a task what is much.

A task that is woken for each packet costs a turn of the event loop, which is more than a packet does.
"""

from collections.abc import Callable, Iterator

import trio

from node.network.budget import TokenBucket
from node.network.packets import Cutter
from node.network.yamux import Stream

AT_ONCE = 8
"""Pieces that are worked off without letting others run."""
PIECE_BYTES = 2048
"""Of a packet: one that is longer counts for more pieces."""
HEARD = (400.0, 2000.0)
"""Pieces of one peer, per second and in a burst. Who says more is heard later: a message that came before costs no
signature, and no other budget."""


class Inbox:
    """hear: works a packet off, in one piece at least; heard: called after several pieces. Both are quick."""

    def __init__(
        self, stream: Stream, limit: int, hear: Callable[[bytes], Iterator[None]], heard: Callable[[], None]
    ) -> None:
        self._scope = trio.CancelScope()
        self._closed = False
        self._stream = stream
        self._hear = hear
        self._heard = heard
        self._pieces = self._cut(Cutter(limit))
        self._budget = TokenBucket(*HEARD)
        self._behind = trio.Event()
        self._ended: Exception | None = None

    async def run(self) -> None:
        """Until it is closed. Raises what ended the stream, or `hear`, and ValueError for a packet beyond the limit."""
        try:
            with self._scope:
                self._stream.listen(self._arrived)
                while True:
                    await self._behind.wait()
                    if self._ended is not None:
                        raise self._ended
                    await trio.sleep(self._debt())
                    self._work()
        finally:
            self._closed = True

    def close(self) -> None:
        """Nothing is heard from now on."""
        self._closed = True
        self._scope.cancel()

    def _arrived(self) -> None:
        if self._closed or self._behind.is_set():
            return
        if self._debt():
            self._behind.set()
        else:
            self._work()

    def _debt(self) -> float:
        """Seconds until more may be heard."""
        return self._budget.delay(trio.current_time())

    def _work(self) -> None:
        """Some pieces; `_behind` says whether more are here."""
        try:
            room = AT_ONCE
            while room > 0 and (count := next(self._pieces)):
                room -= count
            self._budget.charge(AT_ONCE - room)
            if room <= 0:
                self._behind.set()
            elif self._behind.is_set():
                self._behind = trio.Event()
        except Exception as error:
            self._ended = error
            self._behind.set()
        self._heard()

    def _cut(self, cutter: Cutter) -> Iterator[int]:
        """How many pieces each counts for, once it is worked off; 0 whenever nothing is left."""
        while True:
            while not (data := self._stream.read_now()):
                yield 0
            for packet in cutter.cut(data):
                count = 1 + len(packet) // PIECE_BYTES
                for _ in self._hear(packet):
                    yield count
                    count = 1
