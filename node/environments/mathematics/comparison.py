"""Whether an answer is right: two forms beside each other. In a child process, for it computes.

What the docs say of `verifiable_math` is this file: each kind of truth has a function here that says what equals it.
"""

import re
from collections.abc import Sequence

from node.environments.mathematics import algebra
from node.environments.mathematics.reading import MathExpression, is_name, read, value_of
from node.environments.numbers import near

_VALUES = frozenset({"number", "expression", "percent", "quantity"})


def right(answers: Sequence[str], truths: Sequence[str]) -> bool:
    """Whether one of the answers equals one of the truths."""
    read_answers = [read(answer) for answer in answers]
    return any(same(read(truth), answer) for truth in truths for answer in read_answers)


def same(truth: MathExpression, answer: MathExpression) -> bool:
    if truth.text and _tight(truth.text) == _tight(answer.text):
        return True
    truth, answer = _named(truth, answer), _named(answer, truth)
    if truth.kind == "relation" and answer.kind == "relation":
        return _same_relation(truth, answer)
    if "relation" in (truth.kind, answer.kind):
        relation, other = (truth, answer) if truth.kind == "relation" else (answer, truth)
        return _same_range(relation, other)
    if truth.kind == "choice" or answer.kind == "choice":
        return _same_choice(truth, answer)
    if truth.kind == "based" or answer.kind == "based":
        return truth.kind == answer.kind and truth.extra == answer.extra
    if truth.kind in _VALUES and answer.kind in _VALUES:
        return _same_value(truth, answer)
    return _same_parts(truth, answer)


_BLANKS, _APART = re.compile(r" "), re.compile(r"(?<=[a-zA-Z0-9]) (?=[a-zA-Z0-9])")
"""Blanks between letters or digits keep words and numbers apart."""


def _tight(text: str) -> str:
    return _BLANKS.sub("", _APART.sub("\n", text))


def _named(form: MathExpression, other: MathExpression) -> MathExpression:
    """The value of x = 5 beside what is no equation; of 7 + 4 = 11 the last. An equation that names nothing stays."""
    if form.kind != "relation" or set(form.extra) != {"="} or other.kind == "relation":
        return form
    first, last = form.items[0], form.items[-1]
    computed = not _LETTER.search(_COMMANDS.sub("", first.text + last.text))
    return last if computed or is_name(first.text) else form


_COMMANDS, _LETTER = re.compile(r"\\[a-zA-Z]+"), re.compile(r"[a-zA-Z]")


def _same_relation(truth: MathExpression, answer: MathExpression) -> bool:
    if set(truth.extra) == set(answer.extra) == {"="}:
        # Between the first and the last of a chain stands how it was computed.
        sides, others = (truth.items[0], truth.items[-1]), (answer.items[0], answer.items[-1])
        if same(sides[0], others[0]) and same(sides[1], others[1]):
            return True
        return algebra.ratio_of_sides(_texts(sides), _texts(others)) is not None
    for items, signs in ((answer.items, answer.extra), (answer.items[::-1], _turned(answer.extra))):
        if signs == truth.extra and all(same(a, b) for a, b in zip(truth.items, items, strict=True)):
            return True
    if len(truth.extra) != 1 or len(answer.extra) != 1:
        return _same_range(truth, answer)
    ratio = algebra.ratio_of_sides(_texts(truth.items), _texts(answer.items))
    if ratio is None:
        return False
    return truth.extra == (answer.extra if ratio > 0 else _turned(answer.extra))


_TURNED = {"<": ">", ">": "<", "\\leq": "\\geq", "\\geq": "\\leq"}


def _turned(signs: Sequence[str]) -> tuple[str, ...]:
    return tuple(_TURNED.get(sign, sign) for sign in reversed(signs))


def _texts(sides: Sequence[MathExpression]) -> tuple[str, str]:
    return sides[0].text, sides[1].text


def _same_range(one: MathExpression, other: MathExpression) -> bool:
    """An inequality beside an interval, or beside another one of the same name."""
    first, second = _range(one), _range(other)
    if first is None or second is None:
        return False
    if first[0] and second[0] and first[0] != second[0]:
        return False
    return _same_sets(first[1], second[1])


def _range(form: MathExpression) -> tuple[str, MathExpression] | None:
    """(what is bounded, its interval); no name for an interval."""
    if form.kind != "relation":
        return ("", form)
    items, signs = form.items, form.extra
    if signs[0] in (">", "\\geq"):
        items, signs = items[::-1], _turned(signs)
    if not set(signs) <= {"<", "\\leq"}:
        return None
    if len(items) == 3 and _is_bounded(items[1]):
        low, middle, high = items
        brackets = ("(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]")
    elif len(items) == 2 and _is_bounded(items[0]):
        (middle, high), low, brackets = items, read("-\\infty"), ("(", ")" if signs[0] == "<" else "]")
    elif len(items) == 2 and _is_bounded(items[1]):
        (low, middle), high, brackets = items, read("\\infty"), ("(" if signs[0] == "<" else "[", ")")
    else:
        return None
    if middle.text.startswith("|"):
        return None
    return middle.text.replace(" ", ""), MathExpression("interval", "", (low, high), brackets)


def _is_bounded(form: MathExpression) -> bool:
    return form.kind in ("expression", "choice") and is_name(form.text)


def _same_choice(truth: MathExpression, answer: MathExpression) -> bool:
    if truth.kind == answer.kind:
        words = truth.extra[1], answer.extra[1]
        one, other = value_of(words[0]), value_of(words[1])
        return truth.extra[0] == answer.extra[0] and (one is None or other is None or one == other)
    if truth.kind == "choice":
        if not truth.extra[1]:
            return answer.text.strip("() ") == truth.extra[0].lower()
        return same(read(truth.extra[1]), answer)
    return False


def _same_value(truth: MathExpression, answer: MathExpression) -> bool:
    """Numbers and expressions, with their signs of percent and units. One side may leave them out."""
    if truth.kind == "quantity" and answer.kind == "quantity" and not _same_unit(truth.extra, answer.extra):
        return False
    if {truth.kind, answer.kind} == {"percent", "quantity"}:
        return False
    if "?" in (*truth.extra, *answer.extra) and truth.kind != answer.kind:
        return False
    inner, given = _inner(truth), _inner(answer)
    shift = _scale(truth), _scale(answer)
    if shift != (0, 0):
        one, other = value_of(inner.text), value_of(given.text)
        return one is not None and other is not None and near(other * 10 ** shift[1], one * 10 ** shift[0])
    if algebra.same_expression(inner, given):
        return True
    # 50\% is 0.5; MATH's judge takes it for 50, too.
    if (truth.kind == "percent") == (answer.kind == "percent"):
        return False
    if truth.kind == "percent":
        return algebra.same_expression(_hundredth(inner), given)
    return algebra.same_expression(inner, _hundredth(given))


def _hundredth(form: MathExpression) -> MathExpression:
    value = value_of(form.text)
    if value is None:
        return MathExpression("expression", f"\\frac{{{form.text}}}{{100}}")
    return MathExpression("expression", f"\\frac{{{value.numerator}}}{{{100 * value.denominator}}}")


def _inner(form: MathExpression) -> MathExpression:
    while form.kind in ("percent", "quantity"):
        form = form.items[0]
    return form


def _scale(form: MathExpression) -> int:
    return sum(int(one[1:]) for one in form.extra if one[0] == "*") if form.kind == "quantity" else 0


def _same_unit(unit: Sequence[str], other: Sequence[str]) -> bool:
    """Measures must agree: 5 m is not 5 cm. Of other words, clips or oranges, the number counts."""
    return [one for one in unit if "^" in one] == [one for one in other if "^" in one]


_BARE = re.compile(r"\\text|[\s{}'\"*.()-]")


def _same_words(truth: MathExpression, answer: MathExpression) -> bool:
    one, other = (_BARE.sub("", form.text) for form in (truth, answer))
    if "\\" in one or any(character.isdigit() for character in one):
        return one == other
    return one.casefold() == other.casefold() != ""


def _flat(form: MathExpression) -> list[MathExpression]:
    """The items of a list; those of a plus-minus in it, too."""
    return [one for item in form.items for one in (_flat(item) if item.kind == "list" and item.extra else [item])]


def _same_parts(truth: MathExpression, answer: MathExpression) -> bool:
    kinds = {truth.kind, answer.kind}
    if kinds <= {"list", "set"}:
        return _same_in_any_order(_flat(truth), _flat(answer), once=True)
    if kinds == {"list", "tuple"}:
        return _same_in_order(_flat(truth), _flat(answer))
    if kinds == {"tuple"} or kinds == {"ratio"} or kinds == {"amounts"}:
        return _same_in_order(truth.items, answer.items)
    if kinds == {"interval"}:
        return truth.extra == answer.extra and _same_in_order(truth.items, answer.items)
    if kinds == {"matrix"}:
        return truth.extra == answer.extra and _same_in_order(truth.items, answer.items)
    if "matrix" in kinds:
        return algebra.same_expression(truth, answer)
    if kinds == {"cases"}:
        return _same_in_any_order(list(truth.items), list(answer.items), once=False)
    if kinds & {"union", "intersection", "difference"} or algebra.is_set(truth) or algebra.is_set(answer):
        return _same_sets(_joined(truth), _joined(answer))
    if "set" in kinds and len((single := truth if truth.kind == "set" else answer).items) == 1:
        return same(single.items[0], answer) if single is truth else same(truth, single.items[0])
    if kinds & {"words"} or not kinds & _VALUES:
        return _same_words(truth, answer)
    return False


def _joined(form: MathExpression) -> MathExpression:
    """x < -2 or x > 3 as the union of two intervals."""
    ranges = [_range(item) for item in form.items if item.kind == "relation"] if form.kind == "list" else []
    found = [one for one in ranges if one is not None]
    if not found or len(found) != len(form.items) or len({name for name, _ in found}) > 1:
        return form
    return MathExpression("union", "", tuple(interval for _, interval in found))


def _same_sets(truth: MathExpression, answer: MathExpression) -> bool:
    if truth.kind == answer.kind == "union" and _same_in_any_order(list(truth.items), list(answer.items), once=True):
        return True
    if truth.kind == answer.kind == "interval" and _same_parts(truth, answer):
        return True
    one, other = algebra.set_of(truth), algebra.set_of(answer)
    return one is not None and other is not None and one == other


def _same_in_order(truths: Sequence[MathExpression], answers: Sequence[MathExpression]) -> bool:
    return len(truths) == len(answers) and all(same(one, other) for one, other in zip(truths, answers, strict=True))


def _same_in_any_order(truths: list[MathExpression], answers: list[MathExpression], *, once: bool) -> bool:
    """once: whether what is said twice is said once, as in a set."""
    # Of more than 64 items the order counts: each beside each would be a comparison for every pair, many with algebra.
    # Items of lists whose order does not matter, each beside each.
    if any(item.kind == "dots" for item in (*truths, *answers)) or max(len(truths), len(answers)) > 64:
        return _same_in_order(truths, answers)
    if once:
        truths, answers = _each_once(truths), _each_once(answers)
    if len(truths) != len(answers):
        return False
    left = list(answers)
    for truth in truths:
        place = next((at for at, answer in enumerate(left) if same(truth, answer)), None)
        if place is None:
            return False
        del left[place]
    return True


def _each_once(items: Sequence[MathExpression]) -> list[MathExpression]:
    found: list[MathExpression] = []
    for item in items:
        if not any(same(item, one) for one in found):
            found.append(item)
    return found
