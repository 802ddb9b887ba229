"""Hard thresholds from what honest work showed: so far out that of 10^5 honest files fewer than ten are refused.

A few hundred samples do not show what happens once in 10^5 files, so their tails are fitted and followed outwards. A
file is refused for its worst proof or for the sum of its tokens' distances:
- of proofs, the worst of each sample counts (those of one sample are alike). What exceeds a high threshold is taken for
  exponential or, where it is heavier, for a generalised Pareto tail (Pickands 1975; probability-weighted moments as in
  Hosking and Wallis, Technometrics 29, 1987);
- of tokens, files are drawn from the samples, and their tail is followed in the same way.
Both are widened by what so few samples leave open. tests/node/calibration/simulated.py counts what comes of it.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.inference.errors import EngineError
from protocol.checks import check_activations, check_routing, check_sampling, sampling_statistics
from protocol.decision import SampleStatistics
from protocol.engines import classes, is_exact
from protocol.run import RunSpec, VerificationSpec
from protocol.thresholds import EXACT, Thresholds

F64 = NDArray[np.float64]
Looks = dict[str, list[SampleStatistics]]
REFUSED = 4e-6
"""Honest files that each of the thresholds may refuse: of five, 2 in 10^5 together; a sixth is of models with
experts."""
FLOORS = {"exponent_mismatches": 4, "mantissa_mean": 0.25, "mantissa_median": 1.0}
"""TOPLOC's thresholds are never below these."""
WIDER = 2.0
"""Standard errors that a fitted scale is widened by."""


def hard_thresholds(run: RunSpec, honest: Looks, seed: int) -> VerificationSpec:
    """Thresholds per pair of classes. The section's own are the loosest of all: of pairs not listed, and where nothing
    stands for a pair (protocol.run).

    Two engines that round differently anywhere (bf16's decoding and prefill of one class do, once in some hundred
    proofs) may be as far apart in a single proof as any two: only a pair that always agreed has thresholds of its own
    for proofs. What lies between is for the decision over many of them.
    """
    pairs = {name: _thresholds_of(run, samples, seed) for name, samples in honest.items()}
    loosest = Thresholds(
        **{
            name: max(getattr(thresholds, name) for thresholds in pairs.values())
            for name in Thresholds.__struct_fields__
        }
    )
    of_proofs = {name: getattr(loosest, name) for name in FLOORS}
    for name, samples in honest.items():
        if is_exact(*classes(name)):
            pairs[name] = _equal(name, samples)
        elif not _always_agreed(samples):
            pairs[name] = msgspec.structs.replace(pairs[name], **of_proofs)
    tighter = {name: thresholds for name, thresholds in pairs.items() if thresholds != loosest}
    return msgspec.structs.replace(run.verification, **msgspec.structs.asdict(loosest), pairs=tighter)


def _equal(name: str, samples: Sequence[SampleStatistics]) -> Thresholds:
    """The thresholds of a pair of which equality is asked. Raises EngineError if it is not what was seen."""
    errors = [error for sample in samples for error in sample.errors]
    distances = np.concatenate([sample.distances for sample in samples])
    routing = [np.array([sample.routing], dtype=np.float32) for sample in samples if sample.routing is not None]
    fault = check_activations(errors, EXACT) or check_sampling(distances, EXACT) or check_routing(routing, EXACT)
    if fault is None:
        return EXACT
    raise EngineError(
        "a class of batch-invariant arithmetic is not what it says",
        f"honest work of {classes(name)[0]} differed where it was looked at again: {fault.detail}",
        "leave the kernel 'fixed' out for this hardware, and report it",
    )


def draw_files(run: RunSpec, samples: int, seed: int, files: int) -> np.ndarray:
    """int64[files, samples per file]: files drawn from samples, with replacement."""
    return np.random.default_rng(seed).integers(samples, size=(files, run.rollout.samples_per_file))


def rarely_exceeded(values: F64, chance: float) -> float:
    """What one more value of this kind exceeds with at most about `chance`: where its fitted tail is that thin, and no
    less than half as much again as the largest seen."""
    ordered = np.sort(values)
    # The share of samples whose excesses a tail is fitted to, and how many they are at least.
    count = min(len(ordered) - 1, max(12, int(0.2 * len(ordered))))
    # Room beyond what was seen: of so few samples the largest says little about the next one.
    margin = 1.5
    if count < 1 or ordered[-1] <= 0:
        return margin * float(ordered[-1])
    threshold = ordered[-count - 1]
    excesses = ordered[-count:] - threshold
    times = max(1.0, count / len(ordered) / chance)
    mean = float(excesses.mean()) * (1 + WIDER / math.sqrt(count))
    shape = _shape(excesses)
    reach = math.log(times) if shape <= 0 else (times**shape - 1) / shape * (1 - shape)
    return float(max(margin * ordered[-1], threshold + mean * max(reach, math.log(times))))


def _shape(excesses: F64) -> float:
    """Of a generalised Pareto tail, by probability-weighted moments; 0 is exponential."""
    n = len(excesses)
    second = float((excesses * np.arange(n - 1, -1, -1)).sum()) / (n * max(n - 1, 1))
    first = float(excesses.mean())
    # Shape of the heaviest tail that is believed: of so few excesses no heavier one can be told from chance.
    return 0.0 if first <= 2 * second else min(0.15, max(0.0, 2 - first / (first - 2 * second)))


def _always_agreed(samples: Sequence[SampleStatistics]) -> bool:
    errors = [error for sample in samples for error in sample.errors]
    # Mantissa mean up to which two engines agree in a proof: a few values that rounded the other way at the end.
    return all(error.exponent_mismatches == 0 and error.mantissa_mean <= 0.05 for error in errors)


def _thresholds_of(run: RunSpec, samples: Sequence[SampleStatistics], seed: int) -> Thresholds:
    proven = [sample for sample in samples if sample.errors]
    mean, outside = _sampling_threshold(run, samples, seed)

    def threshold(name: str) -> float:
        worst = [max(getattr(error, name) for error in sample.errors) for sample in proven]
        # 2^64 stands for no common exponent: as a number it would be the whole tail.
        usable = np.array([value for value in worst if value < 128], dtype=np.float64)
        chance = REFUSED / run.rollout.samples_per_file
        return max(FLOORS[name], rarely_exceeded(usable, chance) if usable.size else 0.0)

    return Thresholds(
        exponent_mismatches=min(run.verification.toploc_k, math.ceil(threshold("exponent_mismatches"))),
        mantissa_mean=_neat(threshold("mantissa_mean")),
        mantissa_median=_neat(threshold("mantissa_median")),
        sampling_mean=_neat(mean),
        sampling_outside=_neat(outside),
        routing=_routing_threshold(run, samples),
    )


def _routing_threshold(run: RunSpec, samples: Sequence[SampleStatistics]) -> float:
    """By how much a sample's experts may be less likely than a router's own; of a model without, what stands there."""
    worst = np.array([sample.routing for sample in samples if sample.routing is not None], dtype=np.float64)
    if not worst.size:
        return Thresholds().routing
    # The margin of experts is never below: so much is a rounding in float32 that none of a few hundred samples met.
    return _neat(max(1e-3, rarely_exceeded(worst, REFUSED / run.rollout.samples_per_file)))


def _sampling_threshold(run: RunSpec, samples: Sequence[SampleStatistics], seed: int) -> tuple[float, float]:
    """(mean, share outside) that files of these samples stay below."""
    tokens = np.array([sample.distances.size for sample in samples], dtype=np.float64)
    seen = [sampling_statistics(sample.distances) for sample in samples]
    problems = run.rollout.prompts_per_file  # answers to one problem are alike: at worst, equal
    files = draw_files(run, len(samples), seed, 4000)[:, :problems]  # files that are drawn for the tail of a file's sum
    in_file = tokens[files].sum(axis=1)
    # A file of honest tokens may have this many so far outside on top of what was seen: rare flips are not gross.
    # Fewer, where two classes gave the same tokens throughout.
    spare = 12 if any(mean > 0 for mean, _ in seen) else 4

    def threshold(per_sample: F64, far: float) -> float:
        total = per_sample * tokens
        shares = total[files].sum(axis=1) / in_file
        unsure = float(total.std(ddof=1) / math.sqrt(len(total)) / tokens.mean()) if len(total) > 1 else 0.0
        return rarely_exceeded(shares, REFUSED) + WIDER * unsure + far / float(in_file.min() * run.rollout.group_size)

    means, outsides = np.array(seen, dtype=np.float64).T
    return threshold(means, spare * 0.1), threshold(outsides, spare)


def _neat(value: float) -> float:
    """Rounded up to two significant digits."""
    scale = 10 ** (math.floor(math.log10(value)) - 1)
    # Up, so that rounding never refuses what was measured as honest.
    return float(f"{math.ceil(value / scale) * scale:.2g}")
