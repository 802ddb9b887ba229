"""Activation proofs (TOPLOC, arXiv 2501.16007): build, parse, compare. Byte-compatible with the published core.

A proof covers up to 32 decode rows. It is 2 + 2k bytes, all unsigned big-endian: a modulus m and the k
coefficients, constant term first, of the polynomial over GF(65497) through the points
(position mod m, bf16 bits) of the k values of largest magnitude; position = row * hidden + column.

Rows are the activations after the final norm, one per *decode* step: n output tokens give n - 1 rows, because
the last token is never fed back. Rows are bf16 bit patterns (uint16), so this module needs numpy only.
Ties at the k-th place break to the lowest position.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolError

PRIME = 65_497
DECODE_BATCH = 32
_NO_COMMON_EXPONENT = 2.0**64

_P = np.uint32(PRIME)

U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]


class MalformedProof(ProtocolError):
    """A proof that is not in the one canonical form."""


class ProofErrors(msgspec.Struct, frozen=True):
    """How far a proof is from the verifier's activations; larger is worse.

    exponent_mismatches: of k; mantissa_mean, mantissa_median (upper median): over the positions whose
    exponents agree, 2**64 if there is none.
    """

    exponent_mismatches: int
    mantissa_mean: float
    mantissa_median: float


class Proof(msgspec.Struct, frozen=True):
    """modulus m and k coefficients, constant term first."""

    modulus: int
    coefficients: tuple[int, ...]

    def evaluate(self, position: int) -> int:
        """The bf16 bits that the proof claims at a flat position."""
        return int(self.evaluate_all(np.asarray([position], dtype=np.int64))[0])

    def evaluate_all(self, positions: I64) -> I64:
        """positions: int64[n] -> claimed bits: int64[n], by Horner's rule."""
        x = positions % self.modulus
        value = np.zeros_like(x)
        for coefficient in reversed(self.coefficients):
            value = (value * x + coefficient) % PRIME
        return value

    def encode(self) -> bytes:
        return np.asarray([self.modulus, *self.coefficients], dtype=">u2").tobytes()


def proof_size(k: int) -> int:
    """Bytes of one proof."""
    return 2 + 2 * k


def top_positions(rows: U16, k: int) -> I64:
    """Flat positions, ascending, of the k values of largest magnitude in rows: uint16[n, hidden]."""
    magnitude = rows.reshape(-1) & np.uint16(0x7FFF)
    if magnitude.size < k:
        raise ValueError(f"{magnitude.size} values cannot give {k} points: choose toploc_k <= the hidden size")
    cut = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    above = np.flatnonzero(magnitude > cut)
    level = np.flatnonzero(magnitude == cut)[: k - above.size]
    return np.sort(np.concatenate([above, level])).astype(np.int64)


def injective_modulus(positions: I64) -> int:
    """The largest m <= 65497 for which all positions differ mod m."""
    for modulus in range(PRIME, 0, -1):
        if np.unique(positions % modulus).size == positions.size:
            return modulus
    raise ValueError("positions repeat")


def proof_from_points(positions: Sequence[int] | I64, bits: Sequence[int] | I64) -> bytes:
    """The proof through explicit points (flat position, bf16 bits)."""
    at = np.asarray(positions, dtype=np.int64)
    return _interpolate(at[None, :], np.asarray(bits, dtype=np.int64)[None, :])[0]


def build_proof(rows: U16, k: int) -> bytes:
    """rows: uint16[n, hidden], bf16 bits, 1 <= n <= 32."""
    return build_proofs([rows], k)[0]


def build_proofs(batches: Sequence[U16], k: int) -> list[bytes]:
    """One proof per batch of rows; all interpolations run as one vectorised computation."""
    if not batches:
        return []
    positions = np.stack([top_positions(rows, k) for rows in batches])
    bits = np.stack([rows.reshape(-1)[at] for rows, at in zip(batches, positions, strict=True)])
    return _interpolate(positions, bits.astype(np.int64))


def row_batches(rows: U16, batch: int = DECODE_BATCH) -> list[U16]:
    """The decode rows of one sample in groups of `batch`, the last one possibly shorter."""
    return [rows[i : i + batch] for i in range(0, len(rows), batch)]


def proofs_for(rows: U16, k: int, batch: int = DECODE_BATCH) -> bytes:
    """All proofs of one sample, concatenated; empty for a sample of one output token."""
    return b"".join(build_proofs(row_batches(rows, batch), k))


def proof_count(output_tokens: int, batch: int = DECODE_BATCH) -> int:
    """How many proofs a sample must carry."""
    return -(-max(output_tokens - 1, 0) // batch)


def parse_proof(data: bytes, k: int) -> Proof:
    """Parse one proof; raises MalformedProof on anything that `build_proof` could not have written."""
    if len(data) != proof_size(k):
        raise MalformedProof("malformed activation proof", f"{len(data)} bytes instead of {proof_size(k)}")
    words = np.frombuffer(data, dtype=">u2")
    modulus, coefficients = int(words[0]), tuple(int(word) for word in words[1:])
    if not max(1, k) <= modulus <= PRIME:
        raise MalformedProof("malformed activation proof", f"modulus {modulus} is not in [{max(1, k)}, {PRIME}]")
    if max(coefficients, default=0) >= PRIME:
        raise MalformedProof("malformed activation proof", "a coefficient is not reduced mod 65497")
    return Proof(modulus, coefficients)


def split_proofs(data: bytes, k: int, count: int) -> list[Proof]:
    """Parse exactly `count` concatenated proofs; raises MalformedProof."""
    size = proof_size(k)
    if len(data) != count * size:
        raise MalformedProof("malformed activation proof", f"{len(data)} bytes are not {count} proofs of {size}")
    return [parse_proof(data[i : i + size], k) for i in range(0, len(data), size)]


def compare(proof: Proof, rows: U16) -> ProofErrors:
    """Compare with the verifier's own rows: uint16[n, hidden], at the verifier's own top-k positions."""
    positions = top_positions(rows, len(proof.coefficients))
    return compare_points(proof, positions, rows.reshape(-1)[positions].astype(np.int64))


def compare_points(proof: Proof, positions: Sequence[int] | I64, bits: Sequence[int] | I64) -> ProofErrors:
    """The same on explicit points; bits are bf16 patterns as ints. The sign is not compared."""
    claimed = proof.evaluate_all(np.asarray(positions, dtype=np.int64))
    actual = np.asarray(bits, dtype=np.int64)
    same = (claimed >> 7 & 0xFF) == (actual >> 7 & 0xFF)
    mismatches = int(same.size - same.sum())
    if mismatches == same.size:
        return ProofErrors(mismatches, _NO_COMMON_EXPONENT, _NO_COMMON_EXPONENT)
    off = np.sort(np.abs((claimed[same] & 0x7F) - (actual[same] & 0x7F)))
    return ProofErrors(mismatches, float(off.mean()), float(off[off.size // 2]))


def _reduce(values: U32) -> U32:
    """values mod 65497. Numpy divides by one number with SIMD, and that is 5 times as fast as `%`."""
    return values - values // _P * _P


def _inverse_table() -> U32:
    """inverse[a] = a^(p-2) mod p for 0 <= a < 2p, so that differences need no reduction first."""
    base = np.arange(PRIME, dtype=np.uint32)
    result, exponent = np.ones_like(base), PRIME - 2
    while exponent:
        if exponent & 1:
            result = _reduce(result * base)
        base = _reduce(base * base)
        exponent >>= 1
    return np.concatenate([result, result])


_INVERSE = _inverse_table()


def _interpolate(positions: I64, bits: I64) -> list[bytes]:
    """positions, bits: int64[proofs, k] -> encoded proofs. Newton's divided differences, then monomials.

    In uint32: (p - 1)^2 + p - 1 < 2^32.
    """
    moduli = np.asarray([injective_modulus(row) for row in positions], dtype=np.int64)
    x = (positions % moduli[:, None]).astype(np.uint32)
    newton = (bits % PRIME).astype(np.uint32)
    points = x.shape[1]
    for order in range(1, points):
        inverse = _INVERSE[x[:, order:] + _P - x[:, :-order]]
        newton[:, order:] = _reduce(_reduce(newton[:, order:] + _P - newton[:, order - 1 : -1]) * inverse)
    minus_x = _reduce(_P - x)
    monomial = np.zeros_like(newton)
    for step in range(points - 1, -1, -1):
        degree = points - step
        product = monomial[:, :degree] * minus_x[:, step : step + 1]
        product[:, 1:] += monomial[:, : degree - 1]
        product[:, 0] += newton[:, step]
        monomial[:, :degree] = _reduce(product)
    words = np.concatenate([moduli[:, None], monomial], axis=1).astype(">u2")
    return [row.tobytes() for row in words]
