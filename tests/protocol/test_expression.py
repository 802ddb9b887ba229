"""Formulas that a run brings along: what they can say, and that they can do nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.expression import (
    MOST_CHARACTERS,
    MOST_DEEP,
    MOST_PARTS,
    ExpressionError,
    compute,
    is_formula,
    parse,
    parse_advantage,
    parse_loss,
    uses,
    why_not,
)

NAMES, FUNCTIONS = frozenset({"x", "y"}), {"max": 2, "abs": 1}
PLAIN = {"number": float, "where": lambda c, a, b: a if c else b, "max": max, "abs": abs}


def value(text: str, x: float = 2.0, y: float = -3.0) -> float:
    return compute(parse(text, NAMES, FUNCTIONS), {"x": x, "y": y}, PLAIN)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("= 1 + 2 * 3 - 4 / 2", 5.0),
        ("= (1 + 2) * 3", 9.0),
        ("= 7 - 2 - 1", 4.0),
        ("= 8 / 2 / 2", 2.0),
        ("= -x * -y", -6.0),
        ("= --x", 2.0),
        ("= .5e1 + 1.", 6.0),
        ("= max(x, abs(y)) - 1e-1", 2.9),
        ("= where(x > 1 and y < 0, 10, 20)", 10.0),
        ("= where(x > 3 or y <= -3 and x >= 2, 10, 20)", 10.0),
        ("= where(x + 1 < y * 2, x, where(x <= 2, 5, 6))", 5.0),
    ],
)
def test_a_formula_computes_what_it_says(text: str, wanted: float) -> None:
    assert value(text) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("=", "there is the end"),
        ("= x +", "there is the end"),
        ("= x y", "an operator or the end"),
        ("= (x", "')' was expected"),
        ("= max(x)", "max takes 2"),
        ("= max", "there is no 'max'"),
        ("= x(1)", "an operator or the end"),
        ("= z", "there is no 'z'"),
        ("= where(x, 1, 2)", "<, <=, > or >="),
        ("= x < y", "an operator or the end"),
        ("= where(x < y < 1, 1, 2)", "',' was expected"),
        ("= 1e10", "too large"),
        ("= 1e999", "too large"),
        ("= x ** 2", "a number, a name"),
        ("= x.real", "cannot be read"),
        ("= x[0]", "cannot be read"),
        ("= 'x'", "cannot be read"),
        ("= x; y", "cannot be read"),
        ("= x = y", "cannot be read"),
        ("= lambda: x", "cannot be read"),
        ("= __import__(x)", "there is no '__import__'"),
        ("= ²", "cannot be read"),
        ("= " + "(" * (MOST_DEEP + 1) + "x" + ")" * (MOST_DEEP + 1), "deep"),
        ("= " + "-" * (MOST_DEEP + 1) + "x", "deep"),
        ("= " + "+".join("x" * MOST_PARTS), "more than 200 parts"),
        ("= " + " " * MOST_CHARACTERS + "x", "characters"),
    ],
)
def test_what_is_no_formula_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, NAMES, FUNCTIONS)
    assert why in caught.value.why


@given(st.text(alphabet="xy019.eE+-*/(),<>= wheromaxbsnd_[]'\n", max_size=60))
def test_any_text_is_a_formula_or_refused(text: str) -> None:
    try:
        found = parse("=" + text, NAMES, FUNCTIONS)
    except ExpressionError:
        return
    assert uses(found) <= {*NAMES, *FUNCTIONS, "where"}
    try:
        assert isinstance(compute(found, {"x": 2.0, "y": -3.0}, PLAIN), float | int)
    except (ZeroDivisionError, OverflowError):
        assert "/" in text or "*" in text


def test_a_loss_depends_on_the_policy_and_an_advantage_rounds_alike_everywhere() -> None:
    assert parse_loss("= -min(r * A, clip(r, 0.8, 1.2) * A)") and is_formula("= 1") and not is_formula("dppo")
    assert uses(parse_loss("= stop(r) * A")) == {"stop", "r", "A"}
    assert "nothing would be learnt from it" in str(why_not("= A * 2", advantage=False))
    assert why_not("dppo", advantage=False) is None and why_not("= (reward - mean) / std", advantage=True) == ""
    for text in ("= exp(reward)", "= r", "= log(reward)"):
        with pytest.raises(ExpressionError):
            parse_advantage(text)
    assert math.isinf(compute(parse("= x", NAMES, FUNCTIONS), {"x": math.inf}, PLAIN))
