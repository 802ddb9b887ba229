"""One worker's work and one verifier's look at it, without files: the raw statistics that decisions rest on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from node.calibration.extent import Stage
from node.inference.engine import Engine, Finished, Prefill, Request
from node.inference.proofs import compare_all, prove_all
from node.inference.turns import Rollout
from protocol.decision import SampleStatistics
from protocol.sampling import distance
from protocol.toploc import Proof, proof_count, split_proofs


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker hands over. sequences, uniforms and proofs are per sample; encoded: the proofs' bytes."""

    sequences: list[Finished]
    uniforms: list[np.ndarray]
    proofs: list[list[Proof]]
    encoded: list[bytes]

    @property
    def tokens(self) -> int:
        return sum(len(sequence.sampled) for sequence in self.sequences)


def hand_over(requests: Sequence[Request], rollouts: Sequence[Rollout], k: int, rows: int) -> Work:
    """Proofs of what an engine made. k: points per proof; rows: decode rows per proof."""
    encoded = prove_all([rollout.rows for rollout in rollouts], k, rows)
    proofs = [
        split_proofs(data, k, proof_count(rollout.sampled, rows))
        for data, rollout in zip(encoded, rollouts, strict=True)
    ]
    sequences = [Finished(list(r.prompt), one.output, one.segments) for r, one in zip(requests, rollouts, strict=True)]
    drawn = [request.uniforms[: one.sampled] for request, one in zip(requests, rollouts, strict=True)]
    return Work(sequences, drawn, proofs, list(encoded))


def look_at(engine: Engine, work: Work, temperature: float, rows: int, stage: Stage) -> list[SampleStatistics]:
    """What a verifier with `engine` sees, one result per sample."""
    prefills: list[Prefill] = []
    for part in stage.parts(len(work.sequences)):
        prefills += engine.prefill(work.sequences[part], temperature)
        stage.advance(len(work.sequences[part]))
    errors = iter(compare_all(work.proofs, [prefill.rows for prefill in prefills], rows))
    return [
        SampleStatistics(tuple(next(errors) for _ in proofs), distance(drawn, prefill.lo, prefill.hi))
        for proofs, drawn, prefill in zip(work.proofs, work.uniforms, prefills, strict=True)
    ]
