"""One request and one response on one stream, with bounds before allocation.

request:  u32be length | body
response: u8 status | u32be length | body

Knows bytes and limits; knows nothing of who asks or what it means.
"""

from typing import Protocol

CHUNK = 256 * 1024
"""Bytes per read and write. Writes above 6 MB break the transport; see docs/decisions.md."""

OK = 0
BUSY = 1
TOO_LARGE = 2
FAILED = 3
REASONS = {BUSY: "it is busy, or we asked too much", TOO_LARGE: "the request is larger than it accepts"}
RESPONSE_HEADER = 5


class Stream(Protocol):
    """What this module needs of a stream. `read` returns 1..n bytes; its end raises or returns nothing."""

    async def read(self, n: int | None = None) -> bytes: ...
    async def write(self, data: bytes) -> None: ...


class WireError(Exception):
    """The other side closed early, or announced more than the limit. `announced` is that length, or -1."""

    def __init__(self, message: str, announced: int = -1) -> None:
        super().__init__(message)
        self.announced = announced


async def read_exact(stream: Stream, count: int) -> bytes:
    """Exactly `count` bytes; memory grows with what arrives, not with what was announced."""
    if count <= 0:
        return b""
    first = await stream.read(min(count, CHUNK))
    if len(first) == count:
        return first
    data = bytearray(first)
    while first and len(data) < count:
        first = await stream.read(min(count - len(data), CHUNK))
        data += first
    if len(data) < count:
        raise WireError(f"the stream ended after {len(data)} of {count} bytes")
    return bytes(data)


async def _read_body(stream: Stream, limit: int) -> bytes:
    length = int.from_bytes(await read_exact(stream, 4))
    if length > limit:
        raise WireError(f"{length} bytes announced, at most {limit} allowed", length)
    return await read_exact(stream, length)


async def _write_all(stream: Stream, header: bytes, body: bytes) -> None:
    if len(body) <= CHUNK:
        await stream.write(header + body)
        return
    await stream.write(header)
    view = memoryview(body)
    for offset in range(0, len(body), CHUNK):
        await stream.write(bytes(view[offset : offset + CHUNK]))


async def write_request(stream: Stream, body: bytes) -> None:
    await _write_all(stream, len(body).to_bytes(4), body)


async def read_request(stream: Stream, limit: int) -> bytes:
    return await _read_body(stream, limit)


async def write_response(stream: Stream, status: int, body: bytes) -> None:
    await _write_all(stream, bytes([status]) + len(body).to_bytes(4), body)


async def read_response(stream: Stream, limit: int) -> tuple[int, bytes]:
    """(status, body)."""
    status = (await read_exact(stream, 1))[0]
    return status, await _read_body(stream, limit)
