"""Packets of libp2p's protocols in a stream: a length as a varint, then so many bytes."""

from collections.abc import Iterator

from google.protobuf.message import Message
from libp2p.utils.varint import encode_uvarint

from node.network.yamux import YamuxStream

MAX_SHIFT = 28
"""Of a packet's length: more bytes than this say nothing that a limit allows."""


def packet(message: Message) -> bytes:
    """A message as it stands in a stream."""
    body = message.SerializeToString()
    return encode_uvarint(len(body)) + body


async def next_packet(stream: YamuxStream, limit: int) -> bytes | None:
    """The body of the next one, and no byte behind it; None at the end. Raises ValueError for one beyond the limit."""
    begun = bytearray()
    while (head := _head(begun, 0, limit)) is None:
        byte = await stream.read_exactly(1)
        if not byte:
            return None
        begun += byte
    _, length = head
    body = await stream.read_exactly(length)
    return body if len(body) == length else None


class Cutter:
    """Cuts what a stream brings into packets, where nothing else follows them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rest = bytearray()

    def cut(self, arrived: bytes) -> Iterator[bytes]:
        """The packets that are now whole. Raises ValueError for one beyond the limit, before it is here."""
        whole = arrived
        if self._rest:
            self._rest += arrived
            whole = self._rest
        start = 0
        try:
            while (head := _head(whole, start, self._limit)) is not None and start + sum(head) <= len(whole):
                width, length = head
                start += width + length
                yield bytes(whole[start - length : start])
        finally:
            if self._rest:
                del self._rest[:start]
            else:
                self._rest += arrived[start:]


def _head(begun: bytes | bytearray, start: int, limit: int) -> tuple[int, int] | None:
    """How long the length at `start` is, and the length; None while it is not whole. Raises ValueError beyond the
    limit."""
    length = shift = 0
    for width, byte in enumerate(begun[start : start + MAX_SHIFT // 7 + 2], 1):
        length |= (byte & 0x7F) << shift
        if length > limit or shift > MAX_SHIFT:
            raise ValueError("the packet is longer than the limit")
        if byte < 0x80:
            return width, length
        shift += 7
    return None
