import pytest

from protocol.cuts import Cuts
from protocol.engines import arithmetic, is_engine_class, is_engine_pattern, is_pair, pair, permits
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
