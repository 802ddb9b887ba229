import pytest

from protocol.engines import arithmetic, is_engine_class, is_engine_pattern, permits


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
