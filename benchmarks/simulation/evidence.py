"""What a look at a group finds: drawn from a run's calibrated tables, judged by the product's thresholds and its
decision.

Nothing here is invented: a run file's tables (`intellect-node calibrate`) say how the proofs and tokens of honest work
and of each calibrated way of cheating lie, and from them groups are drawn as `SampleStatistics`. Whether one is refused
is what `protocol.checks` says under the run's thresholds for that pair of engines; its evidence is what `Likelihoods`
says.

Whoever looks computes in the worker's arithmetic. Tables of other pairs are left out: their thresholds ask for a
proof's median, which a table of means does not hold.
"""

import tomllib
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.checks import check_activations, check_sampling
from protocol.decision import (
    PROOF_EDGES,
    TOKEN_EDGES,
    CalibrationTable,
    DecisionSpec,
    Evidence,
    Likelihoods,
    SampleStatistics,
)
from protocol.run import VerificationSpec
from protocol.thresholds import Thresholds
from protocol.toploc import ProofErrors

HONEST = "honest"
LIBRARY = 400
"""Groups of each kind that are drawn once; looks draw from them."""
# The middle of each bin, as calibration counted it; of the last, open one a value beyond its edge.
_STEPS = np.array([0.0, *np.sqrt(np.array(PROOF_EDGES[:-1]) * np.array(PROOF_EDGES[1:])), 100.0])
_DISTANCES = np.array([0.0, 1e-10, *np.sqrt(np.array(TOKEN_EDGES[1:-1]) * np.array(TOKEN_EDGES[2:])), 0.5])
_EXPONENT = 128.0


class Look(msgspec.Struct, frozen=True):
    """One group as its looker sees it. activations: refused by them; distances: of its tokens; ratios: float64[ways],
    the logarithm of the group's mean ratio; alone: its evidence in a file of which nothing else was looked at."""

    activations: bool
    distances: NDArray[np.float64]
    ratios: NDArray[np.float64]
    alone: Evidence


class Looks:
    """What one run's tables make of groups. samples: of a group; each has one proof, and as many tokens as calibration
    saw for a proof: a hundredth of what a sample of 8,192 tokens would show."""

    def __init__(self, run: Path, *, samples: int = 16) -> None:
        data = tomllib.loads(run.read_text())["verification"]
        self.verification = msgspec.convert(data, VerificationSpec, strict=False)
        self.spec: DecisionSpec = self.verification.decision
        self.samples = samples
        name = next(one for one in self.spec.honest if one.partition(">")[0] == one.partition(">")[2])
        worker, _, verifier = name.partition(">")
        self.thresholds: Thresholds = self.verification.thresholds(worker, verifier)
        self._likelihoods = Likelihoods(self.spec, self.verification.toploc_k, verifier, worker)
        self._tables = {HONEST: self.spec.honest[name], **self.spec.cheating}
        self._kept: dict[str, list[Look]] = {}

    @property
    def ways(self) -> list[str]:
        """Calibrated ways of cheating."""
        return [name for name in self._tables if name != HONEST]

    def of(self, kind: str) -> list[Look]:
        """LIBRARY groups of this kind."""
        if kind not in self._kept:
            random = np.random.default_rng([7, sorted(self._tables).index(kind)])
            self._kept[kind] = [self._draw(random, self._tables[kind]) for _ in range(LIBRARY)]
        return self._kept[kind]

    def refused(self, groups: list[Look]) -> bool:
        """Whether the thresholds refuse a file of which these groups were looked at."""
        if any(one.activations for one in groups):
            return True
        together = groups[0].distances if len(groups) == 1 else np.concatenate([one.distances for one in groups])
        return check_sampling(together, self.thresholds) is not None

    def evidence(self, groups: list[Look]) -> Evidence:
        """What these groups of one file say together."""
        if len(groups) == 1:
            return groups[0].alone
        ratios = self._likelihoods.of_file(np.stack([one.ratios for one in groups]))
        return Evidence(dict(zip(self._likelihoods.names, ratios.tolist(), strict=True)))

    def chance(self, kind: str) -> float:
        """That a look at one group of this kind is refused."""
        return sum(self.refused([one]) for one in self.of(kind)) / LIBRARY

    def _draw(self, random: np.random.Generator, table: CalibrationTable) -> Look:
        tokens = max(1, round(sum(table.tokens) / sum(table.proofs)))  # of a sample, which has one proof
        steps = random.choice(_STEPS, (self.samples, 1), p=np.array(table.proofs) / sum(table.proofs))
        distances = random.choice(_DISTANCES, (self.samples, tokens), p=np.array(table.tokens) / sum(table.tokens))
        group = [
            SampleStatistics(tuple(self._errors(step) for step in row), each, group=0)
            for row, each in zip(steps.tolist(), distances, strict=True)
        ]
        alone = self._likelihoods.evidence(group)
        ratios = np.array([np.exp(self._likelihoods.of_samples(group)).mean(axis=0)])
        errors = [error for one in group for error in one.errors]
        refused = check_activations(errors, self.thresholds) is not None
        return Look(refused, distances.ravel(), np.log(ratios[0]), alone)

    def _errors(self, distance: float) -> ProofErrors:
        """The least that a proof of this mean distance must be: as many differing exponents as fit, then mantissas."""
        k = self.verification.toploc_k
        exponents = min(k - 1, int(distance * k // _EXPONENT))
        mantissa = (distance * k - _EXPONENT * exponents) / (k - exponents)
        return ProofErrors(exponents, mantissa, mantissa)
