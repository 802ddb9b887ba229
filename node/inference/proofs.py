"""TOPLOC over a whole file at once: samples into batches of rows, and back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from node.inference.errors import EngineError
from protocol.toploc import ActivationProof, ProofErrors, build_proofs, encode_points, row_batches, top_points
from protocol.toploc import compare_all as compare_batches

U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]


class ProofRows:
    """What proofs need of a rollout's rows, while it is made: of every `batch` rows their k points, which are 6 bytes
    each, and only the newest rows as they are. k = 0: nothing is kept.

    Kept whole, 256 rollouts of 32,768 tokens are 80 GiB at 5,120 numbers a row. count: sampled tokens so far; the first
    has no row.
    """

    def __init__(self, k: int, batch: int) -> None:
        self.k, self.batch = k, batch
        self.count = 0
        self._points: list[tuple[U32, U16]] = []
        self._open: list[U16] = []

    def put(self, place: int, head: U16) -> None:
        """Of the sampled token at `place` of the rollout, uint16[hidden]. One that comes again replaces what was there
        and all behind it. Raises EngineError where that is gone, or one was left out."""
        at = place - 1 - len(self._points) * self.batch
        if not (0 <= at or place == 0 == len(self._points)) or place > self.count:
            what = "a token was drawn again long after, or one was left out"
            raise EngineError("a rollout cannot be proven", f"{what} ({place} of {self.count})", "report this")
        self.count = place + 1
        if not self.k:
            return
        del self._open[max(0, at) :]
        if place:
            self._open.append(head.copy())  # a view would keep those of all rollouts of its step
        # Only the oldest: a place that is drawn again must still have its row.
        # Proofs' worth of rows that are kept as they are: what comes again after memory was short lies within them.
        if len(self._open) >= 2 * self.batch:
            first, self._open = self._open[: self.batch], self._open[self.batch :]
            positions, bits = next(top_points([np.stack(first)], self.k))
            self._points.append((positions[0].astype(np.uint32), bits[0].astype(np.uint16)))

    def extend(self, heads: U16) -> None:
        """Of the next sampled tokens, of an engine that kept them itself."""
        for head in heads:
            self.put(self.count, head)

    def cut(self, count: int) -> None:
        """Forget what is behind so many tokens. Raises EngineError where it is gone."""
        left = count - 1 - len(self._points) * self.batch
        if left < 0 and self._points:
            raise EngineError("a rollout cannot be proven", f"it ended at {count} of {self.count}", "report this")
        del self._open[max(0, left) :]
        self.count = min(self.count, count)

    @property
    def open(self) -> U16:
        """uint16[n, hidden]: rows whose points were not taken yet."""
        return np.stack(self._open) if self._open else np.empty((0, 0), dtype=np.uint16)

    def proofs(self) -> bytes:
        """Concatenated, of all rows before those."""
        at_once = 64  # proofs that are encoded together
        parts = [self._points[at : at + at_once] for at in range(0, len(self._points), at_once)]
        columns = [[np.stack(one).astype(np.int64) for one in zip(*part, strict=True)] for part in parts]
        return b"".join(proof for positions, bits in columns for proof in encode_points(positions, bits))


def unproven() -> ProofRows:
    """Of a rollout that nobody will prove."""
    return ProofRows(0, 1)


def prove_all(samples: Sequence[U16 | ProofRows], k: int, batch: int) -> list[bytes]:
    """samples: uint16[n-1, hidden] each, or what was kept of them -> concatenated proofs of each sample.

    Short answers to one problem are often equal, and so are their rows, bit for bit; those are proven once.
    """
    # Of rows that were kept as points only the newest are left to prove.
    whole = [one.open if isinstance(one, ProofRows) else one for one in samples]
    first: dict[bytes | int, int] = {}
    which = [first.setdefault(_content(rows, i), i) for i, rows in enumerate(whole)]
    batches = {i: row_batches(whole[i], batch) for i in first.values()}
    proofs = iter(build_proofs([rows for of_sample in batches.values() for rows in of_sample], k))
    joined = {i: b"".join([next(proofs) for _ in of_sample]) for i, of_sample in batches.items()}
    before = (one.proofs() if isinstance(one, ProofRows) else b"" for one in samples)
    return [known + joined[i] for known, i in zip(before, which, strict=True)]


def _content(rows: U16, number: int) -> bytes | int:
    # Values of a sample up to which looking for an equal one is quicker than another proof.
    return rows.tobytes() if rows.size <= 1 << 14 else number


def compare_all(proofs: Sequence[Sequence[ActivationProof]], samples: Sequence[U16], batch: int) -> list[ProofErrors]:
    """Compare every proof of every sample with the recomputed rows; one result per proof, in order.

    proofs: as from protocol.checks.parse_proofs, so that each sample has one proof per `batch` rows.
    """
    flat = [proof for of_sample in proofs for proof in of_sample]
    return compare_batches(flat, [part for sample in samples for part in row_batches(sample, batch)])
