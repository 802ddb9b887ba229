"""Requests and responses on one stream, one after the other, with bounds before allocation.

request:  u32be length, its highest bit set if the stream is kept for a further request | body
response: u8 status | u32be length | body

Knows bytes and limits; knows nothing of who asks or what it means.
"""

from typing import Protocol

# most of what a new stream costs is negotiation; who asks the old way finds the stream closed after the answer
KEEP = 1 << 31

OK = 0
BUSY = 1
TOO_LARGE = 2
FAILED = 3
REASONS = {BUSY: "it is busy, or we asked too much", TOO_LARGE: "the request is larger than it accepts"}
RESPONSE_HEADER = 5


class Stream(Protocol):
    """What this module needs of a stream."""

    async def read_exactly(self, n: int) -> bytes: ...
    async def write(self, data: bytes | memoryview, *, head: bytes = b"", bulk: bool = False) -> None: ...


class WireError(Exception):
    """The other side closed early, or announced more than the limit. `announced` is that length, or -1."""

    def __init__(self, message: str, announced: int = -1) -> None:
        super().__init__(message)
        self.announced = announced


class Ended(WireError):
    """The other side closed, and nothing of what we wait for had come."""


async def _read(stream: Stream, count: int) -> bytes:
    data = await stream.read_exactly(count) if count else b""
    if len(data) < count:
        raise WireError(f"the stream ended after {len(data)} of {count} bytes")
    return data


async def _begin(stream: Stream, count: int) -> bytes:
    """The first `count` bytes of something. Raises Ended if there is nothing."""
    data = await stream.read_exactly(count)
    if not data:
        raise Ended("the stream ended")
    return data + await _read(stream, count - len(data))


async def _read_body(stream: Stream, length: int, limit: int) -> bytes:
    if length > limit:
        raise WireError(f"{length} bytes announced, at most {limit} allowed", length)
    return await _read(stream, length)


async def write_request(stream: Stream, body: bytes, *, keep: bool = False) -> None:
    """keep: further requests may come on this stream, so that it is not closed after the answer."""
    await stream.write(body, head=(len(body) | (KEEP if keep else 0)).to_bytes(4))


async def read_request(stream: Stream, limit: int) -> tuple[bytes, bool]:
    """(body, keep). Raises Ended if the stream ended before it, WireError for one that is cut or too long."""
    head = int.from_bytes(await _begin(stream, 4))
    return await _read_body(stream, head & ~KEEP, limit), bool(head & KEEP)


async def write_response(stream: Stream, status: int, body: bytes, *, bulk: bool = False) -> None:
    """bulk: what else is to be said over the connection goes first."""
    await stream.write(body, head=bytes([status]) + len(body).to_bytes(4), bulk=bulk)


async def read_response(stream: Stream, limit: int) -> tuple[int, bytes]:
    """(status, body). Raises as `read_request` does."""
    head = await _begin(stream, RESPONSE_HEADER)
    return head[0], await _read_body(stream, int.from_bytes(head[1:]), limit)
