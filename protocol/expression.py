"""A formula as text, for losses and advantages that a run brings along: a grammar of one page, and nothing else.

    formula  = "=" sum
    sum      = product (("+" | "-") product)*
    product  = sign (("*" | "/") sign)*
    sign     = "-" sign | atom
    atom     = number | name | function "(" sum ("," sum)* ")" | "where" "(" truth "," sum "," sum ")" | "(" sum ")"
    truth    = both ("or" both)*
    both     = compare ("and" compare)*
    compare  = sum ("<" | "<=" | ">" | ">=") sum

There are no attributes, indices, loops, texts, assignments or powers, so a formula computes a number for each token or
sample in as many operations as it has parts, and can do nothing else. It stands in the run's bytes: its hash is the
run's root. Whoever computes gives it the names and the functions, over numbers of any kind (`compute`).
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.errors import ProtocolError

MARK = "="
"""What a formula begins with, so that no name is one."""
MOST_CHARACTERS, MOST_PARTS, MOST_DEEP = 1000, 200, 24
_NUMBER = r"((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)"
_TOKEN = re.compile(rf"\s*(?:{_NUMBER}|([A-Za-z_]\w*)|(<=|>=|[-+*/(),<>]))", re.ASCII)


def _divided(one: Any, other: Any) -> Any:
    return one / other


def _both(one: Any, other: Any) -> Any:
    return one & other


def _either(one: Any, other: Any) -> Any:
    return one | other


_COMPARED: dict[str, Callable[..., Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPUTED: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "and": _both,
    "or": _either,
    "negative": operator.neg,
    **_COMPARED,
}


class ExpressionError(ProtocolError):
    """A text that is no formula, or one that asks for what there is not."""


@dataclass(frozen=True, slots=True)
class ExpressionNode:
    """does: an operator, the name of a function, "number" or "name"; of: its arguments, a float, or a name."""

    does: str
    of: tuple[Any, ...]


def is_formula(text: str) -> bool:
    """Whether it is meant as one."""
    return text.startswith(MARK)


def parse(text: str, names: frozenset[str], functions: Mapping[str, int]) -> ExpressionNode:
    """names: that it may use; functions: with how many arguments. Raises ExpressionError, with the place."""
    if len(text) > MOST_CHARACTERS:
        raise _wrong(f"it has {len(text)} characters, and may have {MOST_CHARACTERS}")
    reader = _Reader(text, names, functions)
    found = reader.sum(0)
    if reader.next is not None:
        raise reader.wrong("an operator or the end")
    return found


def compute(part: ExpressionNode, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """names, functions: those that it was parsed with, over numbers of one kind, which `number` makes and `where`
    chooses among."""
    if part.does == "number":
        return functions["number"](*part.of)
    if part.does == "name":
        return names[part.of[0]]
    given = [compute(one, names, functions) for one in part.of]
    return (_COMPUTED.get(part.does) or functions[part.does])(*given)


def uses(part: ExpressionNode) -> set[str]:
    """The names and functions in it."""
    if part.does in ("number", "name"):
        return set(part.of) if part.does == "name" else set()
    return {part.does}.union(*map(uses, part.of)) - _COMPUTED.keys()


class _Reader:
    """Reads a formula from left to right, one token ahead; each method is a line of the grammar."""

    def __init__(self, text: str, names: frozenset[str], functions: Mapping[str, int]) -> None:
        self._text, self._at, self._before = text, len(MARK) if is_formula(text) else 0, 0
        self._names, self._functions = names, functions
        self._parts = 0
        self.next: str | None = None
        self._advance()

    def sum(self, deep: int) -> ExpressionNode:
        return self._chain(("+", "-"), self._product, deep)

    def _product(self, deep: int) -> ExpressionNode:
        return self._chain(("*", "/"), self._sign, deep)

    def _sign(self, deep: int) -> ExpressionNode:
        if self._takes("-"):
            return self._made("negative", self._sign(self._deeper(deep)))
        return self._atom(deep)

    def _atom(self, deep: int) -> ExpressionNode:
        word, deep = self.next, self._deeper(deep)
        if word is None or not (word[0].isalnum() or word[0] in "._("):
            raise self.wrong("a number, a name, a function or a bracket")
        self._advance()
        if word == "(":
            found = self.sum(deep)
            self._expects(")")
            return found
        if not (word[0].isalpha() or word[0] == "_"):
            return self._number(word)
        if word == "where":
            return self._where(deep)
        if self.next == "(" and word in self._functions:
            return self._call(word, deep)
        if word not in self._names:
            known = ", ".join(sorted({*self._names, *self._functions, "where"}))
            raise _wrong(f"there is no {word!r} (character {self._before}); there are {known}")
        return self._made("name", word)

    def _number(self, word: str) -> ExpressionNode:
        value = float(word)
        largest = 1e9
        if not math.isfinite(value) or value > largest:
            raise _wrong(f"{word} is too large: numbers go to {largest:g}")
        return self._made("number", value)

    def _call(self, name: str, deep: int) -> ExpressionNode:
        self._expects("(")
        given = [self.sum(deep)]
        while self._takes(","):
            given.append(self.sum(deep))
        self._expects(")")
        if len(given) != self._functions[name]:
            raise _wrong(f"{name} takes {self._functions[name]}, and was given {len(given)}")
        return self._made(name, *given)

    def _where(self, deep: int) -> ExpressionNode:
        self._expects("(")
        truth = self._truth(deep)
        self._expects(",")
        one = self.sum(deep)
        self._expects(",")
        other = self.sum(deep)
        self._expects(")")
        return self._made("where", truth, one, other)

    def _truth(self, deep: int) -> ExpressionNode:
        return self._chain(("or",), self._both, deep)

    def _both(self, deep: int) -> ExpressionNode:
        return self._chain(("and",), self._compare, deep)

    def _compare(self, deep: int) -> ExpressionNode:
        one = self.sum(deep)
        if self.next not in _COMPARED:
            raise self.wrong("<, <=, > or >=")
        sign = str(self.next)
        self._advance()
        return self._made(sign, one, self.sum(deep))

    # What they are made of

    def _chain(self, signs: tuple[str, ...], inner: Callable[[int], ExpressionNode], deep: int) -> ExpressionNode:
        found = inner(deep)
        while self.next in signs:
            sign = str(self.next)
            self._advance()
            found = self._made(sign, found, inner(deep))
        return found

    def _made(self, does: str, *of: Any) -> ExpressionNode:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise _wrong(f"it has more than {MOST_PARTS} parts")
        return ExpressionNode(does, of)

    def _deeper(self, deep: int) -> int:
        if deep >= MOST_DEEP:
            raise _wrong(f"its brackets are more than {MOST_DEEP} deep")
        return deep + 1

    def _takes(self, token: str) -> bool:
        if self.next != token:
            return False
        self._advance()
        return True

    def _expects(self, token: str) -> None:
        if not self._takes(token):
            raise self.wrong(repr(token))

    def _advance(self) -> None:
        self._before = self._at
        if not self._text[self._at :].strip():
            self.next = None
            return
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise _wrong(f"{self._text[self._at :].strip()[:20]!r} cannot be read (character {self._at})")
        self.next, self._at = found[found.lastindex or 0], found.end()

    def wrong(self, wanted: str) -> ExpressionError:
        here = "the end" if self.next is None else repr(self.next)
        return _wrong(f"{wanted} was expected at character {self._before}, and there is {here}")


def _wrong(why: str) -> ExpressionError:
    return ExpressionError("the formula cannot be used", why, "correct it; docs/recipes.md has the grammar by example")


# The formulas of a recipe

LOSS_NAMES = frozenset({"logp", "sampler", "r", "log_r", "p", "q", "A"})
LOSS_FUNCTIONS = {
    **{"exp": 1, "log": 1, "abs": 1, "sqrt": 1, "stop": 1, "sample_mean": 1, "sample_sum": 1},
    **{"min": 2, "max": 2, "clip": 3},
}
ADVANTAGE_NAMES = frozenset({"reward", "length", "mean", "std", "least", "most", "count"})
ADVANTAGE_FUNCTIONS = {"abs": 1, "sqrt": 1, "min": 2, "max": 2, "clip": 3}
"""None that libraries round differently: all members must find the same groups to have a signal."""


def parse_loss(text: str) -> ExpressionNode:
    """Raises ExpressionError."""
    found = parse(text, LOSS_NAMES, LOSS_FUNCTIONS)
    if not uses(found) & {"logp", "r", "log_r", "p"}:
        raise _wrong("it depends on none of logp, r, log_r and p, so nothing would be learnt from it")
    return found


def parse_advantage(text: str) -> ExpressionNode:
    """Raises ExpressionError."""
    return parse(text, ADVANTAGE_NAMES, ADVANTAGE_FUNCTIONS)


def why_not(text: str, *, advantage: bool) -> str | None:
    """Why a formula for a loss, or for an advantage, cannot be used; empty if it can, None for what is no formula."""
    if not is_formula(text):
        return None
    try:
        (parse_advantage if advantage else parse_loss)(text)
    except ExpressionError as error:
        return error.why
    return ""
