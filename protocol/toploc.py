"""Activation proofs (TOPLOC, arXiv 2501.16007): build, parse, compare. Byte-compatible with the published core.

A proof covers up to 32 decode rows. It is 2 + 2k bytes, all unsigned big-endian: a modulus m and the k
coefficients, constant term first, of the polynomial over GF(65497) through the points
(position mod m, bf16 bits) of the k values of largest magnitude; position = row * hidden + column.

Rows are the activations after the final norm, one per *decode* step: n output tokens give n - 1 rows, because
the last token is never fed back. Rows are bf16 bit patterns (uint16), so this module needs numpy only.
Ties at the k-th place break to the lowest position.
"""

import struct
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolError
from protocol.polynomials import PRIME, evaluate, interpolate

DECODE_BATCH = 32


U16 = NDArray[np.uint16]
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


class ActivationProof(msgspec.Struct, frozen=True):
    """modulus m and k coefficients, constant term first."""

    modulus: int
    coefficients: tuple[int, ...]

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
    # Without the sign bit, bf16 patterns order as their magnitudes do.
    magnitude = rows.reshape(-1) & np.uint16(0x7FFF)
    if magnitude.size < k:
        raise _too_few(magnitude.size, k)
    block = 128
    blocks = magnitude.size // block
    # With few blocks the bound would leave nearly all of them: then the exact way is cheaper at once.
    if blocks < 2 * k:
        return _exact_top(magnitude, np.arange(magnitude.size), k)
    highest = magnitude[: blocks * block].reshape(block, blocks).max(axis=0)  # strided blocks: a SIMD pass per row
    bound = np.partition(highest, blocks - k)[blocks - k]
    candidates = np.flatnonzero(magnitude >= bound)
    return _exact_top(magnitude[candidates], candidates, k)


def _exact_top(magnitude: U16, positions: I64, k: int) -> I64:
    """The k positions of largest magnitude; ties at the last place go to the lowest position."""
    cut = np.partition(magnitude, magnitude.size - k)[magnitude.size - k]
    chosen = magnitude > cut
    level = np.flatnonzero(magnitude == cut)
    # Ties at the cut by position: both sides must choose the same points, or honest proofs would differ.
    chosen[level[: k - np.count_nonzero(chosen)]] = True
    return positions[chosen].astype(np.int64)


def _top_of_small(batches: Sequence[U16], k: int) -> tuple[I64, I64]:
    """(positions, bits), int64[batches, k] each, in no order; every batch has at most 65,536 values.

    Magnitude and position share a key, so that all keys differ and a tie goes to the lowest position. Shorter batches
    are filled up with zeros, which stand behind all of their own.
    """
    bits = np.zeros((len(batches), max(rows.size for rows in batches)), dtype=np.uint16)
    for line, rows in zip(bits, batches, strict=True):
        line[: rows.size] = rows.reshape(-1)
    keys = bits.astype(np.uint32)
    keys &= np.uint32(0x7FFF)
    keys <<= np.uint32(16)
    keys |= np.arange(0xFFFF, 0xFFFF - keys.shape[1], -1, dtype=np.uint32)
    chosen = np.partition(keys, bits.shape[1] - k, axis=1)[:, bits.shape[1] - k :]
    positions = (chosen & np.uint32(0xFFFF) ^ np.uint32(0xFFFF)).astype(np.int64)
    return positions, np.take_along_axis(bits, positions, axis=1).astype(np.int64)


def _moduli(positions: I64) -> I64:
    """positions: int64[n, k], none twice in one row -> int64[n], the largest moduli that tell them apart."""
    moduli = np.full(len(positions), PRIME)
    if not positions.size or 0 <= positions.min() <= positions.max() < PRIME:
        return moduli
    open_rows = np.arange(len(positions))
    # From above, as the published core does it: the first that fits is the largest. Nearly always the first few do.
    for modulus in range(PRIME, 0, -1):
        rest = np.sort(positions[open_rows] % modulus, axis=1)
        clash = (rest[:, 1:] == rest[:, :-1]).any(axis=1)
        moduli[open_rows[~clash]] = modulus
        open_rows = open_rows[clash]
        if not open_rows.size:
            return moduli
    raise ValueError("more positions than residues")


def encode_points(positions: I64, bits: I64) -> list[bytes]:
    """positions, bits: int64[n, k], of as many proofs -> these."""
    moduli = _moduli(positions)
    x, y = (positions % moduli[:, None]).astype(np.uint32), bits.astype(np.uint32)
    # Bits above the prime (NaN and the like) have no residue of their own; the published core folds them so.
    y[y >= PRIME] -= np.uint32(PRIME)
    words = np.empty((positions.shape[0], positions.shape[1] + 1), dtype=">u2")
    words[:, 0] = moduli
    words[:, 1:] = interpolate(x, y)
    data, size = words.tobytes(), proof_size(positions.shape[1])
    return [data[start : start + size] for start in range(0, len(data), size)]


def build_proofs(batches: Sequence[U16], k: int) -> list[bytes]:
    """One proof per batch of rows, uint16[n, hidden], bf16 bits, 1 <= n <= 32; several are computed together."""
    return [proof for points in top_points(batches, k) for proof in encode_points(*points)]


def top_points(batches: Sequence[U16], k: int) -> Iterator[tuple[I64, I64]]:
    """(positions, bits), int64[some, k] each: the top of every batch, in order of the batches."""
    sizes = [rows.size for rows in batches]
    if sizes and min(sizes) < k:
        raise _too_few(min(sizes), k)
    most, start = max(1, (1 << 13) // k), 0  # what several proofs compute together still fits the cache of one core
    cells_at_once = 1 << 18
    while start < len(batches):
        widest = max(sizes[start : start + most])
        if widest <= 1 << 14:  # up to this many values their top is chosen by one partition, of many proofs at once
            some = batches[start : start + min(most, cells_at_once // widest)]
            yield _top_of_small(some, k)
        else:
            some = batches[start : start + most]
            yield _top_of_large(some, k)
        start += len(some)


def _top_of_large(batches: Sequence[U16], k: int) -> tuple[I64, I64]:
    positions = np.stack([top_positions(rows, k) for rows in batches])
    bits = np.stack([rows.reshape(-1)[at] for rows, at in zip(batches, positions, strict=True)])
    return positions, bits.astype(np.int64)


def _too_few(values: int, k: int) -> ValueError:
    return ValueError(f"{values} values cannot give {k} points: choose toploc_k <= the hidden size")


def row_batches(rows: U16, batch: int = DECODE_BATCH) -> list[U16]:
    """The decode rows of one sample in groups of `batch`, the last one possibly shorter."""
    return [rows[i : i + batch] for i in range(0, len(rows), batch)]


def proofs_for(rows: U16, k: int, batch: int = DECODE_BATCH) -> bytes:
    """All proofs of one sample, concatenated; empty for a sample of one output token."""
    return b"".join(build_proofs(row_batches(rows, batch), k))


def proof_count(output_tokens: int, batch: int = DECODE_BATCH) -> int:
    """How many proofs a sample must carry."""
    return -(-max(output_tokens - 1, 0) // batch)


def parse_proof(data: bytes, k: int) -> ActivationProof:
    """Parse one proof; raises MalformedProof on anything that `build_proofs` could not have written."""
    if len(data) != proof_size(k):
        raise MalformedProof("malformed activation proof", f"{len(data)} bytes instead of {proof_size(k)}")
    modulus, *_ = words = struct.unpack(f">{k + 1}H", data)
    coefficients = words[1:]
    # Below k the points cannot differ mod m: no builder writes such a number, so it was written by hand.
    if not max(1, k) <= modulus <= PRIME:
        raise MalformedProof("malformed activation proof", f"modulus {modulus} is not in [{max(1, k)}, {PRIME}]")
    # 65497 and 0 are one number: taken both, one proof would have many encodings.
    if max(coefficients, default=0) >= PRIME:
        raise MalformedProof("malformed activation proof", "a coefficient is not reduced mod 65497")
    return ActivationProof(modulus, coefficients)


def split_proofs(data: bytes, k: int, count: int) -> list[ActivationProof]:
    """Parse exactly `count` concatenated proofs; raises MalformedProof."""
    size = proof_size(k)
    if len(data) != count * size:
        raise MalformedProof("malformed activation proof", f"{len(data)} bytes are not {count} proofs of {size}")
    return [parse_proof(data[i : i + size], k) for i in range(0, len(data), size)]


def compare(proof: ActivationProof, rows: U16) -> ProofErrors:
    """Compare with the verifier's own rows: uint16[n, hidden], at the verifier's own top-k positions."""
    return compare_all([proof], [rows])[0]


def compare_all(proofs: Sequence[ActivationProof], batches: Sequence[U16]) -> list[ProofErrors]:
    """`compare` for many proofs of the same k, several at a time."""
    errors: list[ProofErrors] = []
    for positions, bits in top_points(batches, len(proofs[0].coefficients)) if proofs else ():
        some = proofs[len(errors) : len(errors) + len(positions)]
        errors += _differences(evaluate_proofs(some, positions), bits)
    return errors


def evaluate_proofs(proofs: Sequence[ActivationProof], positions: I64) -> I64:
    """positions: int64[proofs, n], the points of each proof -> claimed bits: int64[proofs, n]."""
    moduli = np.array([[proof.modulus] for proof in proofs], dtype=np.int64)
    coefficients = np.array([proof.coefficients for proof in proofs], dtype=np.float64)
    return evaluate(coefficients, (positions % moduli).astype(np.uint32)).astype(np.int64)


def _differences(claimed: I64, actual: I64) -> list[ProofErrors]:
    """claimed, actual: int64[proofs, k] bf16 bits."""
    same = (claimed >> 7 & 0xFF) == (actual >> 7 & 0xFF)
    # Signs are left out: near zero honest engines differ in them, and large values, which are proven, do not.
    off = np.abs((claimed & 0x7F) - (actual & 0x7F))
    agreeing = np.count_nonzero(same, axis=1)
    ascending = np.sort(np.where(same, off, 0x80).astype(np.uint8), axis=1)  # those that agree come first
    some = np.maximum(agreeing, 1)
    means = np.where(same, off, 0).sum(axis=1) / some
    medians = np.take_along_axis(ascending, (agreeing // 2)[:, None] % same.shape[1], axis=1)[:, 0]
    none = agreeing == 0
    # Larger than any real difference, and still a number: infinities would poison means and JSON.
    no_common_exponent = 2.0**64
    means[none] = no_common_exponent
    columns = (same.shape[1] - agreeing, means, np.where(none, no_common_exponent, medians.astype(np.float64)))
    return [ProofErrors(*numbers) for numbers in zip(*(column.tolist() for column in columns), strict=True)]
