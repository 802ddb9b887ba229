"""What is to be sent to one peer: a bounded queue, and whoever writes it into a stream."""

from collections import deque

import trio

from node.network.yamux import BODY_BYTES, Stream

MOST_BYTES = 4 * 1024**2
"""Waiting for one peer: who takes nothing for so long is left, and greeted anew."""
AT_ONCE = BODY_BYTES
"""Bytes of waiting packets that are written together: one frame."""


class Line:
    """scope: of the task that keeps it."""

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.stream: Stream | None = None
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news = trio.Event()
        self._writing = self._turned = False

    def begin(self, stream: Stream) -> None:
        """What is sent from now on goes there."""
        self._waiting.clear()
        self._bytes = 0
        self.stream = stream

    def turn(self) -> None:
        """There may be a better way."""
        self._turned = True
        self._news.set()

    def stop(self) -> None:
        self.stream = None

    def send(self, packet: bytes) -> None:
        """With the next `flush`. Dropped while there is no stream: a greeted peer is told what it missed."""
        if self.stream is not None:
            self._waiting.append(packet)
            self._bytes += len(packet)

    def flush(self) -> None:
        """Write what waits, in as few pieces as it takes. What the connection does not take now is its task's to write,
        who would need two turns of the event loop for all of it."""
        while self._waiting and self.stream is not None:
            if self._writing or self._turned or not self._write_now(self.stream):
                self._news.set()
                return

    def _write_now(self, stream: Stream) -> bool:
        batch = self._taken()
        if stream.write_now(batch):
            return True
        self._waiting.appendleft(batch)
        self._bytes += len(batch)
        return False

    async def write(self) -> bool:
        """Until the peer takes no more, or there may be a better way: whether that is why. Raises MuxedStreamError."""
        while (stream := self.stream) and not stream.send_closed and self._bytes < MOST_BYTES:
            if self._turned:
                self._turned = False
                return True
            if self._waiting:
                self._writing = True
                try:
                    await stream.write(self._taken())
                finally:
                    self._writing = False
            else:
                self._news = trio.Event()
                await self._news.wait()
        return False

    def _taken(self) -> bytes:
        first = self._waiting.popleft()
        packets, size = [first], len(first)
        while self._waiting and size + len(self._waiting[0]) <= AT_ONCE:
            packets.append(self._waiting.popleft())
            size += len(packets[-1])
        self._bytes -= size
        return b"".join(packets)

    def look(self) -> None:
        """Its connection may be gone."""
        self._news.set()
