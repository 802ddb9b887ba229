"""Bounded byte streams: a length, then the bytes themselves or their zstd frame, whichever is shorter.

A frame is opened only after its own header has promised exactly the length that the reader asked for, so hostile
bytes cannot make a reader allocate more than it meant to. Knows nothing of what the bytes mean.
"""

import struct
from typing import Any, cast

import zstandard

from protocol.errors import ProtocolError

_LENGTHS = struct.Struct("<II")
# A frame may ask for a window of gigabytes, which a decoder takes before the first byte comes out.
_MAX_WINDOW = 1 << 24

# Our streams have few repeats but skewed symbols: a tiny match finder leaves nearly all of the work to the entropy
# coder, which is both smaller and faster here than any numbered level.
_LITERALS = zstandard.ZstdCompressionParameters(
    window_log=17,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    strategy=zstandard.STRATEGY_FAST,
    write_content_size=True,
    write_checksum=False,
)


class PackedError(ProtocolError):
    """A packed stream that is cut off, longer than allowed or not what it promises."""

    def __init__(self, why: str) -> None:
        super().__init__("bad packed stream", why)


def pack(data: bytes | memoryview) -> bytes:
    """`data` (less than 4 GiB) as one section."""
    view = memoryview(data).cast("B")
    frame = zstandard.ZstdCompressor(compression_params=_LITERALS).compress(cast(Any, view)) if len(view) > 32 else b""
    body = frame if frame and len(frame) < len(view) else bytes(view)
    return _LENGTHS.pack(len(view), len(body)) + body


class PackedReader:
    """Takes sections and plain structs off the front of `data`; raises PackedError."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._rest = memoryview(data).cast("B")

    @property
    def left(self) -> int:
        """Bytes not yet taken."""
        return len(self._rest)

    def take(self, count: int) -> memoryview:
        """The next `count` bytes, not copied."""
        if not 0 <= count <= len(self._rest):
            raise PackedError(f"{count} bytes are promised, {len(self._rest)} are left")
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        """One struct."""
        return form.unpack(self.take(form.size))

    def section(self, least: int, most: int) -> bytes | memoryview:
        """The bytes of one section, if their number lies within the bounds."""
        size, packed = cast(tuple[int, int], self.unpack(_LENGTHS))
        if not least <= size <= most or packed > size:
            raise PackedError(f"a stream of {size} bytes ({packed} packed) where {least} to {most} belong")
        body = self.take(packed)
        return body if packed == size else _inflate(body, size)

    def skip(self) -> None:
        """Pass over one section, unopened."""
        _, packed = cast(tuple[int, int], self.unpack(_LENGTHS))
        self.take(packed)

    def end(self) -> None:
        """Nothing may be left."""
        if self._rest:
            raise PackedError(f"{len(self._rest)} bytes too many")


def _inflate(frame: memoryview, size: int) -> bytes:
    try:
        header = zstandard.get_frame_parameters(cast(Any, frame))
        if header.content_size != size or header.window_size > _MAX_WINDOW or header.dict_id:
            raise PackedError("a frame does not promise the length that was announced")
        data = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompress(
            cast(Any, frame), max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise PackedError(str(error)[:200]) from error
    if len(data) != size:
        raise PackedError(f"a frame holds {len(data)} bytes instead of {size}")
    return data
