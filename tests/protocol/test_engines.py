import pytest

from protocol.cuts import Cuts
from protocol.engines import (
    arithmetic,
    is_engine_class,
    is_engine_pattern,
    is_pair,
    kind,
    missing_pairs,
    overlap,
    pair,
    permits,
    standing_for,
)
from protocol.run import EnvironmentSpec, RunError, RunSpec, VerificationSpec


def test_a_class_has_three_plain_parts() -> None:
    assert is_engine_class("x86_64-avx512/float32/sdpa") and is_engine_class("cuda-sm90/bfloat16/flash-2.6")
    for wrong in (
        "",
        "cpu",
        "cpu/float32",
        "cpu//sdpa",
        "CPU/float32/sdpa",
        "cpu/float32/sdpa/x",
        "cpu/*/sdpa",
        "a>b/c/d",
    ):
        assert not is_engine_class(wrong), wrong
    assert not is_engine_class("a" * 40 + "/float32/sdpa")


def test_a_pattern_may_leave_parts_open() -> None:
    assert is_engine_pattern("*/float32/*") and is_engine_pattern("cpu/float32/sdpa")
    assert not is_engine_pattern("*") and not is_engine_pattern("*/fl*/sdpa")


@pytest.mark.parametrize(
    ("patterns", "permitted"),
    [
        (["*/float32/*"], True),
        (["*/bfloat16/*"], False),
        (["arm/float32/sdpa", "x86/*/sdpa"], True),
        ([], False),
        (["*"], False),
    ],
)
def test_a_class_is_permitted_by_any_pattern(patterns: list[str], permitted: bool) -> None:
    assert permits(patterns, "x86/float32/sdpa") is permitted


def test_the_arithmetic_of_a_class_is_its_type_and_attention() -> None:
    assert arithmetic("x86/float32/sdpa") == ("float32", "sdpa")


def test_what_a_run_knows_of_two_classes_is_named_by_both() -> None:
    assert is_pair(pair("x86/float32/sdpa", "arm/bfloat16/eager"))
    for wrong in ("float32>bfloat16", "x86/float32/sdpa", "x86/float32/sdpa>", "a/b/c>d/e/f>g/h/i"):
        assert not is_pair(wrong), wrong
    rules = VerificationSpec(pairs={"float32>bfloat16": Cuts()})
    with pytest.raises(RunError, match=r"verification\.pairs"):
        RunSpec(name="x", environment=EnvironmentSpec(name="sort"), verification=rules).check()


def test_float32_stands_for_itself_on_all_hardware_and_nothing_else_does() -> None:
    assert kind("x86/float32/sdpa") == kind("arm/float32/sdpa") != kind("x86/float32/eager")
    assert kind("x86/bfloat16/sdpa") == "x86/bfloat16/sdpa"
    assert kind("an engine (cpu, float32)") == "an engine (cpu, float32)"


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("*/*/*", "*/float32/sdpa", "*/float32/sdpa"),
        ("arm/*/*", "*/float32/sdpa", "arm/float32/sdpa"),
        ("*/bfloat16/*", "*/float32/sdpa", None),
        ("*/bfloat16/*", "arm/bfloat16/sdpa", "arm/bfloat16/sdpa"),
        ("*", "*/float32/sdpa", None),
    ],
)
def test_two_patterns_overlap_where_both_match(one: str, other: str, both: str | None) -> None:
    assert overlap(one, other) == overlap(other, one) == both


def test_a_measured_pair_stands_for_itself_and_others_of_its_kinds_for_what_was_not_measured() -> None:
    exact, arm = "x86/float32/sdpa", "arm/float32/sdpa"
    rough = "x86/bfloat16/sdpa"
    known = [pair(exact, exact), pair(arm, exact), pair(rough, rough), pair(exact, rough)]
    assert standing_for(known, arm, exact) == [pair(arm, exact)]
    assert standing_for(known, "zz/float32/sdpa", "zz/float32/sdpa") == known[:2]
    assert standing_for(known, "zz/float32/sdpa", rough) == [pair(exact, rough)]
    for worker, verifier in (("zz/bfloat16/sdpa", rough), (rough, "zz/bfloat16/sdpa"), ("zz/float32/zz", exact)):
        assert standing_for(known, worker, verifier) == []


def test_every_worker_must_have_been_seen_by_every_verifier() -> None:
    assert missing_pairs(["a>x", "a>y", "b>x"]) == ["b>y"]
    assert missing_pairs(["a>x", "b>x"]) == missing_pairs([]) == []
