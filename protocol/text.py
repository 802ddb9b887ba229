"""Token streams, and which of their rows a peer learns from: the data cursor.

A stream is a header and the tokens of a data set's documents, one after another, each ended by the end token:

    magic "INX\\x01" | bytes of a token: 2 or 4 | 3 zero bytes | end token u32 | vocabulary u32 | tokens u64 |
    BLAKE3 of tokenizer.json, 32 bytes | BLAKE3 of the text that it was made of, 32 bytes | tokens, little-endian

Row w of L tokens begins at token w * L and has one token more, as the last one's target. The rows of every peer follow
from the run alone. All peers and steps share one line of places: row i of inner step s of replica p is place
(s * rows + i) * replicas + p, so no two replicas ever have the same one. Each period of sum(weights) places holds every
data set exactly as often as its weight says, in an order of its own; the rows of a data set come in a pseudo-random
order, each once before any comes again. Pure; the bytes come from whoever maps the files.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ProtocolError

HEADER_BYTES = 88
# Beyond any text there is; products of it with a token's width stay within 64 bits.
MAX_TOKENS = 1 << 40
_MAGIC = b"INX\x01"
_HEADER = struct.Struct("<4sB3xIIQ32s32s")
_MIX = "intellect-node mix of text v1"
_ORDER = "intellect-node order of rows v1"


class TextError(ProtocolError):
    """A token stream that cannot be used."""

    def __init__(self, why: str, remedy: str = "make it again from its text") -> None:
        super().__init__("unusable token stream", why, remedy)


class StreamHeader(NamedTuple):
    """width: bytes of a token; end: the token that ends a document; tokenizer, source: 32 bytes each."""

    width: int
    end: int
    vocabulary: int
    tokens: int
    tokenizer: bytes
    source: bytes

    def rows(self, sequence: int) -> int:
        """How many rows of `sequence` tokens and a target there are."""
        return max(self.tokens - 1, 0) // sequence

    def encode(self) -> bytes:
        return _HEADER.pack(_MAGIC, *self)


def read_header(data: bytes | memoryview, size: int) -> StreamHeader:
    """Of a stream of `size` bytes whose first are `data`. Raises TextError."""
    if len(data) < HEADER_BYTES:
        raise TextError("it is shorter than its header")
    magic, *fields = _HEADER.unpack(bytes(data[:HEADER_BYTES]))
    header = StreamHeader(*fields)
    if magic != _MAGIC or bytes(data[5:8]) != bytes(3):
        raise TextError("it is none, or one of another version")
    if header.width not in (2, 4) or not 0 < header.tokens <= MAX_TOKENS:
        raise TextError(f"it says that it has {header.tokens} tokens of {header.width} bytes")
    if header.tokens * header.width + HEADER_BYTES != size:
        raise TextError(f"it says that it has {header.tokens} tokens, which is not its size")
    # A token id beyond the vocabulary would be read outside the embedding table.
    if not 0 <= header.end < header.vocabulary <= 1 << 8 * header.width:
        raise TextError(f"its end token is {header.end} of {header.vocabulary}")
    return header


def tokens_of(data: bytes | memoryview) -> tuple[StreamHeader, NDArray[np.uint16] | NDArray[np.uint32]]:
    """The header and a view of the tokens. Raises TextError."""
    header = read_header(data, len(data))
    return header, np.frombuffer(data, dtype=f"<u{header.width}", count=header.tokens, offset=HEADER_BYTES)


class RowPlace(NamedTuple):
    """A row: of which data set, and which of its rows."""

    part: int
    row: int


class Mix(NamedTuple):
    """Data sets by weight. rows: how many of each may be trained on; key: names run and phase."""

    key: bytes
    weights: tuple[int, ...]
    rows: tuple[int, ...]

    def place(self, number: int) -> RowPlace:
        """The row at place `number` of the line."""
        period, within = divmod(number, sum(self.weights))
        part, before = _period(self.key, self.weights, period)[within]
        epoch, position = divmod(period * self.weights[part] + before, self.rows[part])
        # Another order in each pass over a data set, the same for everybody.
        key = self.key + part.to_bytes(2, "little") + epoch.to_bytes(8, "little")
        return RowPlace(part, shuffled(position, self.rows[part], key))


class Cursor(NamedTuple):
    """Which rows each peer learns from. annealing: the mix from inner step `anneals_from` on; rows: of a peer and inner
    step; replicas: how many there may be."""

    mix: Mix
    annealing: Mix
    anneals_from: int
    rows: int
    replicas: int

    def places(self, replica_id: int, step: int) -> list[RowPlace]:
        """Those of `replica_id` at inner step `step`, counted over all rounds."""
        if not 0 <= replica_id < self.replicas:
            raise ValueError(f"replica {replica_id} of {self.replicas}")
        mix, begun = (self.mix, step) if step < self.anneals_from else (self.annealing, step - self.anneals_from)
        first = begun * self.rows
        return [mix.place((first + row) * self.replicas + replica_id) for row in range(self.rows)]


def cursor_of(
    run: bytes,
    weights: Sequence[tuple[int, ...]],
    rows: tuple[int, ...],
    *,
    anneals_from: int,
    batch: int,
    replicas: int,
) -> Cursor:
    """run: bytes that name it; weights: of the mix and of the annealing mix; rows: of each data set, for training."""
    before, after = (Mix(run + bytes([phase]), mix, rows) for phase, mix in enumerate(weights))
    return Cursor(before, after, anneals_from, batch, replicas)


@lru_cache(maxsize=64)
def _period(key: bytes, weights: tuple[int, ...], period: int) -> list[tuple[int, int]]:
    """(data set, how often it came before in this period) of each place of a period."""
    parts = [part for part, weight in enumerate(weights) for _ in range(weight)]
    stream = blake3(key + period.to_bytes(8, "little"), derive_key_context=_MIX).digest(8 * len(parts))
    # Stable, so that two equal words, once in many trillions, do not depend on the library's sort.
    order = np.argsort(np.frombuffer(stream, dtype="<u8"), kind="stable")
    seen = [0] * len(weights)
    found: list[tuple[int, int]] = []
    for at in order:
        part = parts[int(at)]
        found.append((part, seen[part]))
        seen[part] += 1
    return found


def shuffled(position: int, count: int, key: bytes) -> int:
    """Where `position` of `count` goes in a pseudo-random order: a Feistel network over the next power of four, walked
    until it lands inside."""
    half = max((count - 1).bit_length() + 1, 2) // 2
    mask = (1 << half) - 1
    at = position
    while True:
        left, right = at >> half, at & mask
        # Four make a strong pseudo-random permutation (Luby, Rackoff 1988); two more cost little.
        for number in range(6):
            word = blake3(key + bytes([number]) + right.to_bytes(8, "little"), derive_key_context=_ORDER).digest(8)
            left, right = right, left ^ (int.from_bytes(word, "little") & mask)
        at = left << half | right
        if at < count:
            return at
