"""Whether two expressions are equal: sympy's, read by latex2sympy. In a child process that may be killed.

The grammar takes all of a text or nothing; the library's own normalization, which leaves words out, is not used.

Nothing is simplified. Without symbols two expressions are equal if their values are: exactly, or where one was written
with a decimal point, within the bound that all scores have. With symbols they are equal if they are at some points that
nobody chooses. All of it with so many digits that what is small is not taken for nothing.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

from node.environments.base import nested_deeply
from node.environments.mathematics.reading import MathExpression, value_of
from node.environments.numbers import RELATIVE, near

DIGITS = 40
EXACT = sympy.Float(10) ** -25
"""How far two values that were computed with DIGITS may lie apart, in parts of the right one."""
MAX_SYMBOLS = 12
MAX_BITS, MAX_FACTORIAL = 1 << 18, 3000
"""Of powers and factorials that are computed: what is larger equals the same text only."""
_POINTS = ((3, 7), (-5, 11), (13, 4), (-2, 9), (17, 19), (1, 23))
_DECIMAL = re.compile(r"(\d*)\.(\d+)|(\d+)\.(?!\d)")
_APART = re.compile(r"\d \d|'|\\text|\\ldots|%|\\circ|\\overline\s?\{\s?\d")
"""What the grammar reads otherwise than people: 5 6 would be 11, x' would be x."""
_SIGNED = re.compile(r"(?:[-+] ?){4}")
MAX_CHARACTERS, MAX_NESTED, MAX_SLOW = 400, 10, 8
_SLOW = re.compile(r"\||\\int|\\sum|\\prod|\\lim")
"""The grammar takes exponential time for what is nested or has bars, whatever that says, and sympy for sums of sums."""
_TOWER = re.compile(r"\^\s?\{[^{}]*\^")
_LONG = re.compile(r"\^\s?\{?\s?-?\d{5,}|\d{5,}\s?\}?\s?!|!\s?!|\d{400}")


@lru_cache(maxsize=512)
def expression(text: str) -> Any | None:
    """sympy's expression for all of a text; None where it is none, or would be too large to compute."""
    if _APART.search(text) or _TOWER.search(text) or _LONG.search(text) or _SIGNED.search(text):
        return None
    if len(text) > MAX_CHARACTERS or nested_deeply(text, most=MAX_NESTED) or len(_SLOW.findall(text)) > MAX_SLOW:
        return None
    try:
        # A decimal fraction is exact: as a float of 15 digits it would lose some.
        exact, real = _DECIMAL.sub(_as_fraction, text), "i" not in _COMMANDS.sub("", text)
        found = latex2sympy(exact, is_real=real, normalization_config=None, conversion_config=_CONFIG)
    # How much memory there is differs between machines: the child ends by it, and nothing is decided.
    except MemoryError:
        raise
    # Of a parser of others, on a stranger's text: what it raises is the same everywhere, and no list names it all.
    except Exception:
        return None
    if not isinstance(found, sympy.Basic | sympy.MatrixBase):
        return None
    return found.xreplace({one: sympy.I for one in found.free_symbols if str(one) == "i"})


_COMMANDS = re.compile(r"\\[a-zA-Z]+")
_CONFIG = ConversionConfig(lowercase_symbols=False)


def _as_fraction(found: re.Match[str]) -> str:
    whole, rest = (found[1], found[2]) if found[3] is None else (found[3], "")
    value = Fraction(f"{whole or 0}.{rest or 0}")
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value.numerator)


def same_expression(right: MathExpression, answer: MathExpression) -> bool:
    """Whether two forms that are numbers or expressions have one value."""
    decimal = bool(_DECIMAL.search(right.text) or _DECIMAL.search(answer.text))
    one, other = value_of(right.text), value_of(answer.text)
    if one is not None and other is not None:
        return near(other, one) if decimal else one == other
    first = sympy.Rational(one.numerator, one.denominator) if one is not None else expression(right.text)
    second = sympy.Rational(other.numerator, other.denominator) if other is not None else expression(answer.text)
    return first is not None and second is not None and equal(first, second, decimal=decimal)


def equal(right: Any, answer: Any, *, decimal: bool) -> bool:
    """Two expressions, matrices too. decimal: whether one was written with a decimal point."""
    try:
        if isinstance(right, _MATRICES) or isinstance(answer, _MATRICES):
            return _equal_matrices(right.doit(), answer.doit(), decimal=decimal)
        if right == answer:
            return True
        if not isinstance(right, sympy.Expr) or not isinstance(answer, sympy.Expr):
            return False
        return all(_near(one, other, decimal=decimal) for one, other in _values(right, answer))
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, NotImplementedError):
        return False


_MATRICES = (sympy.MatrixBase, sympy.MatrixExpr)


def _equal_matrices(right: Any, answer: Any, *, decimal: bool) -> bool:
    if not isinstance(right, sympy.MatrixBase) or not isinstance(answer, sympy.MatrixBase):
        return False
    if right.shape != answer.shape:
        return False
    return all(equal(one, other, decimal=decimal) for one, other in zip(right.flat(), answer.flat(), strict=True))


def _values(right: Any, answer: Any) -> "Sequence[tuple[Any, Any]]":
    """Both at some points. Raises ValueError where they cannot be computed, or have other symbols."""
    names = sorted(right.free_symbols | answer.free_symbols, key=str)
    if not names:
        return [(number_of(computed(right, {})), number_of(computed(answer, {})))]
    if len(names) > MAX_SYMBOLS:
        raise ValueError("too many symbols")
    found = []
    for place, (above, below) in enumerate(_POINTS):
        point = {name: sympy.Rational(above + 2 * at, below + at + place) for at, name in enumerate(names)}
        one, other = computed(right, point), computed(answer, point)
        if one.has(sympy.zoo, sympy.nan, sympy.oo) and other.has(sympy.zoo, sympy.nan, sympy.oo):
            continue
        found.append((number_of(one), number_of(other)))
    # Where neither is real, roots and logarithms are a matter of their branch.
    real = [pair for pair in found if any(one.is_real for one in pair)]
    if len(real) < 2 and not found:
        raise ValueError("nowhere a number")
    return real if len(real) > 1 else found


def computed(expression_: Any, point: dict[Any, Any]) -> Any:
    """An expression with numbers for its symbols. latex2sympy evaluates nothing: here sums, products and powers are,
    exactly where that is a rational number. Raises ValueError for one that would be too large."""
    if expression_ in point:
        return point[expression_]
    if not expression_.args:
        return expression_
    if isinstance(expression_, sympy.Sum | sympy.Integral | sympy.Derivative | sympy.Limit | sympy.Product):
        return expression_.subs(point).doit()
    parts = [computed(part, point) for part in expression_.args]
    if isinstance(expression_, sympy.UnevaluatedExpr):
        return parts[0]
    if isinstance(expression_, sympy.Pow) and parts[0].is_Rational and parts[1].is_Integer:
        bits = max(int(parts[0].p).bit_length(), int(parts[0].q).bit_length()) * abs(int(parts[1]))
        if bits > MAX_BITS:
            raise ValueError("too large a power")
    if isinstance(expression_, sympy.factorial) and not (parts[0].is_Integer and parts[0] <= MAX_FACTORIAL):
        raise ValueError("too large a factorial, or of no whole number")
    return expression_.func(*parts)


def number_of(value: Any) -> Any:
    """A rational number, exactly, or a complex one with DIGITS. Raises ValueError."""
    value = value if value.is_Rational else sympy.N(value, DIGITS)
    if not value.is_number or not value.is_finite or value.free_symbols:
        raise ValueError("no number")
    return value


def _near(right: Any, answer: Any, *, decimal: bool) -> bool:
    if right.is_Rational and answer.is_Rational:
        one, other = Fraction(int(right.p), int(right.q)), Fraction(int(answer.p), int(answer.q))
        return near(other, one) if decimal else one == other
    distance, size = abs(sympy.N(right - answer, DIGITS)), abs(sympy.N(right, DIGITS))
    if distance <= EXACT * size:
        return True
    whole = any(one.is_real and abs(one - round(one)) <= EXACT * max(1, abs(one)) for one in (right, answer))
    return decimal and not whole and distance <= sympy.Rational(RELATIVE.numerator, RELATIVE.denominator) * size


def ratio_of_sides(right: tuple[str, str], answer: tuple[str, str]) -> Any | None:
    """c, where left - right of the one equation is c times that of the other; None where it is not."""
    sides = [side for text in (*right, *answer) if isinstance(side := expression(text), sympy.Expr)]
    if len(sides) != 4:
        return None
    one, other = sides[0] - sides[1], sides[2] - sides[3]
    try:
        ratios = [second / first for first, second in _values(one, other)]
    except (TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, NotImplementedError):
        return None
    first = ratios[0]
    if not first.is_real or first == 0 or not first.is_finite:
        return None
    return first if all(abs(ratio - first) <= EXACT * abs(first) for ratio in ratios) else None


def set_of(form: MathExpression) -> Any | None:
    """sympy's set for intervals and what they are joined to; None where a part is no set of real numbers."""
    if form.kind in ("union", "intersection", "difference"):
        parts = [found for part in form.items if (found := set_of(part)) is not None]
        if len(parts) != len(form.items):
            return None
        if form.kind == "union":
            return sympy.Union(*parts)
        first, *rest = parts
        for part in rest:
            first = first.intersect(part) if form.kind == "intersection" else first - part
        return first
    if form.kind in ("interval", "tuple") and len(form.items) == 2:
        begin, end = (_bound(item) for item in form.items)
        left, right = form.extra or ("(", ")")
        # Turned around it is a point of the plane, not an empty set.
        if begin is None or end is None or (begin < end) != sympy.true:
            return None
        return sympy.Interval(begin, end, left == "(", right == ")")
    if form.kind in ("set", "number", "list"):
        values = [_bound(item) for item in (form.items if form.kind != "number" else (form,))]
        return None if any(value is None for value in values) else sympy.FiniteSet(*values)
    return _NAMED_SETS.get(form.text.replace(" ", ""))


_NAMED_SETS = {
    "\\mathbb{R}": sympy.S.Reals, "R": sympy.S.Reals, "\\emptyset": sympy.S.EmptySet, "\\mathbb{Z}": sympy.S.Integers,
    "\\mathbb{N}": sympy.S.Naturals,
}  # fmt: skip


def is_set(form: MathExpression) -> bool:
    return form.text.replace(" ", "") in _NAMED_SETS


def _bound(form: MathExpression) -> Any | None:
    value = value_of(form.text)
    if value is not None:
        return sympy.Rational(value.numerator, value.denominator)
    if form.kind != "expression":
        return None
    found = expression(form.text)
    if not isinstance(found, sympy.Expr) or found.free_symbols:
        return None
    return found if found in (sympy.oo, -sympy.oo) or found.is_real is not False else None
