"""Which classes of engines a run admits, and that no name earns more than the truth: a worker chooses its name."""

import msgspec
import pytest

from protocol.checks import Reason, check_form
from protocol.decision import PROOF_BINS, TOKEN_BINS, CalibrationTable, DecisionSpec, Likelihoods
from protocol.engines import arithmetic, pair
from protocol.rollout import RolloutBatch, RolloutHeader, SampleRow
from protocol.run import EnvironmentSpec, RunError, RunSpec, VerificationSpec
from protocol.thresholds import Thresholds

HERE = "x86-avx512"
BUILD = "ieee/tp1/torch-2.13.0"
EXACT, EAGER, ROUGH = (f"{HERE}/{way}/{BUILD}" for way in ("float32/sdpa", "float32/eager", "bfloat16/sdpa"))
CALIBRATED = (EXACT, EAGER, ROUGH)
TIGHT = Thresholds(exponent_mismatches=4, mantissa_mean=0.25, mantissa_median=1.0, sampling_mean=1e-4)


def counted(bins: int, width: int) -> tuple[int, ...]:
    """A table of so many filled bins."""
    return tuple(1000 // 4**i if i < width else 0 for i in range(bins))


def honest(worker: str, verifier: str) -> CalibrationTable:
    """Equals agree, other arithmetic of one type nearly, other types do not."""
    width = 1 if worker == verifier else 2 if arithmetic(worker)[0] == arithmetic(verifier)[0] else 4
    return CalibrationTable(proofs=counted(PROOF_BINS, width), tokens=counted(TOKEN_BINS, width))


RULES = VerificationSpec(
    toploc_k=32,
    mantissa_mean=3.0,
    engines=("*/*/*",),
    pairs={pair(a, b): TIGHT for a in CALIBRATED for b in CALIBRATED if a == b},
    decision=DecisionSpec(
        honest={pair(a, b): honest(a, b) for a in CALIBRATED for b in CALIBRATED},
        cheating={"int8": CalibrationTable(proofs=counted(PROOF_BINS, 9), tokens=counted(TOKEN_BINS, 9))},
    ),
)
RUN = RunSpec(name="calibrated", environment=EnvironmentSpec(name="sort"), verification=RULES)


def with_rules(**changes: object) -> RunSpec:
    return msgspec.structs.replace(RUN, verification=msgspec.structs.replace(RULES, **changes))


def said(engine: str, run: RunSpec = RUN) -> Reason:
    """What the check of form says of a file whose header names this engine."""
    header = RolloutHeader(1, "0x0", "00", 0, engine=engine)
    fault = check_form(RolloutBatch(header, (SampleRow(0, 0, "p", [1], [2], True, b""),)), run, 10)
    return fault.reason if fault else Reason.NONE


NAMES = {
    EXACT: EXACT,
    EAGER: EAGER,
    ROUGH: ROUGH,
    "zz/float32/sdpa": None,
    "zz/float32/eager": None,
    "x86-avx2/float32/sdpa": None,
    "x86_avx512/float32/sdpa": None,
    "0/float32/sdpa": None,
    "zz/float32/zz": None,
    f"{HERE}/float32/zz": None,
    f"{HERE}/float32/bfloat16": None,
    "zz/bfloat16/sdpa": None,
    "x86-avx2/bfloat16/sdpa": None,
    f"{HERE}/bfloat16/eager": None,
    f"{HERE}/float16/sdpa": None,
    f"{HERE}/int8/sdpa": None,
    f"{HERE}/fp32/sdpa": None,
    f"{HERE}/float32./sdpa": None,
    f"{HERE}/sdpa/float32": None,
    f"{HERE.upper()}/float32/sdpa": None,
    f"{HERE}/Float32/sdpa": None,
    f"{HERE}/float32/SDPA": None,
    f"{HERE}/float32/sdpa ": None,
    f"{HERE}/float32/sdpa\n": None,
    f"{HERE}/float32/sdpa/": None,
    f"{HERE}/float32/sdpa": None,
    EXACT.replace("2.13", "2.12"): None,
    EXACT.replace("tp1", "tp2"): None,
    EXACT.replace("ieee", "tf32"): None,
    EXACT.replace(HERE, "cuda-sm90"): None,
    f"{EXACT}>{EXACT}": None,
    "*/float32/sdpa": None,
    "zz/*/sdpa": None,
    "float32": None,
    "": None,
}
"""What a header may say -> the calibrated class that it is judged like; None: its file is malformed."""


@pytest.mark.parametrize(("name", "truth"), NAMES.items())
def test_a_class_that_nobody_measured_is_not_admitted(name: str, truth: str | None) -> None:
    """Whatever it resembles: float32 on a GPU may be TF32."""
    assert RULES.admits(name) is (truth is not None)
    assert said(name) == (Reason.MALFORMED if truth is None else Reason.NONE)
    if truth is None:
        assert all(Likelihoods(RULES.decision, 32, verifier, name).names == () for verifier in CALIBRATED)


def strict(thresholds: Thresholds) -> tuple[float, ...]:
    return tuple(getattr(thresholds, name) for name in Thresholds.__struct_fields__)


@pytest.mark.parametrize("build", ["ieee/tp1/torch-2.12.0", "tf32/tp1/torch-2.13.0", "ieee/tp2/torch-2.13.0"])
def test_a_verifier_that_nobody_measured_holds_nothing_against_anybody(build: str) -> None:
    stranger = f"{HERE}/float32/sdpa/{build}"
    assert not RULES.judges(EXACT, stranger) and RULES.blind(stranger)
    assert Likelihoods(RULES.decision, 32, stranger, EXACT).names == ()
    assert RULES.thresholds(EXACT, stranger).mantissa_mean == 3.0


def test_a_verifier_sees_where_a_sibling_of_its_engine_was_measured() -> None:
    assert RULES.blind(EXACT) == RULES.blind(f"{HERE}/bfloat16/eager/{BUILD}") == ""
    assert RULES.blind("an engine of my own") and RULES.blind("")
    assert VerificationSpec().blind("an engine of my own") == ""


def test_honest_lower_precision_is_not_held_against_hardware_that_computes_otherwise() -> None:
    """A verifier on hardware that was not measured cannot tell this work from a cheat's by computing in bfloat16."""
    assert not RULES.judges(ROUGH, "elsewhere/bfloat16/sdpa")
    assert Likelihoods(RULES.decision, 32, "elsewhere/bfloat16/sdpa", ROUGH).names == ()
    assert RULES.thresholds(ROUGH, "elsewhere/bfloat16/sdpa").mantissa_mean == 3.0


def test_what_is_admitted_is_permitted_and_known() -> None:
    assert set(RULES.admitted) == {EXACT, EAGER, ROUGH}
    narrow = msgspec.structs.replace(RULES, engines=("*/float32/eager", "*/bfloat16/*"))
    assert set(narrow.admitted) == {EAGER, ROUGH}
    assert narrow.admits(EAGER) and not narrow.admits(EXACT)
    assert narrow.objection(EXACT) == "the run does not permit it"
    assert narrow.objection("arm/bfloat16/sdpa") == "the run was not calibrated for it"


def test_an_uncalibrated_run_admits_what_it_permits_and_has_one_set_of_thresholds() -> None:
    plain = VerificationSpec(engines=("*/bfloat16/*",))
    assert plain.admits("zz/bfloat16/zz") and not plain.admits("zz/float32/sdpa")
    assert plain.thresholds("a/b/c", "d/e/f") is plain and plain.judges("a/b/c", "d/e/f")


def test_cuts_by_hand_hold_for_their_pairs_alone() -> None:
    rules = VerificationSpec(mantissa_mean=3.0, pairs={pair(EXACT, EXACT): TIGHT, pair(EXACT, ROUGH): Thresholds()})
    assert strict(rules.thresholds(EXACT, EXACT)) == strict(TIGHT)
    assert rules.thresholds(EXACT, "elsewhere/float32/sdpa") is rules
    assert rules.admits(EXACT) and not rules.admits(EAGER)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engines": ("*/float16/*",)}, "permits no class"),
        ({"pairs": {pair(EXACT, "zz/float32/sdpa"): TIGHT}}, "must name pairs that"),
        (
            {
                "pairs": {},
                "decision": msgspec.structs.replace(
                    RULES.decision,
                    honest={name: table for name, table in RULES.decision.honest.items() if name != f"{ROUGH}>{EXACT}"},
                ),
            },
            f"lacks {ROUGH}>{EXACT}",
        ),
    ],
)
def test_a_run_whose_tables_leave_a_hole_is_refused(changes: dict, words: str) -> None:
    RUN.check()
    with pytest.raises(RunError) as caught:
        with_rules(**changes).check()
    assert words in caught.value.why
