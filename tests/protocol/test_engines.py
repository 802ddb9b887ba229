import pytest

from protocol.engines import (
    arithmetic,
    is_engine_class,
    is_engine_pattern,
    is_pair,
    kind,
    missing_pairs,
    pair,
    permits,
    with_arithmetic,
)
from protocol.run import EnvironmentSpec, RunError, RunSpec, VerificationSpec
from protocol.thresholds import Thresholds

FULL = "x86_64-avx512/float32/sdpa/ieee/tp1/torch-2.13.0+cpu"


def test_a_class_has_three_to_six_plain_parts() -> None:
    assert is_engine_class("x86_64-avx512/float32/sdpa") and is_engine_class("cuda-sm90/bfloat16/flash-2.6")
    assert is_engine_class(FULL) and is_engine_class("cuda-sm90/float32/vllm/tf32/tp8/vllm-0.32.0")
    for wrong in (
        "",
        "cpu",
        "cpu/float32",
        "cpu//sdpa",
        "CPU/float32/sdpa",
        f"{FULL}/x",
        f"{FULL}/",
        "cpu/*/sdpa",
        "a>b/c/d",
        "/".join(["a" * 32] * 6),
    ):
        assert not is_engine_class(wrong), wrong
    assert not is_engine_class("a" * 40 + "/float32/sdpa")


def test_a_pattern_may_leave_parts_open() -> None:
    assert is_engine_pattern("*/float32/*") and is_engine_pattern("cpu/float32/sdpa") and is_engine_pattern(FULL)
    assert not is_engine_pattern("*") and not is_engine_pattern("*/fl*/sdpa") and not is_engine_pattern(f"{FULL}/*")


def test_parts_that_a_pattern_leaves_away_may_be_any() -> None:
    assert permits(["*/float32/*"], FULL) and permits(["*/*/*/ieee"], FULL) and permits([FULL], FULL)
    assert not permits(["*/*/*/tf32"], FULL) and not permits(["*/*/*/*/tp2"], FULL)
    assert not permits(["*/*/*/ieee"], "x86/float32/sdpa")  # it does not say how it multiplies


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
    rules = VerificationSpec(pairs={"float32>bfloat16": Thresholds()})
    with pytest.raises(RunError, match=r"verification\.pairs"):
        RunSpec(name="x", environment=EnvironmentSpec(name="sort"), verification=rules).check()


def test_an_engine_can_change_its_type_and_kernel_and_nothing_else() -> None:
    assert with_arithmetic(FULL, ("bfloat16", "eager")) == "x86_64-avx512/bfloat16/eager/ieee/tp1/torch-2.13.0+cpu"


def test_two_kinds_differ_in_hardware_or_type() -> None:
    """What a kernel or a build does to a worker's numbers, every look on the same hardware in the same type may see."""
    other_kernel, other_build = FULL.replace("sdpa", "eager"), FULL.replace("2.13", "2.12")
    assert kind(FULL) == kind(other_kernel) == kind(other_build) == kind("x86_64-avx512/float32/sdpa")
    assert kind(FULL) != kind(FULL.replace("float32", "bfloat16"))
    assert kind("x86/float32/sdpa") != kind("cuda-sm90/float32/sdpa")
    assert kind("an engine (cpu, float32)") == "an engine (cpu, float32)"


def test_every_worker_must_have_been_seen_by_every_verifier() -> None:
    assert missing_pairs(["a>x", "a>y", "b>x"]) == ["b>y"]
    assert missing_pairs(["a>x", "b>x"]) == missing_pairs([]) == []
