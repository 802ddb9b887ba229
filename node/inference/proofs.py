"""TOPLOC over a whole file at once: samples into batches of rows, and back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.toploc import Proof, ProofErrors, build_proofs, row_batches
from protocol.toploc import compare_all as compare_batches

U16 = NDArray[np.uint16]

_WORTH_COMPARING = 1 << 14
"""Values of a sample up to which looking for an equal one is quicker than another proof."""


def prove_all(samples: Sequence[U16], k: int, batch: int) -> list[bytes]:
    """samples: uint16[n-1, hidden] each -> concatenated proofs of each sample.

    Short answers to one problem are often equal, and so are their rows, bit for bit; those are proven once.
    """
    first: dict[bytes | int, int] = {}
    which = [first.setdefault(_content(rows, i), i) for i, rows in enumerate(samples)]
    batches = {i: row_batches(samples[i], batch) for i in first.values()}
    proofs = iter(build_proofs([rows for of_sample in batches.values() for rows in of_sample], k))
    joined = {i: b"".join([next(proofs) for _ in of_sample]) for i, of_sample in batches.items()}
    return [joined[i] for i in which]


def _content(rows: U16, number: int) -> bytes | int:
    return rows.tobytes() if rows.size <= _WORTH_COMPARING else number


def compare_all(proofs: Sequence[Sequence[Proof]], samples: Sequence[U16], batch: int) -> list[ProofErrors]:
    """Compare every proof of every sample with the recomputed rows; one result per proof, in order.

    proofs: as from protocol.checks.parse_proofs, so that each sample has one proof per `batch` rows.
    """
    flat = [proof for of_sample in proofs for proof in of_sample]
    return compare_batches(flat, [part for sample in samples for part in row_batches(sample, batch)])
