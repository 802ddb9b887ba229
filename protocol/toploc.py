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
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from protocol.errors import ProtocolError

PRIME = 65_497
DECODE_BATCH = 32
_NO_COMMON_EXPONENT = 2.0**64

_BLOCK = 128
_CELLS_AT_ONCE = 1 << 19
_P = np.uint32(PRIME)

F64 = NDArray[np.float64]
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
        """The bf16 bits that the proof claims at a flat position >= 0."""
        x, value = position % self.modulus, 0
        for coefficient in reversed(self.coefficients):
            value = (value * x + coefficient) % PRIME
        return value

    def evaluate_all(self, positions: I64) -> I64:
        """positions: int64[n] -> claimed bits: int64[n]."""
        return evaluate_proofs([self], positions[None, :])[0]

    def encode(self) -> bytes:
        return np.asarray([self.modulus, *self.coefficients], dtype=">u2").tobytes()


def most_points(hidden: int) -> int:
    """The largest k that suits a model with rows of `hidden` values: a quarter of one row.

    An answer of two tokens has one row. If k covers it whole, the smallest values are among the points, and these
    differ by many mantissa steps between honest engines: rounding is relative to the largest of what was summed up.
    """
    return max(1, hidden // 4)


def proof_size(k: int) -> int:
    """Bytes of one proof."""
    return 2 + 2 * k


def top_positions(rows: U16, k: int) -> I64:
    """Flat positions, ascending, of the k values of largest magnitude in rows: uint16[n, hidden].

    The k-th largest of the block maxima is a lower bound of the k-th largest value, because they are distinct
    elements; so one pass of comparisons leaves few candidates, among which the choice is exact.
    """
    magnitude = rows.reshape(-1) & np.uint16(0x7FFF)
    if magnitude.size < k:
        raise ValueError(f"{magnitude.size} values cannot give {k} points: choose toploc_k <= the hidden size")
    blocks = magnitude.size // _BLOCK
    if blocks < 2 * k:
        return _exact_top(magnitude, np.arange(magnitude.size), k)
    highest = magnitude[: blocks * _BLOCK].reshape(_BLOCK, blocks).max(axis=0)  # strided blocks: a SIMD pass per row
    bound = np.partition(highest, blocks - k)[blocks - k]
    candidates = np.flatnonzero(magnitude >= bound)
    return _exact_top(magnitude[candidates], candidates, k)


def _exact_top(magnitude: U16, positions: I64, k: int) -> I64:
    """The k positions of largest magnitude; ties at the last place go to the lowest position."""
    cut = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    chosen = magnitude > cut
    level = np.flatnonzero(magnitude == cut)
    chosen[level[: k - np.count_nonzero(chosen)]] = True
    return positions[chosen].astype(np.int64)


def injective_modulus(positions: I64) -> int:
    """The largest m <= 65497 for which all positions differ mod m."""
    if np.unique(positions).size != positions.size:
        raise ValueError("positions repeat")
    for modulus in range(PRIME, 0, -1):
        rest = np.sort(positions % modulus)
        if (rest[1:] != rest[:-1]).all():
            return modulus
    raise ValueError("more positions than residues")


def proof_from_points(positions: Sequence[int] | I64, bits: Sequence[int] | I64) -> bytes:
    """The proof through explicit points (flat position, bf16 bits)."""
    at = np.asarray(positions, dtype=np.int64)
    return _interpolate(at[None, :], np.asarray(bits, dtype=np.int64)[None, :])[0]


def build_proof(rows: U16, k: int) -> bytes:
    """rows: uint16[n, hidden], bf16 bits, 1 <= n <= 32."""
    return build_proofs([rows], k)[0]


def build_proofs(batches: Sequence[U16], k: int) -> list[bytes]:
    """One proof per batch of rows; interpolations of several proofs run as one vectorised computation."""
    together = max(1, _CELLS_AT_ONCE // (k * k))
    proofs: list[bytes] = []
    for start in range(0, len(batches), together):
        proofs += _interpolate(*_top_points(batches[start : start + together], k))
    return proofs


def _top_points(batches: Sequence[U16], k: int) -> tuple[I64, I64]:
    """(positions, bits): int64[batches, k] each."""
    positions = np.stack([top_positions(rows, k) for rows in batches])
    bits = np.stack([rows.reshape(-1)[at] for rows, at in zip(batches, positions, strict=True)])
    return positions, bits.astype(np.int64)


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
    return compare_all([proof], [rows])[0]


def compare_all(proofs: Sequence[Proof], batches: Sequence[U16]) -> list[ProofErrors]:
    """`compare` for many proofs of the same k, several at a time."""
    if not proofs:
        return []
    k = len(proofs[0].coefficients)
    together = max(1, _CELLS_AT_ONCE // (k * k))
    errors: list[ProofErrors] = []
    for start in range(0, len(proofs), together):
        positions, bits = _top_points(batches[start : start + together], k)
        errors += _differences(evaluate_proofs(proofs[start : start + together], positions), bits)
    return errors


def compare_points(proof: Proof, positions: Sequence[int] | I64, bits: Sequence[int] | I64) -> ProofErrors:
    """The same on explicit points; bits are bf16 patterns as ints. The sign is not compared."""
    claimed = proof.evaluate_all(np.asarray(positions, dtype=np.int64))
    return _differences(claimed[None, :], np.asarray(bits, dtype=np.int64)[None, :])[0]


def evaluate_proofs(proofs: Sequence[Proof], positions: I64) -> I64:
    """positions: int64[proofs, n], the points of each proof -> claimed bits: int64[proofs, n]."""
    moduli = np.array([[proof.modulus] for proof in proofs], dtype=np.int64)
    coefficients = np.array([proof.coefficients for proof in proofs], dtype=np.float64)
    return _evaluate(coefficients, (positions % moduli).astype(np.uint32)).astype(np.int64)


def _differences(claimed: I64, actual: I64) -> list[ProofErrors]:
    """claimed, actual: int64[proofs, k] bf16 bits."""
    same = (claimed >> 7 & 0xFF) == (actual >> 7 & 0xFF)
    off = np.abs((claimed & 0x7F) - (actual & 0x7F))
    return [_errors(*pair) for pair in zip(same, off, strict=True)]


def _errors(same: NDArray[np.bool_], off: I64) -> ProofErrors:
    agreeing = np.sort(off[same])
    mismatches = int(same.size - agreeing.size)
    if agreeing.size == 0:
        return ProofErrors(mismatches, _NO_COMMON_EXPONENT, _NO_COMMON_EXPONENT)
    return ProofErrors(mismatches, float(agreeing.mean()), float(agreeing[agreeing.size // 2]))


def _reduce(values: U32) -> U32:
    """values mod 65497. Numpy divides by one number with SIMD, and that is 5 times as fast as `%`."""
    return values - values // _P * _P


def _reduce_float(values: F64) -> F64:
    """values mod 65497 for whole numbers 0 <= value < 2^52: the rounded quotient's floor is exact, since 1/p is
    far above the spacing of floats at value / p."""
    return values - np.floor(values / PRIME) * PRIME


def _inverse_table() -> U32:
    """inverse[a] = a^(p-2) mod p for 0 <= a < p; inverse[0] = 0."""
    base = np.arange(PRIME, dtype=np.uint32)
    result, exponent = np.ones_like(base), PRIME - 2
    while exponent:
        if exponent & 1:
            result = _reduce(result * base)
        base = _reduce(base * base)
        exponent >>= 1
    return result


_INVERSE = _inverse_table().astype(np.float64)


def _powers(x: U32, count: int) -> F64:
    """x: uint32[..., n], reduced -> float64[..., n, count] of x^0 .. x^(count-1) mod p, by doubling."""
    powers = np.empty((*x.shape, count), dtype=np.uint32)
    powers[..., 0] = 1
    filled, step = 1, x  # step = x^filled
    while filled < count:
        more = min(filled, count - filled)
        powers[..., filled : filled + more] = _reduce(powers[..., :more] * step[..., None])
        filled += more
        step = _reduce(step * step)
    return powers.astype(np.float64)


def _evaluate(coefficients: F64, x: U32) -> F64:
    """coefficients: float64[proofs, k], x: uint32[proofs, n] -> float64[proofs, n], values mod p.

    Baby steps, giant steps (Paterson and Stockmeyer 1973): about sqrt(k) powers, one matrix product, and Horner over
    the blocks. A sum of up to 64 products below 2^32 is exact in float64.
    """
    proofs, k = coefficients.shape
    width = min(64, max(1, round(k**0.5)))
    blocks = -(-k // width)
    padded = np.zeros((proofs, blocks * width))
    padded[:, :k] = coefficients
    powers = _powers(x, width + 1)
    inner = _reduce_float(padded.reshape(proofs, blocks, width) @ powers[:, :, :width].transpose(0, 2, 1))
    giant = powers[:, :, width]
    value = inner[:, -1]
    for block in range(blocks - 2, -1, -1):
        value = _reduce_float(value * giant + inner[:, block])
    return value


def _windows(values: F64, width: int) -> F64:
    """values: float64[..., n] -> view float64[..., n - width + 1, width]."""
    return sliding_window_view(values, width, axis=-1)


def _products(polynomials: F64) -> F64:
    """float64[proofs, 2n, m+1] -> float64[proofs, n, 2m+1]: products of neighbours mod p, exact while m < 2^20."""
    left, right = polynomials[:, 0::2], polynomials[:, 1::2]
    length = left.shape[-1]
    padding = np.zeros((*right.shape[:-1], length - 1))
    window = _windows(np.concatenate([padding, right, padding], axis=-1), length)
    return _reduce_float((window @ left[..., ::-1, None])[..., 0])


def _master(x: U32) -> F64:
    """x: uint32[proofs, k] -> float64[proofs, k+1]: the product of (X - x_i), constant term first, by halves."""
    proofs, k = x.shape
    leaves = 1 << max(0, k - 1).bit_length()
    polynomials = np.zeros((proofs, leaves, 2))
    polynomials[:, :, 0] = 1  # what is no factor is 1
    polynomials[:, :k, 0] = _reduce(_P - x)
    polynomials[:, :k, 1] = 1
    while polynomials.shape[1] > 1:
        polynomials = _products(polynomials)
    return polynomials[:, 0, : k + 1]


def _interpolate(positions: I64, bits: I64) -> list[bytes]:
    """positions, bits: int64[proofs, k] -> encoded proofs: the same bytes as any exact interpolation.

    With M = prod (X - x_i) and v_i = y_i / M'(x_i), the polynomial is M * sum v_i / (X - x_i); expanded in
    1/X, sum v_i / (X - x_i) = sum_n s_n / X^(n+1) with s_n = sum v_i x_i^n, so coefficient d is
    sum_n M_(d+n+1) s_n. Every step is a matrix product of numbers below p, exact in float64.
    """
    moduli = np.asarray([injective_modulus(row) for row in positions], dtype=np.int64)
    k = positions.shape[1]
    x = (positions % moduli[:, None]).astype(np.uint32)
    powers = _powers(x, k)
    master = _master(x)
    derivative = _reduce_float(master[:, 1:] * np.arange(1.0, k + 1))
    slopes = _reduce_float((powers @ derivative[:, :, None])[..., 0])
    scaled = _reduce_float((bits % PRIME) * _INVERSE[slopes.astype(np.int64)])
    sums = _reduce_float((scaled[:, None, :] @ powers)[:, 0])
    tail = np.concatenate([master[:, 1:], np.zeros((len(x), k - 1))], axis=1)
    monomial = _reduce_float((_windows(tail, k) @ sums[:, :, None])[..., 0])
    words = np.concatenate([moduli[:, None], monomial.astype(np.int64)], axis=1).astype(">u2")
    return [row.tobytes() for row in words]
