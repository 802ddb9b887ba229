"""A timed multiplication of two matrices that nobody can have prepared: what a claim of a GPU is checked by. Pure.

The verifier sends a seed, from which both sides expand two square matrices A and B. The prover multiplies them and
answers with a digest of each row of C = A B, all of them before it knows which rows it will be asked for; then it shows
those. The verifier never multiplies: for a secret random vector r it compares C_i r with A_i (B r), which takes O(n^2)
once and O(n) for each row (R. Freivalds, "Probabilistic machines can use less running time", IFIP 1977).

All numbers are whole: entries are -8..7, so every sum in A B stays below 2^24, exact in float32 in any order, as in
TF32 and bfloat16 with float32 sums; and with r below 2^16 every sum of the check stays below 2^53, exact in float64.
So there is nothing to round, and no two machines can differ.

A wrong row passes with a probability of 2^-16 at most. A prover that has multiplied only a share f of the rows passes
with f^ROWS. The digest of a row is no cryptographic one: it need not be, since a row that is shown is checked by
itself. What matters is that nobody knows the digest of a row that was not computed.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ProtocolError

SEED_BYTES = 32
# 16384 keeps the docstring's bounds: 64 * 16384 is far below 2^24, and one challenge is 8.8 TFLOP: below a second
# for a GPU, minutes for a processor.
LEAST_SIZE, MOST_SIZE = 64, 16384
"""Of a side; a multiple of NIBBLES."""
NIBBLES = 16
"""Entries in one word of 64 bits."""
ROWS = 16
# Eight bytes a row: all digests of the largest product are 128 KiB, a single answer on a slow line.
DIGEST_BYTES = 8
_CONTEXT = "intellect-node matrix challenge v1"
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014)."""

Words = NDArray[np.uint64]
Entries = NDArray[np.int8]
Row = NDArray[np.int32]


class BadProduct(ProtocolError):
    """What a prover answered is no product of the matrices, or not in form."""


class Keys(NamedTuple):
    """Where the words of A and of B begin, and what the digests of rows are mixed with: 64 bits each."""

    a: int
    b: int
    digest: int


class Challenge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """seed: 32 bytes; size: of a side of each matrix."""

    seed: bytes
    size: int

    def check(self) -> None:
        """Raises BadProduct for a seed or size that nobody need answer."""
        if len(self.seed) != SEED_BYTES or not LEAST_SIZE <= self.size <= MOST_SIZE or self.size % NIBBLES:
            raise BadProduct(
                "malformed challenge", f"a seed of {len(self.seed)} bytes, matrices of {self.size} rows", "ask anew"
            )

    @property
    def keys(self) -> Keys:
        digest = blake3(self.seed, derive_key_context=_CONTEXT).digest(24)
        return Keys(*(int.from_bytes(digest[at : at + 8], "little") for at in (0, 8, 16)))


def mixed(words: Words) -> Words:
    """splitmix64's finaliser."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND)
    return words ^ (words >> np.uint64(31))


def rows_of(key: int, size: int, rows: NDArray[np.int64]) -> Entries:
    """Some rows of a matrix: int8[len(rows), size], entries -8..7, the lowest four bits of each word first."""
    per_row = size // NIBBLES
    # A counter, not a running state: any row can be made without those before it, which is all that a verifier needs.
    places = rows[:, None].astype(np.uint64) * np.uint64(per_row) + np.arange(per_row, dtype=np.uint64)
    words = mixed(np.uint64(key) + (places + np.uint64(1)) * np.uint64(GAMMA))
    low = np.ascontiguousarray(words.astype("<u8")).view(np.uint8).reshape(len(rows), -1)
    # Spelled out by bytes, so that a machine of the other byte order expands the same matrix.
    both = np.stack([low & 15, low >> 4], axis=-1).reshape(len(rows), size)
    return both.astype(np.int8) - np.int8(8)


def row_digests(key: int, rows: Row) -> Words:
    """uint64[len(rows)]: the sum over a row of its entries, each mixed with its place."""
    places = (np.arange(rows.shape[1], dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
    return mixed((rows.astype(np.int64).view(np.uint64) + places) ^ np.uint64(key)).sum(axis=1, dtype=np.uint64)


def decode_digests(answer: bytes, size: int) -> Words:
    """One for each row. Raises BadProduct."""
    if len(answer) != size * DIGEST_BYTES:
        raise _bad(f"{len(answer)} bytes for the digests of {size} rows")
    return np.frombuffer(answer, dtype="<u8")


def decode_rows(answer: bytes, size: int, count: int) -> Row:
    """int32[count, size]. Raises BadProduct."""
    if len(answer) != 4 * size * count:
        raise _bad(f"{len(answer)} bytes for {count} rows of {size}")
    return np.frombuffer(answer, dtype="<i4").reshape(count, size)


def chosen_rows(size: int, randomness: bytes) -> tuple[int, ...]:
    """ROWS different ones, ascending. randomness: 32 bytes that nobody is told before the digests came."""
    generator = np.random.default_rng(int.from_bytes(randomness, "little"))
    return tuple(sorted(int(row) for row in generator.choice(size, ROWS, replace=False)))


def check_product(challenge: Challenge, digests: Words, asked: Sequence[int], rows: Row, randomness: bytes) -> None:
    """Whether the rows that were asked for are those of A B, and those whose digests came before. Raises BadProduct.

    randomness: 32 bytes that the prover does not know. Takes O(n^2): call from a thread.
    """
    places, keys = np.array(asked, dtype=np.int64), challenge.keys
    # First, since it is cheap, and since only rows that were fixed before the question prove that all were computed.
    if not np.array_equal(row_digests(keys.digest, rows), digests[places]):
        raise _bad("a row is not the one whose digest was told before it was asked for")
    # Drawn after the rows came: a prover that knew it could answer with any row that has the right product with it.
    vector_below = 1 << 16
    vector = np.random.default_rng(int.from_bytes(randomness, "little")).integers(vector_below, size=challenge.size)
    wanted = rows_of(keys.a, challenge.size, places).astype(np.float64) @ _times(keys.b, challenge.size, vector)
    # Without this bound a prover could send huge entries whose float64 sums round to the wanted ones.
    if np.abs(rows.astype(np.int64)).max() > 64 * challenge.size:
        raise _bad("a row has entries that no product of such matrices has")
    if not np.array_equal(rows.astype(np.float64) @ vector.astype(np.float64), wanted):
        raise _bad("a row is not that of the product")


def _times(key: int, size: int, vector: NDArray[np.int64]) -> NDArray[np.float64]:
    """B r, exactly; a piece of B at a time."""
    exact = vector.astype(np.float64)
    chunk = 256  # rows of B that a verifier has in memory at a time: 32 MB of float64 at most
    pieces = (np.arange(at, min(at + chunk, size)) for at in range(0, size, chunk))
    return np.concatenate([rows_of(key, size, piece).astype(np.float64) @ exact for piece in pieces])


def _bad(why: str) -> BadProduct:
    return BadProduct("the challenge was not met", why, "ask again later, or count this node as one without a GPU")
