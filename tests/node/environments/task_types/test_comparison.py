"""What a program printed or returned, and what was expected."""

import math
from typing import Any

import pytest

from node.environments.task_types.code import same_output, same_value

DEEP: list[Any] = []
for _ in range(200):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("printed", "expected", "same"),
    [
        ("a\nb", "a\nb\n", True),
        (" a  \n\n b\t", "a\nb", True),
        ("1 2  3", "1 2 3", True),
        ("0.3333333", "0.33333331", True),
        ("0.3334", "0.3333", False),
        ("3.0 x", "3 x", True),
        ("3.0 x", "3 y", False),
        ("1000001", "1000000", False),
        ("998244352", "998244353", False),
        ("998244352.0", "998244353", False),
        ("7 500000500001", "7 500000500000", False),
        ("1e+18", "999999999999999999", False),
        ("1e+18", "1000000000000000000", True),
        ("1e9", "1000000000", True),
        ("007", "7", True),
        ("+7", "7", True),
        ("-0", "0", True),
        ("-7", "7", False),
        ("2.9999999999", "3", True),
        ("2.999", "3", False),
        ("1000000000.4", "1000000000", False),
        ("6.63e-34", "9.11e-31", False),
        ("1e-20", "2e-20", False),
        ("0.0", "1e-20", False),
        ("1e-17", "0", True),
        ("0.001", "0", False),
        ("1e999999999", "1e999999998", False),
        ("1_000", "1000", False),
        ("\u0663", "3", False),
        ("1\n2", "1 2", False),
        ("2\n1", "1\n2", False),
        ("nan", "nan", True),
        ("nan", "1", False),
        ("inf", "1e400", False),
        ("5", "inf", False),
        ("5", "-inf", False),
        ("-5", "-inf", False),
        ("5", "1e400", False),
        ("5", "Infinity", False),
        ("5", "nan", False),
        ("5", "9" * 400, False),
        ("9" * 400, "5", False),
        ("9" * 400, "9" * 400, True),
        ("9" * 399 + "8", "9" * 400, False),
        ("1.5e308", "1.500000001e308", True),
        ("-1.7e308", "1.7e308", False),
        ("inf", "inf", True),
        ("-inf", "inf", False),
        ("1 inf", "1 inf", True),
        ("1 2", "1 inf", False),
        ("", "", True),
        ("x", "", False),
        ("YES", "yes", False),
    ],
)
def test_texts_are_compared_by_lines_and_tokens(printed: str, expected: str, same: bool) -> None:
    assert same_output(printed, expected) is same


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (3, 3, True),
        (3, 3.0, True),
        (3, [3], True),
        ([[3]], [[3]], True),
        ([3], 3, False),
        (True, 1, False),
        (True, True, True),
        (True, 1.0, False),
        ([3], [[[3]]], False),
        (1, True, False),
        ("1", 1, False),
        (None, None, True),
        (None, 0, False),
        ([1, 0.3000000001], [1.0, 0.3], True),
        ({"a": [1]}, {"a": [1.0]}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1, 2], [1], False),
        (998244352, 998244353, False),
        (998244352.0, 998244353, False),
        (2.9999999999, 3, True),
        (1e18, 999999999999999999, False),
        (1e-20, 2e-20, False),
        (10**400, 1.0, False),
        (1.0, 10**400, False),
        (10**400, 10**400, True),
        (10**400, math.inf, False),
        (5, math.inf, False),
        (5.0, math.inf, False),
        (-5.0, -math.inf, False),
        (5, [math.inf], False),
        ({"a": [5]}, {"a": [math.inf]}, False),
        (math.inf, 5.0, False),
        (5.0, math.nan, False),
        (math.nan, math.nan, False),
        (DEEP, DEEP, False),
    ],
)
def test_values_are_compared_as_json(value: Any, expected: Any, same: bool) -> None:
    assert same_value(value, expected) is same
