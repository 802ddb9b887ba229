"""Packets of libp2p's protocols in a stream: a length as a varint, then so many bytes."""

from collections.abc import Iterator

from node.network.yamux import Stream

MAX_SHIFT = 28
"""Of a packet's length: more bytes than this say nothing that a limit allows."""


async def packet(stream: Stream, limit: int) -> bytes | None:
    """The next one, and no byte behind it; None at the end. Raises ValueError for one beyond the limit."""
    length = shift = 0
    while True:
        byte = await stream.read_exactly(1)
        if not byte:
            return None
        length |= (byte[0] & 0x7F) << shift
        if length > limit or shift > MAX_SHIFT:
            raise ValueError("the packet is longer than the limit")
        if byte[0] < 0x80:
            break
        shift += 7
    packet = await stream.read_exactly(length)
    return packet if len(packet) == length else None


class Cutter:
    """Cuts what a stream brings into packets, where nothing else follows them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    def cut(self, arrived: bytes) -> Iterator[bytes]:
        """The packets that are now whole. Raises ValueError for one beyond the limit, before it is here."""
        self._rest += arrived
        start = 0
        try:
            while (head := self._head(start)) is not None and start + sum(head) <= len(self._rest):
                width, length = head
                start += width + length
                yield bytes(self._rest[start - length : start])
        finally:
            del self._rest[:start]

    def _head(self, start: int) -> tuple[int, int] | None:
        """Bytes of a length, and the length; None while it is not whole."""
        length = shift = 0
        for width, byte in enumerate(self._rest[start : start + MAX_SHIFT // 7 + 2], 1):
            length |= (byte & 0x7F) << shift
            if length > self._limit or shift > MAX_SHIFT:
                raise ValueError("the packet is longer than the limit")
            if byte < 0x80:
                return width, length
            shift += 7
        return None
