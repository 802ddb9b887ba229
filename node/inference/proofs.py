"""TOPLOC over a whole file at once: samples into batches of rows, and back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.toploc import Proof, ProofErrors, build_proofs, row_batches
from protocol.toploc import compare_all as compare_batches

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
    return compare_batches(flat, [part for sample in samples for part in row_batches(sample, batch)])
