"""One worker's work and one verifier's look at it, without files: the raw statistics that decisions rest on."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from node.calibration.alternatives import OTHER_DRAWS, other_weights
from node.inference.engine import Engine, Finished, Prefill, Request
from node.inference.proofs import compare_all, prove_all
from node.inference.settings import EngineSettings
from node.inference.torch_engine import build_model, image_names
from node.inference.turns import Rollout
from protocol.decision import SampleStatistics
from protocol.run import RunSpec
from protocol.sampling import distance
from protocol.toploc import Proof, proof_count, split_proofs

Progress = Callable[[str, int, int], None]
"""(stage, how much is done, of how much)."""
MOST, LEAST = 256, 64
"""Samples of each kind of work. What fewer leave open, the tables allow (node.calibration.calibrate._expectations)."""
CPU_WORK, GPU_WORK = 2e13, 2e15
"""Multiplications and additions: some minutes of one core, or of a GPU."""
AT_ONCE = 32
"""Samples between two words of progress."""


class Stage:
    """Samples that are made or looked at, as progress."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._done = 0
        progress(name, 0, total)

    def parts(self, count: int, first: int = 0) -> Iterator[slice]:
        """Of samples from `first` up to `count`, so few at a time that there is something to tell."""
        return (slice(at, min(at + AT_ONCE, count)) for at in range(first, count, AT_ONCE))

    def advance(self, samples: int) -> None:
        self._done += samples
        self._progress(self._name, self._done, self._total)


def most_samples(run: RunSpec, model: Path, settings: Sequence[EngineSettings]) -> int:
    """Of each kind of work, LEAST to MOST: what an engine for this model does in some minutes. Raises ModelError."""
    parameters = sum(tensor.numel() for tensor in image_names(build_model(model, "meta")).values())
    tokens = run.rollout.max_prompt_tokens + run.rollout.max_output_tokens
    kinds = len(settings) + len(OTHER_DRAWS) + len(other_weights({}, 0.0))
    looks = 1 + len(settings)  # made once, looked at by each
    on_cpu = any(one.device == "cpu" for one in settings)
    affordable = (CPU_WORK if on_cpu else GPU_WORK) / (2 * parameters * tokens * kinds * looks)
    return int(min(MOST, max(LEAST, affordable)))


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
    sequences = [
        Finished(list(r.prompt), one.output, one.segments, one.experts)
        for r, one in zip(requests, rollouts, strict=True)
    ]
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
        SampleStatistics(
            tuple(next(errors) for _ in proofs),
            distance(drawn, prefill.lo, prefill.hi),
            routing=None if prefill.routing is None else float(prefill.routing.max()),
        )
        for proofs, drawn, prefill in zip(work.proofs, work.uniforms, prefills, strict=True)
    ]
