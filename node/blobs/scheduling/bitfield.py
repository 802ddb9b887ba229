"""Which pieces a node has, as one bit per piece: lowest bit of the first byte first, spare bits zero."""

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolError

Flags = NDArray[np.bool_]
"""bool[pieces]"""


def pack(flags: Flags) -> bytes:
    """The bits of `flags`: bool[pieces] -> ceil(pieces / 8) bytes."""
    return np.packbits(flags, bitorder="little").tobytes()


def unpack(data: bytes, count: int) -> Flags:
    """The inverse of `pack`; raises ProtocolError unless `data` is exactly a map of `count` pieces."""
    if len(data) != -(-count // 8):
        raise ProtocolError("bad piece map", f"{len(data)} bytes for {count} pieces")
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[count:].any():
        raise ProtocolError("bad piece map", f"it names pieces beyond the {count} that there are")
    return bits[:count].astype(np.bool_)


def full(count: int) -> Flags:
    """The map of who has everything."""
    return np.ones(count, np.bool_)
