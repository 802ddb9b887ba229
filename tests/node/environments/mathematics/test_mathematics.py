"""What texts are read as, and which of them are equal: siblings of the bank's rows, made by generators."""

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("latex2sympy2_extended")

from node.environments.mathematics import algebra
from node.environments.mathematics.comparison import right
from node.environments.mathematics.reading import MathExpression, read
from node.environments.mathematics.spelling import spelt

GENERATED = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WHOLE = st.integers(-(10**20), 10**20)
NAMES = st.sampled_from(["x", "n", "a_1", "y", "\\theta"])


def paid(truth: str, answer: str) -> bool:
    return right([answer], [truth])


@GENERATED
@given(
    WHOLE,
    st.sampled_from(["{}", " {} ", "{}.", "${}$", "\\text{{{}}}", "x = {}", "{}.0", "\\left({}\\right)", "{{{}}}"]),
)
def test_a_whole_number_is_itself_in_every_spelling_and_no_neighbour(value: int, form: str) -> None:
    assert paid(str(value), form.format(value)) and paid(str(value), f"{value:,}")
    for wrong in {value + 1, value - 1, value * 10, -value, value + 10**6} - {value}:
        assert not paid(str(value), form.format(wrong)), wrong


@GENERATED
@given(st.integers(1, 10**9), st.integers(2, 10**6))
def test_a_fraction_equals_its_spellings_and_no_other_fraction(above: int, below: int) -> None:
    truth = f"\\frac{{{above}}}{{{below}}}"
    for form in ("{}/{}", "\\dfrac{{{}}}{{{}}}", "{} \\cdot {}^{{-1}}", "{} \\div {}"):
        assert paid(truth, form.format(above, below))
        assert paid(truth, form.format(3 * above, 3 * below))
        assert not paid(truth, form.format(above + 1, below)) and not paid(truth, form.format(above, below + 1))


@GENERATED
@given(st.integers(1, 10**6), st.integers(2, 300))
def test_what_is_small_is_not_nothing_and_no_other_small_number(digits: int, exponent: int) -> None:
    truth = f"{digits}.5 \\times 10^{{-{exponent}}}"
    assert paid(truth, f"{digits}.5e-{exponent}") and not paid(truth, "0")
    assert not paid(truth, f"{digits}.5 \\times 10^{{-{exponent + 1}}}")
    assert not paid(truth, f"{digits + max(1, digits // 1000)}.5e-{exponent}")


@GENERATED
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True), st.randoms())
def test_a_list_is_all_of_its_items_in_any_order(values: list[int], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    text = ", ".join(map(str, values))
    for form in ("{}", "\\{{{}\\}}", "x = {}"):
        assert paid(text, form.format(", ".join(map(str, shuffled))))
    assert paid(f"({text})", f"({text})")
    assert not paid(text, str(values[-1])) and not paid(text, ", ".join(map(str, values[:-1])))
    assert not paid(text, ", ".join(map(str, [*values[:-1], 100])))
    if shuffled != values:
        assert not paid(f"({text})", f"({', '.join(map(str, shuffled))})"), "places have an order"
    assert not paid(f"{text}, \\ldots", str(values[-1])) and not paid(f"{text}, \\ldots", text)
    assert paid(f"{text}, \\ldots", f"{text}, \\dots")


@GENERATED
@given(
    st.text("01", min_size=3, max_size=12).filter(lambda text: text[0] == "1"), st.integers(3, 36), st.integers(2, 36)
)
def test_digits_in_a_base_are_not_those_in_another(digits: str, base: int, other: int) -> None:
    assert paid(f"{digits}_{{{base}}}", f"{digits}_{{{base}}}")
    assert not paid(f"{digits}_{{{base}}}", digits)
    if other != base:
        assert not paid(f"{digits}_{{{base}}}", f"{digits}_{{{other}}}")


@GENERATED
@given(
    st.integers(1, 999),
    st.integers(1, 59),
    st.sampled_from([("hours", "minutes"), ("feet", "inches"), ("kg", "grams")]),
)
def test_quantities_in_a_row_are_all_of_them(first: int, second: int, units: tuple[str, str]) -> None:
    truth = f"{first} \\text{{ {units[0]} }} {second} \\text{{ {units[1]}}}"
    assert paid(truth, f"{first} {units[0]} {second} {units[1]}")
    for wrong in (str(first), str(second), f"{first} {units[0]}", f"{first} {units[0]} {second + 1} {units[1]}"):
        assert not paid(truth, wrong)


@GENERATED
@given(st.decimals(1, 999, places=2), st.sampled_from(["\\%", "%", " percent", " \\text{ percent}", " pct"]))
def test_a_percentage_is_its_number_and_its_share(value: object, sign: str) -> None:
    truth, share = f"{value}\\%", int(Fraction(str(value)) * 100)
    assert paid(truth, f"{value}{sign}") and paid(truth, str(value)) and paid(truth, f"\\frac{{{share}}}{{10000}}")
    assert not paid(truth, f"{Fraction(str(value)) + 1}"[:40])


@GENERATED
@given(NAMES, NAMES, st.integers(2, 9), st.integers(1, 9))
def test_an_expression_is_equal_where_its_values_are(one: str, other: str, factor: int, added: int) -> None:
    truth = f"{factor}{one} + {added}"
    assert paid(truth, f"{added} + {factor} {one}") and paid(truth, f"y = {truth}")
    assert not paid(truth, f"{factor}{one} - {added}") and not paid(truth, f"{factor}{one}")
    assert (one == other) is paid(truth, f"{factor}{other} + {added}")
    square = f"({one}+{added})^2"
    assert paid(square, f"{one}^2+{2 * added}{one}+{added**2}") and not paid(square, f"{one}^2+{added**2}")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("7,425,000", "number"),
        ("0,5", "number"),
        ("2 1/2", "number"),
        ("1, 2", "list"),
        ("32, 349", "list"),
        ("\\{1,2\\}", "set"),
        ("(1,2)", "tuple"),
        ("[1,2)", "interval"),
        ("(9+1)", "expression"),
        ("x+1", "expression"),
        ("5x", "expression"),
        ("5 ab", "expression"),
        ("2 \\sin x", "expression"),
        ("5 cm", "quantity"),
        ("5 \\text{ m}", "quantity"),
        ("5 hours 30 minutes", "amounts"),
        ("12\\%", "percent"),
        ("204_5", "based"),
        ("E. 12", "choice"),
        ("A + B", "expression"),
        ("A:B", "ratio"),
        ("12:00", "ratio"),
        ("x < 3", "relation"),
        ("(0,1) \\cup (2,3)", "union"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "matrix"),
        ("\\begin{cases}1 & x>0\\\\2 & x<0\\end{cases}", "cases"),
        ("\\text{no solution}", "words"),
        ("\\ldots", "dots"),
        ("\\{x \\mid x > 3\\}", "words"),
        ("", "words"),
    ],
)
def test_a_text_is_read_whole_as_one_kind_of_form(text: str, kind: str) -> None:
    assert read(text).kind == kind


@GENERATED
@given(st.text("x1(){}[]\\,;^_=<>+-*/|!%$.&' \n\\frac\\sqrt\\text\u00b2\u0663\u05d0", max_size=80))
def test_any_text_is_read_and_equals_itself(text: str) -> None:
    form = read(text)
    assert isinstance(form, MathExpression) and (right([text], [text]) or not spelt(text))
    assert not right(["7.0314159"], [text])


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "(10^{9999})^{9999}",
        "x^{99999999}",
        "((9999!)!)!",
        "(3000!)^{3000}",
        "9" * 1000,
        "\\frac{1}{" * 80 + "2" + "}" * 80,
        "(" * 300 + "1" + ")" * 300,
        "\\{" * 300 + "1" + "\\}" * 300,
        "1," * 400 + "1",
        "x=" * 300 + "1",
        "\\cup " * 200,
        "\\sqrt" * 100 + "2",
        "-" * 500 + "1",
        "a" * 500 + "!",
        "\\alpha " * 120 + "!",
        "1" + "!" * 200,
        "\\text{" * 100,
        "\\begin{pmatrix}" * 60,
        "1:" * 200 + "1",
        "\\sum_{k=1}^{10^{9}} k",
        "\u0663\u0664 \u05d0\u05d1 \u03b1\u03b2",
    ],
)
def test_what_is_made_to_hold_up_algebra_is_decided_by_its_size(text: str) -> None:
    assert right([text], [text])
    assert not right([text], ["x"]) and not right(["x+1"], [text])


@pytest.mark.parametrize("before", ["1", "\\text{", "1,"])
def test_blanks_in_a_row_hold_nothing_up(before: str) -> None:
    """Eight times as many as an answer may have: where the time grew with their third power, this took half an hour."""
    assert spelt(f"{before}{' ' * 4096}x") == spelt(f"{before} x")


@pytest.mark.parametrize("error", [MemoryError, RecursionError, KeyError])
def test_want_of_memory_decides_nothing_and_any_other_error_says_no_expression(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(algebra, "latex2sympy", fails)
    if error is MemoryError:
        with pytest.raises(MemoryError):
            algebra.expression("x + 1")
    else:
        assert algebra.expression("x + 1") is None
