"""From many small pieces of evidence to one standing per worker: a sequential likelihood-ratio test.

One checked file gives, for every way of cheating that the run was calibrated for, a likelihood ratio of
"this way" against "honest". A worker's record is the running sum of their logarithms, kept above a floor
(Page's CUSUM, Biometrika 41, 1954), so that years of honest work buy no licence to cheat.

What is promised. Take any one way of cheating, and an honest worker whose statistics follow the honest table that it is
held against. Then the ratio of each file has expectation at most 1:
- it is taken against the table of the pair of engines at hand;
- a class that nobody calibrated vouches for nothing and is not admitted (protocol.engines, VerificationSpec.admits);
- where the pair has no table, because the verifier is of a class that nobody measured, the ratio is 1: nothing is said.
  Which pairs have tables does not depend on the worker's name (a run must hold all pairs of its classes);
- activations and sampling of one sample depend on each other, so their ratios are averaged, not multiplied:
  the mean of two numbers of expectation <= 1 has expectation <= 1, however they depend;
- a cheat may cheat in some samples only: for a share f of them the ratio of a sample is (1 - f) + f * ratio, and a
  file's ratio is the mean over several f of the product over its samples;
- a cheat may cheat in some files only: for each of FILE_SHARES g the factor of a file is (1 - g) + g * ratio, and each
  has a running sum of its own;
- samples of one problem depend on each other (often they are equal), so their ratios are averaged, too;
- tables are estimates: every ratio is divided by the largest expectation that they may have given (`allowance`);
- every cap cuts from above, which again only makes it smaller. One outlier cannot convict.
For such factors the expected number of files until the sum passes ln A is at least A (Lorden, Ann. Math.
Statist. 42, 1971); with n ways of cheating and three shares of files the bound is ln A + ln 3 n. So an honest worker is
suspected at most once in 1/false_positive files on average, and odds of slash_odds : 1 take at least slash_odds files
on average.
The floor is Wald's lower bound, ln(false_negative / (1 - false_positive)).

Beside the calibrated ways stands one that nobody thought of, `anything`: every bin equally likely. And what no
honest sample showed is the less likely the farther it lies from what they did show.

Pure arithmetic: knows nothing of models, files or stakes. What a standing leads to is decided elsewhere.
"""

import math
from collections.abc import Sequence
from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.engines import pair
from protocol.errors import ProtocolError
from protocol.toploc import ProofErrors

# Finer near zero, where honest engines lie; farther out bins widen in proportion, as what they tell apart does.
PROOF_EDGES = (0.03, 0.0625, 0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
"""Upper ends of the bins of `proof_distance`; the last bin is open."""
TOKEN_EDGES = (0.0, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
"""Upper ends of the bins of `sampling.distance`: the first holds exactly 0, the last is open."""
PROOF_BINS = len(PROOF_EDGES) + 1
TOKEN_BINS = len(TOKEN_EDGES) + 1
MAX_TABLES = 144
"""Twelve classes, each seen by each; what a run has bytes for decides before."""

# without it, activations that are not numbers would be in no table, and stand as innocent
ANYTHING = "anything"
# No token, proof or sample decides alone: honest hardware has outliers that no table has seen.
_TOKEN_CAP = math.log(20.0)
_PROOF_CAP = math.log(100.0)
SAMPLE_BOUND, MOST_BOUND = 100.0, 2000.0
"""The largest ratio of the proofs of one sample, or of its tokens: where a table says nothing else, and at most. Of the
two the mean counts: a group whose tokens alone are as far off as can be counts half of it."""
_PROOFS = np.array(PROOF_EDGES)
_TOKENS = np.array(TOKEN_EDGES)

FILE_SHARES = (0.01, 0.1, 1.0)
"""Of a cheat's files that are cheated. By the last alone who cheats in few would never be seen: each honest file
between takes back what a cheated one added."""
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class DecisionError(ProtocolError):
    """Tables or evidence that no decision can be made with."""


class CalibrationTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was counted in calibration. proofs: PROOF_BINS counts of proofs; tokens: TOKEN_BINS counts of tokens;
    allowance (of honest tables): subtracted from the logarithm of every sample's ratio, for what the table may be wrong
    by and tokens may depend on each other (calibrate measures it); bound (of honest tables): the largest ratio of one
    sample's proofs, or tokens, that so many honest samples allow (`bound_of`)."""

    proofs: tuple[int, ...]
    tokens: tuple[int, ...]
    allowance: float = 0.0
    bound: float = SAMPLE_BOUND


class DecisionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The run's agreed bounds and tables; without tables there is no statistical standing, only the hard thresholds.

    false_positive: one honest file in how many may start a suspicion (1e-4: one in ten thousand);
    false_negative: with which probability Wald's test may take a cheat for honest;
    slash_odds: odds to one, below which no stake is touched; shares: of a cheat's samples that are cheated, each
    as likely as the others; file_cap: the largest ratio that one file can contribute; temper: exponent <= 1 of
    every sample's ratio;
    honest: tables by "worker's class>verifier's class"; cheating: by way, as seen by a verifier that computes as the
    worker says it did; crossed: the same as seen by others (`cheating`, where there is none).
    """

    false_positive: float = 1e-4
    false_negative: float = 1e-2
    slash_odds: float = 1e9
    shares: tuple[float, ...] = (0.03, 0.2, 1.0)
    file_cap: float = 1e3
    temper: float = 1.0
    honest: dict[str, CalibrationTable] = {}
    cheating: dict[str, CalibrationTable] = {}
    crossed: dict[str, CalibrationTable] = {}

    def check(self) -> None:
        """Raise DecisionError naming the first field that makes no sense."""
        for field, good, rule in self._rules():
            if not good:
                raise DecisionError(f"unusable decision rule: {field}", rule, f"change verification.decision.{field}")
        for name, table in [*self.honest.items(), *self.cheating.items(), *self.crossed.items()]:
            _check_table(name, table)

    def _rules(self) -> list[tuple[str, bool, str]]:
        return [
            ("false_positive", 0 < self.false_positive <= 0.1, "must lie above 0 and be at most 0.1"),
            ("false_negative", 0 < self.false_negative <= 0.5, "must lie above 0 and be at most 0.5"),
            ("slash_odds", 1e9 <= self.slash_odds <= 1e30, "must be at least 1e9: honest stakes come first"),
            ("shares", 1 <= len(self.shares) <= 8, "must be 1 to 8 numbers"),
            ("shares", all(0 < share <= 1 for share in self.shares), "must lie above 0 and be at most 1"),
            ("file_cap", 2 <= self.file_cap <= 1e3, "must be 2 to 1000, so that no three files decide"),
            ("temper", 0 < self.temper <= 1, "must lie above 0 and be at most 1"),
            ("honest", len(self.honest) <= MAX_TABLES, f"at most {MAX_TABLES} tables"),
            ("cheating", len(self.cheating) <= MAX_TABLES, f"at most {MAX_TABLES} tables"),
            ("honest", bool(self.honest) == bool(self.cheating), "honest and cheating tables come together"),
            ("crossed", set(self.crossed) <= set(self.cheating), "must name ways that `cheating` names"),
        ]

    @property
    def calibrated(self) -> bool:
        return bool(self.honest)

    @property
    def ways(self) -> tuple[str, ...]:
        """Every way of cheating that is looked for; none without tables."""
        return (*sorted(self.cheating), ANYTHING) if self.calibrated else ()

    @property
    def suspect_bound(self) -> float:
        """Log odds at which a worker is suspected."""
        return math.log(1 / self.false_positive) + self._tests

    @property
    def slash_bound(self) -> float:
        """Log odds at which a stake may be touched."""
        return math.log(self.slash_odds) + self._tests

    @property
    def _tests(self) -> float:
        # Each way of cheating, and each share of files, is a test of its own: chances to be suspected wrongly add up
        # (Bonferroni).
        return math.log(max(1, len(self.ways)) * len(FILE_SHARES))

    @property
    def floor(self) -> float:
        """Log odds (negative) at which a worker is cleared, and below which no record falls."""
        # Wald's lower bound serves twice: it clears a worker, and it is all the credit that a good record can earn.
        return math.log(self.false_negative / (1 - self.false_positive))


def _check_table(name: str, table: CalibrationTable) -> None:
    for what, counts, bins in (("proofs", table.proofs, PROOF_BINS), ("tokens", table.tokens, TOKEN_BINS)):
        # A run file is a stranger's: within 2^40 all counts stay exact in float64.
        if len(counts) != bins or min(counts) < 0 or not 0 < sum(counts) < 1 << 40:
            raise DecisionError(
                f"unusable decision table {name[:80]!r}", f"{what} must be {bins} counts", "calibrate the run again"
            )
    if not 0 <= table.allowance <= 20:
        raise DecisionError(
            f"unusable decision table {name[:80]!r}", "allowance must be 0 to 20", "calibrate the run again"
        )
    if not SAMPLE_BOUND <= table.bound <= MOST_BOUND:
        raise DecisionError(
            f"unusable decision table {name[:80]!r}",
            f"bound must be {SAMPLE_BOUND:g} to {MOST_BOUND:g}",
            "calibrate the run again",
        )


def bound_of(samples: int) -> float:
    """The largest ratio that a statistic of one sample may count where `samples` honest ones were seen. What none of
    them showed may happen in 3 of so many (Hanley and Lippman-Hand, JAMA 249, 1983), and must not lift the expectation
    of an honest ratio by more than one all the same: so the cards in use decide what their outliers cost."""
    return min(max(SAMPLE_BOUND, samples / 3), MOST_BOUND)


class SampleStatistics(msgspec.Struct, frozen=True):
    """What one prefill says about one sample. errors: one per proof; distances: float64[output tokens]; group: the
    problem that it shares with others of its file, -1 if it stands alone; routing: of its experts
    (protocol.checks.check_routing), the worst of all tokens, None of a model without."""

    errors: tuple[ProofErrors, ...]
    distances: F64
    group: int = -1
    routing: float | None = None


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one checked file adds. log_ratios: by way of cheating, natural logarithms, at most ln file_cap.

    verifier: class of the engine that measured it (device, dtype, attention), for people and for the rule that a
    second class must agree.
    """

    log_ratios: dict[str, float]
    samples: int = 0
    proofs: int = 0
    tokens: int = 0
    verifier: str = ""


class WorkerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's history in a few numbers; journal it. log_odds: by way of cheating, one for each of FILE_SHARES, never
    below the floor."""

    log_odds: dict[str, tuple[float, float, float]] = {}
    files: int = 0
    proofs: int = 0
    tokens: int = 0


class SuspicionLevel(IntEnum):
    """Numbers are journalled and shown: never renumber."""

    OPEN = 0
    """too little is known"""
    CLEARED = 1
    """honest, by Wald's lower bound against every way of cheating in all files"""
    SUSPECT = 2
    """lost pay and quarantine; a second class of engine should look"""
    CONVICTED = 3
    """beyond slash_odds : 1"""


class WorkerStanding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a worker stands. log_odds: natural log, of the likeliest way of cheating; against: its name."""

    level: SuspicionLevel
    log_odds: float
    against: str
    files: int


class Decision:
    """The test for one worker. record: restored from the journal, if there is one."""

    def __init__(self, spec: DecisionSpec, record: WorkerRecord | None = None) -> None:
        self._spec = spec
        self.record = record or WorkerRecord()

    def update(self, evidence: Evidence) -> WorkerStanding:
        """Add one file's evidence. The same file must be added once only: the caller keeps count of files."""
        self.record = after(self.record, evidence, self._spec)
        return self.standing

    @property
    def standing(self) -> WorkerStanding:
        return standing(self.record, self._spec)


def after(record: WorkerRecord, evidence: Evidence, spec: DecisionSpec) -> WorkerRecord:
    """The record once `evidence` is added. Ways of cheating that the run does not list are ignored."""
    cap = math.log(spec.file_cap)
    odds: dict[str, tuple[float, float, float]] = {}
    # Walked by the run's own list: a verifier's message cannot bring in a way that nobody calibrated.
    for name in spec.ways:
        ratio = evidence.log_ratios.get(name, 0.0)
        # The floor keeps a long honest history from paying for later cheating; the cap, one file from convicting.
        ratio = 0.0 if math.isnan(ratio) else min(ratio, cap)
        rare, some, all_ = record.log_odds.get(name, (0.0, 0.0, 0.0))
        added = [math.log((1 - share) + share * math.exp(ratio)) for share in FILE_SHARES]
        odds[name] = (
            max(spec.floor, rare + added[0]),
            max(spec.floor, some + added[1]),
            max(spec.floor, all_ + added[2]),
        )
    return WorkerRecord(odds, record.files + 1, record.proofs + evidence.proofs, record.tokens + evidence.tokens)


def standing(record: WorkerRecord, spec: DecisionSpec) -> WorkerStanding:
    """What the record amounts to."""
    known = {name: max(odds) for name, odds in record.log_odds.items() if name in spec.ways}
    if not known:
        return WorkerStanding(SuspicionLevel.OPEN, 0.0, "", record.files)
    # Ties by name, so that every validator accuses of the same.
    against = max(known, key=lambda name: (known[name], name))
    highest = known[against]
    # What clears is that not all files are cheated: of rare cheats a few files say nothing.
    whole = max(record.log_odds[name][-1] for name in known)
    if highest >= spec.slash_bound:
        level = SuspicionLevel.CONVICTED
    elif highest >= spec.suspect_bound:
        level = SuspicionLevel.SUSPECT
    elif whole <= spec.floor:
        level = SuspicionLevel.CLEARED
    else:
        level = SuspicionLevel.OPEN
    return WorkerStanding(level, highest, against, record.files)


def proof_distance(error: ProofErrors, k: int) -> float:
    """Mean distance of the k points in mantissa steps, 0 to 128: a differing exponent counts as 128."""
    agreeing = k - error.exponent_mismatches
    # Mantissa steps in a factor of two: what a differing exponent counts. A bf16 number has seven mantissa bits.
    binade = 128.0
    if agreeing <= 0:
        return binade
    return (error.mantissa_mean * agreeing + binade * error.exponent_mismatches) / k


def proof_bins(errors: Sequence[ProofErrors], k: int) -> I64:
    """int64[proofs]: the bin of each proof's distance; not a number counts as farthest."""
    values = np.array([proof_distance(error, k) for error in errors], dtype=np.float64)
    return _bins(values, _PROOFS)


def token_bins(distances: F64) -> I64:
    """int64[tokens]: the bin of each token's sampling distance; not a number counts as farthest."""
    return _bins(distances, _TOKENS)


def _bins(values: F64, edges: F64) -> I64:
    return np.searchsorted(edges, np.nan_to_num(values, nan=np.inf, posinf=np.inf), side="left").astype(np.int64)


def count(samples: Sequence[SampleStatistics], k: int) -> CalibrationTable:
    """The table of these samples: what calibration writes."""
    proofs, tokens = np.zeros(PROOF_BINS, dtype=np.int64), np.zeros(TOKEN_BINS, dtype=np.int64)
    for sample in samples:
        proofs += np.bincount(proof_bins(sample.errors, k), minlength=PROOF_BINS)
        tokens += np.bincount(token_bins(sample.distances), minlength=TOKEN_BINS)
    return CalibrationTable(proofs=tuple(map(int, proofs)), tokens=tuple(map(int, tokens)))


class Likelihoods:
    """Turns a file's statistics into evidence, by the tables of one run.

    k: points per proof; worker, verifier: classes of the engines that made and that measured the file
    (protocol.engines). An honest worker states its class, so only the table of this pair counts. honest: that table;
    None if the pair was not calibrated, and then no way of cheating is looked for: `names` is empty.
    """

    def __init__(self, spec: DecisionSpec, k: int, verifier: str, worker: str) -> None:
        self._spec, self._k = spec, k
        self.honest = spec.honest.get(pair(worker, verifier))
        self.names = spec.ways if self.honest else ()
        equals = worker == verifier
        # Seen in another class an honest file looks worse, and so does a cheat: such looks have tables of their own.
        known = spec.cheating if equals else {**spec.cheating, **spec.crossed}
        cheats = [known[name] for name in self.names if name != ANYTHING]
        if self.honest is not None:
            self._by_proof = _terms([table.proofs for table in cheats], self.honest.proofs, _PROOF_CAP)
            self._by_token = _terms([table.tokens for table in cheats], self.honest.tokens, _TOKEN_CAP)

    def evidence(self, samples: Sequence[SampleStatistics], verifier: str = "") -> Evidence:
        """What the samples of one file say together. verifier: the name that the evidence carries."""
        if not self.names:
            return Evidence({})
        ratios = self.of_file(_by_group(self.of_samples(samples), [sample.group for sample in samples]))
        proofs = sum(len(sample.errors) for sample in samples)
        tokens = sum(int(sample.distances.size) for sample in samples)
        log_ratios = {name: float(ratio) for name, ratio in zip(self.names, ratios, strict=True)}
        return Evidence(log_ratios, len(samples), proofs, tokens, verifier)

    def of_samples(self, samples: Sequence[SampleStatistics]) -> F64:
        """float64[samples, cheats]: log ratio of each sample if it was cheated; at most the cap."""
        if self.honest is None:
            return np.zeros((len(samples), 0))
        proofs = np.zeros((len(samples), PROOF_BINS))
        tokens = np.zeros((len(samples), TOKEN_BINS))
        for i, sample in enumerate(samples):
            proofs[i] = np.bincount(proof_bins(sample.errors, self._k), minlength=PROOF_BINS)
            tokens[i] = np.bincount(token_bins(sample.distances), minlength=TOKEN_BINS)
        total: F64 = np.zeros((len(samples), len(self.names)))
        known: F64 = np.zeros((len(samples), 1))
        for counts, terms in ((proofs, self._by_proof), (tokens, self._by_token)):
            summed: F64 = counts @ terms.T
            seen: F64 = (counts.sum(axis=1) > 0).astype(np.float64)[:, None]
            total = total + seen * np.exp(np.minimum(summed * self._spec.temper, math.log(self.honest.bound)))
            known = known + seen
        mean: F64 = np.where(known > 0, total / np.maximum(known, 1.0), 1.0)
        # Logarithms of zero would be minus infinity, from which no later evidence brings a record back.
        least_ratio = 1e-30
        return np.log(np.maximum(mean, least_ratio)) - self.honest.allowance

    def of_file(self, samples: F64) -> F64:
        """samples: float64[samples, cheats] -> float64[cheats]: the log of the mean over the shares of cheated samples,
        capped."""
        shares = np.array(self._spec.shares)[:, None, None]
        sums: F64 = np.log((1 - shares) + shares * np.exp(samples)).sum(axis=1)
        # log-sum-exp: a file of many samples would overflow exp.
        highest: F64 = sums.max(axis=0)
        mean: F64 = highest + np.log(np.exp(sums - highest).sum(axis=0) / len(sums))
        capped: F64 = np.minimum(mean, math.log(self._spec.file_cap))
        return capped


def _by_group(samples: F64, groups: Sequence[int]) -> F64:
    """float64[samples, ...] log ratios -> float64[groups, ...]: the log of each group's mean ratio."""
    places: dict[int, list[int]] = {}
    for i, group in enumerate(groups):
        places.setdefault(group if group >= 0 else -1 - i, []).append(i)
    return np.log(np.stack([np.exp(samples[chosen]).mean(axis=0) for chosen in places.values()])) if places else samples


def _terms(cheats: Sequence[Sequence[int]], honest: Sequence[int], cap: float) -> F64:
    """float64[cheats + 1, bins]: what one proof or token in a bin adds to a log ratio."""
    bins = len(honest)
    likely = np.stack([*(_log_share(counts) for counts in cheats), np.full(bins, -math.log(bins))])
    return np.minimum(likely - _log_share(honest), cap)


def _log_share(counts: Sequence[int]) -> F64:
    """Log probabilities of the bins; an empty one beside a full one has half a count, the next an eighth, and so on."""
    values = np.array(counts, dtype=np.float64)
    full = np.flatnonzero(values)
    away = np.abs(np.arange(values.size)[:, None] - full).min(axis=1)
    # Counts of empty bins: what calibration never saw is rare, and not impossible.
    smoothing, fall = 0.5, 0.25
    values = np.where(values > 0, values, smoothing * fall ** (away - 1.0))
    return np.log(values / values.sum())
