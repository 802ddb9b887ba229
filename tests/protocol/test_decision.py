import itertools
import math
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protocol import decision
from protocol.decision import (
    ANYTHING,
    FILE_SHARES,
    MOST_BOUND,
    PROOF_BINS,
    PROOF_EDGES,
    SAMPLE_BOUND,
    TOKEN_BINS,
    CalibrationTable,
    Decision,
    DecisionError,
    DecisionSpec,
    Evidence,
    Likelihoods,
    SampleStatistics,
    SuspicionLevel,
    WorkerRecord,
    bound_of,
    proof_distance,
)
from protocol.toploc import ProofErrors

K = 128


def table(peak: int, tokens: list[int]) -> CalibrationTable:
    proofs = [int(1000 * math.exp(-((i - peak) ** 2) / 2)) for i in range(PROOF_BINS)]
    return CalibrationTable(proofs=tuple(proofs), tokens=tuple(tokens))


HONEST = table(4, [9000, *[100] * 8, 50, 20, 10, 2, 1])
HONEST_BF16 = table(7, [8000, *[100] * 8, 150, 120, 60, 12, 2])
INT8 = table(12, [6000, *[100] * 8, 300, 600, 900, 800, 100])
GARBAGE = table(5, [100, *[100] * 8, 300, 600, 900, 2000, 5000])
HONEST_TABLES = {"fp32": HONEST, "bf16": HONEST_BF16}
SPEC = DecisionSpec(
    honest={f"{name}>{name}": table for name, table in HONEST_TABLES.items()},
    cheating={"int8": INT8, "garbage": GARBAGE},
)
STEPS = [*PROOF_EDGES, 100.0]
DISTANCES = np.array([0.0, 1e-10, 5e-9, 5e-8, 5e-7, 5e-6, 5e-5, 5e-4, 2e-3, 5e-3, 2e-2, 5e-2, 0.2, 0.5])


def draw(
    random: np.random.Generator, source: CalibrationTable, samples: int = 8, tokens: int = 20
) -> list[SampleStatistics]:
    """Samples whose statistics follow the shares of `source`."""
    proofs, places = np.array(source.proofs) / sum(source.proofs), np.array(source.tokens) / sum(source.tokens)
    steps = random.choice(STEPS, samples, p=proofs)
    distances = random.choice(DISTANCES, (samples, tokens), p=places)
    return [
        SampleStatistics((ProofErrors(0, step, step),), row)
        for step, row in zip(steps.tolist(), distances, strict=True)
    ]


def likelihoods_of(says: str = "fp32", spec: DecisionSpec = SPEC) -> Likelihoods:
    """Of work by one class, seen by its own."""
    return Likelihoods(spec, K, verifier=says, worker=says)


def files_until(
    level: SuspicionLevel, source: CalibrationTable, says: str, seed: int = 0, most: int = 300
) -> int | None:
    random, likelihoods, worker = np.random.default_rng(seed), likelihoods_of(says), Decision(SPEC)
    for file in range(1, most + 1):
        if worker.update(likelihoods.evidence(draw(random, source))).level >= level:
            return file
    return None


def test_cheats_are_suspected_then_convicted() -> None:
    for says, source in itertools.product(HONEST_TABLES, SPEC.cheating.values()):
        random, likelihoods, worker = np.random.default_rng(1), likelihoods_of(says), Decision(SPEC)
        levels = [worker.update(likelihoods.evidence(draw(random, source))).level for _ in range(8)]
        assert worker.standing.against in SPEC.ways and worker.standing.log_odds > math.log(1e9)
        assert levels[-1] == SuspicionLevel.CONVICTED and levels.index(SuspicionLevel.SUSPECT) >= 1


def test_honest_workers_are_cleared_and_never_suspected() -> None:
    for says, source in HONEST_TABLES.items():
        assert files_until(SuspicionLevel.SUSPECT, source, says, most=400) is None
        random, likelihoods, worker = np.random.default_rng(2), likelihoods_of(says), Decision(SPEC)
        for _ in range(30):
            worker.update(likelihoods.evidence(draw(random, source)))
        assert worker.standing.level == SuspicionLevel.CLEARED


def test_the_ratio_of_honest_samples_has_expectation_at_most_one() -> None:
    """The inequality that the bound on false accusations rests on, for every table."""
    random = np.random.default_rng(3)
    for says, source in HONEST_TABLES.items():
        ratios = np.exp(likelihoods_of(says).of_samples(draw(random, source, samples=4000, tokens=3)))
        assert ratios.mean(axis=0).max() <= 1.02


CALIBRATED = Path("cli/demo/sort.toml")
"""Whose tables were measured, of 512 samples each."""


@pytest.mark.parametrize(
    ("share", "within", "as_measured"), [(1.0, 4, 6), (0.05, 120, 200), (0.01, 1200, 4000), (0.0, None, None)]
)
def test_groups_until_a_cheat_in_some_of_them_is_suspected(
    share: float, within: int | None, as_measured: int | None
) -> None:
    """Files of one group of eight. within: where many honest samples were seen, so that a group may count whole;
    as_measured: with what so few allow."""
    spec = msgspec.convert(tomllib.loads(CALIBRATED.read_text())["verification"]["decision"], DecisionSpec)
    name = next(name for name in spec.honest if name.partition(">")[0] == name.partition(">")[2])
    for bound, most in ((MOST_BOUND, within), (SAMPLE_BOUND, as_measured)):
        honest = msgspec.structs.replace(spec.honest[name], bound=bound)
        likelihoods = likelihoods_of(name.partition(">")[0], msgspec.structs.replace(spec, honest={name: honest}))
        random = np.random.default_rng(8)
        kinds = [
            [likelihoods.evidence(_of_one_group(draw(random, source, tokens=5))) for _ in range(60)]
            for source in (honest, spec.cheating["garbage"])
        ]
        worker, files = Decision(spec), 0
        while worker.standing.level < SuspicionLevel.SUSPECT and files < (most or 1500):
            files += 1
            cheats = share > 0 and not files % round(1 / share)
            worker.update(kinds[cheats][random.integers(60)])
        assert (worker.standing.level >= SuspicionLevel.SUSPECT) is (most is not None), (bound, files)


def _of_one_group(samples: list[SampleStatistics]) -> list[SampleStatistics]:
    return [msgspec.structs.replace(sample, group=0) for sample in samples]


def test_the_factor_of_a_file_has_expectation_at_most_one_for_every_share_of_files() -> None:
    random = np.random.default_rng(7)
    for says, source in HONEST_TABLES.items():
        likelihoods = likelihoods_of(says)
        files = [likelihoods.evidence(draw(random, source, samples=2, tokens=3)) for _ in range(600)]
        steps = [decision.after(WorkerRecord(), one, SPEC).log_odds.values() for one in files]
        # From a record of nothing: the floor is far below.
        factors = np.exp(np.array([list(one) for one in steps]))
        assert factors.mean(axis=0).max() <= 1.1


def test_more_honest_samples_let_one_of_a_cheats_count_for_more() -> None:
    assert [bound_of(samples) for samples in (0, 300, 600, 6000, 10**6)] == [100, 100, 200, 2000, 2000]
    awful = [SampleStatistics((), np.ones(500))]
    ratios = {}
    for bound in (SAMPLE_BOUND, MOST_BOUND):
        spec = msgspec.structs.replace(SPEC, honest={"a>a": msgspec.structs.replace(HONEST, bound=bound)})
        ratios[bound] = float(np.exp(likelihoods_of("a", spec).of_samples(awful)).max())
    assert ratios == {SAMPLE_BOUND: pytest.approx(SAMPLE_BOUND), MOST_BOUND: pytest.approx(MOST_BOUND)}


def test_a_cheat_in_one_sample_of_ten_is_still_found() -> None:
    random, likelihoods, worker = np.random.default_rng(4), likelihoods_of(), Decision(SPEC)
    while worker.record.files < 60:
        samples = draw(random, HONEST, samples=36) + draw(random, GARBAGE, samples=4)
        if worker.update(likelihoods.evidence(samples)).level == SuspicionLevel.CONVICTED:
            break
    assert worker.standing.level == SuspicionLevel.CONVICTED and worker.record.files <= 40


def test_one_file_convicts_nobody_however_bad_it_is() -> None:
    awful = [SampleStatistics((ProofErrors(K, 2.0**64, 2.0**64),) * 20, np.ones(500)) for _ in range(100)]
    worker, evidence = Decision(SPEC), likelihoods_of().evidence(awful)
    assert max(evidence.log_ratios.values()) <= math.log(SPEC.file_cap) + 1e-9
    levels = [worker.update(evidence).level for _ in range(8)]
    assert levels[:3] == [SuspicionLevel.OPEN, SuspicionLevel.SUSPECT, SuspicionLevel.SUSPECT]
    assert levels[-1] == SuspicionLevel.CONVICTED


def test_a_long_honest_history_is_no_licence_to_cheat() -> None:
    random, likelihoods, worker = np.random.default_rng(5), likelihoods_of(), Decision(SPEC)
    for _ in range(200):
        worker.update(likelihoods.evidence(draw(random, HONEST)))
    assert all(odds[-1] == SPEC.floor for odds in worker.record.log_odds.values())
    spent = 0
    while worker.standing.level < SuspicionLevel.SUSPECT:
        worker.update(likelihoods.evidence(draw(random, INT8)))
        spent += 1
    assert spent <= 5


def test_records_survive_the_journal_and_unknown_or_broken_evidence_counts_for_nothing() -> None:
    worker = Decision(SPEC, WorkerRecord({"int8": (1.0, 2.0, 3.0), "of another run": (99.0, 99.0, 99.0)}, files=2))
    worker.update(Evidence({"int8": math.nan, "invented": 50.0, "garbage": math.inf}))
    most = tuple(math.log(1 - share + share * SPEC.file_cap) for share in FILE_SHARES)
    assert worker.record.log_odds == {
        "int8": pytest.approx((1.0, 2.0, 3.0)),
        "garbage": pytest.approx(most),
        ANYTHING: pytest.approx((0.0, 0.0, 0.0)),
    }
    again = msgspec.json.decode(msgspec.json.encode(worker.record), type=WorkerRecord)
    assert Decision(SPEC, again).standing == worker.standing


def test_what_nobody_thought_of_is_found_as_anything() -> None:
    """Proofs unlike any in the tables, tokens in order: as if activations were not numbers."""
    strange = [SampleStatistics((ProofErrors(K, 2.0**64, 2.0**64),), np.zeros(20)) for _ in range(8)]
    worker, likelihoods = Decision(SPEC), likelihoods_of()
    for _ in range(5):
        worker.update(likelihoods.evidence(strange))
    assert worker.standing.level == SuspicionLevel.CONVICTED


def test_the_honest_table_of_a_pair_of_engines_counts_alone() -> None:
    spec = msgspec.structs.replace(SPEC, honest={"a>x": HONEST, "b>y": HONEST_BF16, "a>y": HONEST})
    assert likelihoods_of("x", spec).honest is None
    assert Likelihoods(spec, K, "y", "a").honest == HONEST and Likelihoods(spec, K, "y", "b").honest == HONEST_BF16


def test_a_class_without_a_table_says_nothing_of_anybody() -> None:
    own = "x86/float32/sdpa"
    spec = msgspec.structs.replace(SPEC, honest={f"{own}>{own}": HONEST})
    assert Likelihoods(spec, K, own, own).honest == HONEST
    assert Likelihoods(spec, K, own, "zz/float32/sdpa").honest is None
    samples = draw(np.random.default_rng(0), INT8)
    assert Likelihoods(spec, K, own, "zz/float32/sdpa").evidence(samples).log_ratios == {}


def test_where_nothing_stands_for_a_pair_nothing_is_said() -> None:
    spec = msgspec.structs.replace(SPEC, honest={"a/bfloat16/x>a/bfloat16/x": HONEST})
    likelihoods = Likelihoods(spec, K, "b/bfloat16/x", "a/bfloat16/x")
    samples = draw(np.random.default_rng(0), GARBAGE)
    assert likelihoods.names == () and likelihoods.evidence(samples) == Evidence({})
    assert likelihoods.of_samples(samples).shape == (8, 0)


def test_what_is_noise_between_engines_is_a_cheat_between_equal_ones() -> None:
    """Work as far off as honest bf16 is seen from fp32, handed over by somebody who says that he computes in fp32."""
    exact = CalibrationTable(proofs=(1000, *[0] * (PROOF_BINS - 1)), tokens=(9000, *[0] * (TOKEN_BINS - 1)))
    spec = msgspec.structs.replace(SPEC, honest={"fp32>fp32": exact, "bf16>fp32": HONEST_BF16})
    files = [draw(np.random.default_rng(seed), HONEST_BF16) for seed in range(6)]
    levels = {}
    for says in ("fp32", "bf16"):
        worker, likelihoods = Decision(spec), Likelihoods(spec, K, "fp32", says)
        levels[says] = max(worker.update(likelihoods.evidence(file)).level for file in files)
    assert levels["fp32"] == SuspicionLevel.CONVICTED and levels["bf16"] < SuspicionLevel.SUSPECT


def test_the_allowance_of_a_table_is_taken_off_every_ratio() -> None:
    spec = msgspec.structs.replace(SPEC, honest={"a>a": msgspec.structs.replace(HONEST, allowance=1.5)})
    samples = draw(np.random.default_rng(0), GARBAGE)
    plain = msgspec.structs.replace(SPEC, honest={"a>a": HONEST})
    less = Likelihoods(plain, K, "a", "a").of_samples(samples) - Likelihoods(spec, K, "a", "a").of_samples(samples)
    assert np.allclose(less, 1.5)


def test_a_cheat_seen_by_another_class_follows_its_own_table() -> None:
    spec = msgspec.structs.replace(SPEC, honest={"a>a": HONEST, "a>b": HONEST}, crossed={"int8": GARBAGE})
    samples = draw(np.random.default_rng(0), GARBAGE)
    at = SPEC.ways.index("int8")
    own, other = (Likelihoods(spec, K, verifier, "a").of_samples(samples)[:, at].mean() for verifier in "ab")
    assert other > own


def test_without_tables_nobody_has_a_standing() -> None:
    worker = Decision(DecisionSpec())
    assert worker.update(Evidence({"int8": 100.0})).level == SuspicionLevel.OPEN


def test_not_a_number_is_the_farthest_bin() -> None:
    assert decision.token_bins(np.array([math.nan, math.inf, 0.0])).tolist() == [TOKEN_BINS - 1, TOKEN_BINS - 1, 0]
    assert proof_distance(ProofErrors(K, 2.0**64, 2.0**64), K) == 128
    assert proof_distance(ProofErrors(1, 2.0, 2.0), K) == pytest.approx((127 * 2 + 128) / 128)


def test_counting_gives_the_table_that_was_drawn_from() -> None:
    counted = decision.count(draw(np.random.default_rng(6), HONEST, samples=5000, tokens=10), K)
    assert sum(counted.proofs) == 5000 and sum(counted.tokens) == 50_000
    assert np.abs(np.array(counted.proofs) / 5000 - np.array(HONEST.proofs) / sum(HONEST.proofs)).max() < 0.03


@pytest.mark.parametrize(
    "broken",
    [
        {"slash_odds": 1e6},
        {"false_positive": 0.0},
        {"shares": ()},
        {"shares": (0.0,)},
        {"temper": 1.5},
        {"file_cap": 1e9},
        {"honest": {}},
        {"honest": {"fp32>fp32": CalibrationTable(proofs=(1,), tokens=(1,))}},
        {"honest": {"fp32>fp32": msgspec.structs.replace(HONEST, bound=MOST_BOUND + 1)}},
        {"honest": {"fp32>fp32": CalibrationTable(proofs=(0,) * PROOF_BINS, tokens=(1,) * TOKEN_BINS)}},
    ],
)
def test_rules_that_make_no_sense_are_refused(broken: dict) -> None:
    with pytest.raises(DecisionError):
        msgspec.structs.replace(SPEC, **broken).check()
