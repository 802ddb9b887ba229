"""TOPLOC over a whole file at once: the same numbers as protocol.toploc, without a Python loop per proof."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.toploc import PRIME, Proof, ProofErrors, build_proofs, row_batches, top_positions

U16 = NDArray[np.uint16]


def prove_all(samples: Sequence[U16], k: int, batch: int) -> list[bytes]:
    """samples: uint16[n-1, hidden] each -> concatenated proofs of each sample."""
    batches = [row_batches(rows, batch) for rows in samples]
    proofs = iter(build_proofs([rows for of_sample in batches for rows in of_sample], k))
    return [b"".join(next(proofs) for _ in of_sample) for of_sample in batches]


def compare_all(proofs: Sequence[Sequence[Proof]], samples: Sequence[U16], batch: int) -> list[ProofErrors]:
    """Compare every proof of every sample with the recomputed rows; one result per proof, in order.

    proofs: as from protocol.checks.parse_proofs, so that each sample has one proof per `batch` rows.
    """
    flat = [proof for of_sample in proofs for proof in of_sample]
    if not flat:
        return []
    rows = [part for sample in samples for part in row_batches(sample, batch)]
    k = len(flat[0].coefficients)
    positions = np.stack([top_positions(part, k) for part in rows])
    actual = np.stack([part.reshape(-1)[at] for part, at in zip(rows, positions, strict=True)]).astype(np.int64)
    claimed = _evaluate(flat, positions)
    same = (claimed >> 7 & 0xFF) == (actual >> 7 & 0xFF)
    off = np.abs((claimed & 0x7F) - (actual & 0x7F))
    return [_errors(same[i], off[i]) for i in range(len(flat))]


def _evaluate(proofs: Sequence[Proof], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """positions: int64[proofs, n] -> claimed bits, by Horner's rule on all proofs together, in uint32."""
    x = (positions % np.array([[proof.modulus] for proof in proofs], dtype=np.int64)).astype(np.uint32)
    coefficients = np.array([proof.coefficients for proof in proofs], dtype=np.uint32)
    value = np.zeros_like(x)
    prime = np.uint32(PRIME)
    for column in coefficients.T[::-1]:
        value = value * x + column[:, None]  # (p - 1)^2 + p - 1 < 2^32
        value -= value // prime * prime  # numpy divides by one number with SIMD, unlike %
    return value.astype(np.int64)


def _errors(same: NDArray[np.bool_], off: NDArray[np.int64]) -> ProofErrors:
    agreeing = np.sort(off[same])
    mismatches = int(same.size - agreeing.size)
    if agreeing.size == 0:
        return ProofErrors(mismatches, 2.0**64, 2.0**64)
    return ProofErrors(mismatches, float(agreeing.mean()), float(agreeing[agreeing.size // 2]))
