"""Honest files that a calibration's hard thresholds refuse, of 10^5: simulated, since nobody can measure so many.

Each calibration sees so many samples of a made-up pair of engines, each of a problem of its own, and its thresholds
judge files of 16 samples (two problems, eight answers each; answers to one problem share what makes them hard). `rule`
is the program's; `margin` what it did before: 1.5 times the largest value seen. The same files are judged by both.
Seeds are the calibrations' numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.calibration.thresholds import FLOORS, hard_thresholds
from protocol.decision import SampleStatistics
from protocol.run import EnvironmentSpec, RolloutSpec, RunSpec
from protocol.thresholds import Thresholds
from protocol.toploc import ProofErrors

F64 = NDArray[np.float64]
GROUP, PROMPTS, PROOFS, TOKENS = 8, 2, 2, 32
ROLLOUT = RolloutSpec(group_size=GROUP, prompts_per_file=PROMPTS, prompts_per_step=PROMPTS, max_output_tokens=TOKENS)
RUN = RunSpec(name="simulated", environment=EnvironmentSpec(name="sort"), rollout=ROLLOUT)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines. spread: of what problems have in common (log-normal); distance: mantissa steps on average;
    exponents: mismatches per proof; outside: share of tokens outside their interval; far: how far, on average."""

    spread: float
    distance: float
    exponents: float
    outside: float
    far: float


PAIRS = {
    "bf16 seen in fp32": Pair(spread=0.2, distance=2.5, exponents=1.0, outside=0.03, far=0.01),
    "fp32 of two builds": Pair(spread=0.3, distance=0.02, exponents=0.01, outside=0.001, far=0.001),
    "two GPUs, heavy": Pair(spread=0.4, distance=1.5, exponents=1.5, outside=0.03, far=0.02),
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """Samples. means, medians, exponents: float64[samples, proofs]; distances: float64[samples, tokens]."""

    means: F64
    medians: F64
    exponents: F64
    distances: F64


def draw(pair: Pair, groups: int, each: int, random: np.random.Generator) -> Drawn:
    """`each` samples of every one of so many problems."""
    hard = np.repeat(np.exp(pair.spread * random.standard_normal(groups) - pair.spread**2 / 2), each)[:, None]
    shape = (groups * each, PROOFS)
    means = pair.distance * hard * random.gamma(12.0, 1 / 12.0, shape)
    # Few tokens are outside, and which ones does not matter: the first. How far is drawn of those alone.
    outside = np.arange(TOKENS) < random.binomial(TOKENS, np.minimum(1.0, pair.outside * hard))
    distances = np.zeros(outside.shape)
    far = random.exponential(pair.far, int(outside.sum()))
    distances[outside] = np.minimum(1.0, far * np.broadcast_to(hard, outside.shape)[outside])
    return Drawn(means, np.floor(means * 0.8), random.poisson(pair.exponents * hard, shape).astype(float), distances)


def statistics(drawn: Drawn) -> list[SampleStatistics]:
    """The same as a calibration has them."""
    rows = zip(drawn.exponents, drawn.means, drawn.medians, drawn.distances, strict=True)
    return [
        SampleStatistics(tuple(ProofErrors(int(e), float(m), float(d)) for e, m, d in zip(*one, strict=True)), far)
        for *one, far in rows
    ]


def refused(drawn: Drawn, thresholds: Thresholds) -> NDArray[np.bool_]:
    """bool[files], for samples of whole files: what protocol.checks says of each, all at once."""
    proofs = (
        (drawn.exponents > thresholds.exponent_mismatches)
        | (drawn.means > thresholds.mantissa_mean)
        | (drawn.medians > thresholds.mantissa_median)
    )
    files = len(proofs) // (GROUP * PROMPTS)
    tokens = drawn.distances.reshape(files, -1)
    sampling = (tokens.mean(axis=1) > thresholds.sampling_mean) | (
        (tokens > 0.01).mean(axis=1) > thresholds.sampling_outside
    )
    return proofs.reshape(files, -1).any(axis=1) | sampling


def by_rule(drawn: Drawn, seed: int) -> Thresholds:
    """The program's thresholds for a pair of which this was measured."""
    return hard_thresholds(RUN, {"a>b": statistics(drawn)}, seed).thresholds("a", "b")


def by_margin(drawn: Drawn, seed: int) -> Thresholds:
    """What the thresholds were: 1.5 times the largest value seen, files of up to 100 draws, twelve far tokens to
    spare."""
    files = np.random.default_rng(seed).integers(len(drawn.means), size=(100, GROUP * PROMPTS))
    tokens = drawn.distances[files].reshape(100, -1)
    spare = 12 / tokens.shape[1]
    return Thresholds(
        exponent_mismatches=int(np.ceil(max(FLOORS["exponent_mismatches"], 1.5 * drawn.exponents.max()))),
        mantissa_mean=max(FLOORS["mantissa_mean"], 1.5 * float(drawn.means.max())),
        mantissa_median=max(FLOORS["mantissa_median"], 1.5 * float(drawn.medians.max())),
        sampling_mean=1.5 * float(tokens.mean(axis=1).max()) + 0.1 * spare,
        sampling_outside=1.5 * float((tokens > 0.01).mean(axis=1).max()) + spare,
    )


RULES: dict[str, Callable[[Drawn, int], Thresholds]] = {"rule": by_rule, "margin": by_margin}


def count(pair: Pair, samples: int, calibrations: int, files: int) -> dict[str, list[int]]:
    """How many of `files` files each calibration's thresholds refuse, by rule."""
    counts: dict[str, list[int]] = {name: [] for name in RULES}
    for seed in range(calibrations):
        random = np.random.default_rng(seed)
        seen = draw(pair, samples, 1, random)
        judged = draw(pair, files * PROMPTS, GROUP, random)
        for name, thresholds in RULES.items():
            counts[name].append(int(refused(judged, thresholds(seen, seed)).sum()))
    return counts
