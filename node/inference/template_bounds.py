"""What rendering a chat template may cost, and what it may print.

A template is a program of a stranger, run by each member that makes a prompt. What it prints is text, numbers, booleans
and nothing: an object's text may hold an address, or an order that differs between processes. What it costs is counted
in steps and in characters, and refused before the memory is taken. The count is the same on every machine, so a
template that ends in an error ends so for everybody; a clock or a memory limit would divide honest members.

Knows values, not jinja2's programs: `template_language` asks here before each operation.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import length_hint
from types import NoneType
from typing import Any

from jinja2 import TemplateError, Undefined
from jinja2.sandbox import SandboxedFormatter

MAX_STEPS = 1 << 19
"""Loops' turns, calls, comparisons and look-ups; a kibibyte of text that is read counts as one, too."""
MAX_TEXT = 1 << 22
"""Characters of one text: four times the longest prompt that is taken."""
MAX_MADE = 1 << 25
"""Characters of all texts that one rendering makes."""
MAX_NUMBER = 1 << 63
MAX_NESTED = 32
"""Lists in lists that are compared or written as JSON."""
MAX_CALLS = 48
"""Macros within macros: Python's own limit depends on who calls."""
MAX_WIDTH = 100
"""Of a field in a format, of an indentation in JSON."""
MAX_STRIPPED = 256
"""Different characters that are stripped: each character of the text is compared with all of them."""
_STEP_CHARACTERS = 1024
_LONGEST_NUMBER = 24
"""Characters of a number as it is printed."""
_ESCAPED = 6
"""Characters that one becomes in JSON at most."""

_PRINTABLE = (str, int, float, NoneType, Undefined)
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
_FORMAT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+)?)?")


class ReadOnce:
    """A sequence that is read once, as the generators of jinja2's filters are, but made and paid for at once."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._next >= len(self.items):
            raise StopIteration
        self._next += 1
        return self.items[self._next - 1]

    def __length_hint__(self) -> int:
        return len(self.items) - self._next

    def left(self) -> Sequence[Any]:
        return self.items[self._next :]


_CONTAINERS = (list, tuple, dict, range, ReadOnce, *_VIEWS)


class RenderingBudget:
    """What one rendering has left."""

    def __init__(self) -> None:
        self.steps, self.characters, self.calls = MAX_STEPS, MAX_MADE, MAX_CALLS


_budget: ContextVar[RenderingBudget] = ContextVar("template budget")


@contextmanager
def a_rendering() -> Iterator[None]:
    token = _budget.set(RenderingBudget())
    try:
        yield
    finally:
        _budget.reset(token)


@contextmanager
def a_call() -> Iterator[None]:
    budget = _budget.get()
    if not budget.calls:
        raise TemplateError(f"it calls itself more than {MAX_CALLS} times deep")
    budget.calls -= 1
    try:
        yield
    finally:
        budget.calls += 1


def spend(steps: int) -> None:
    budget = _budget.get()
    budget.steps -= steps
    if budget.steps < 0:
        raise TemplateError(f"it takes more than {MAX_STEPS} steps")


def make(characters: int) -> None:
    """Said before a text of so many characters is made."""
    if characters > MAX_TEXT:
        raise TemplateError(f"it makes a text of more than {MAX_TEXT} characters")
    keep(characters)


def keep(characters: int) -> None:
    """The same of several texts."""
    budget = _budget.get()
    budget.characters -= characters
    if budget.characters < 0:
        raise TemplateError(f"it makes texts of more than {MAX_MADE} characters in all")


def read(text: str) -> None:
    spend(1 + len(text) // _STEP_CHARACTERS)


def weigh(value: Any, nested: int = MAX_NESTED) -> int:
    """Pay for looking at all of a value; the characters of its texts and numbers."""
    if isinstance(value, str):
        read(value)
        return len(value)
    spend(1)
    if not isinstance(value, _CONTAINERS):
        return _LONGEST_NUMBER
    if not nested:
        raise TemplateError(f"it looks at lists that are nested more than {MAX_NESTED} deep")
    spend(length_hint(value))
    items: Iterable[Any] = value.left() if isinstance(value, ReadOnce) else value
    if isinstance(value, dict):
        items = (part for pair in value.items() for part in pair)
    return sum(weigh(item, nested - 1) for item in items)


def weighed(value: Any) -> Any:
    """A value that is to be compared."""
    weigh(value)
    return value


def count(value: Any) -> int:
    """Pay for each item of a value that is to be gone through; how many there are."""
    if not isinstance(value, (str, Undefined, *_CONTAINERS)):
        raise TemplateError(f"it goes through a value of the kind {_kind(value)}")
    found = 0 if isinstance(value, Undefined) else length_hint(value)
    spend(1 + found)
    return found


def looped(value: Any) -> Any:
    count(value)
    return value


def made(value: Any) -> Any:
    """A list, tuple or mapping that stands in the template."""
    spend(1 + len(value))
    return value


def number(value: Any) -> Any:
    """A result: not beyond what everybody can print."""
    if isinstance(value, int) and abs(value) >= MAX_NUMBER:
        raise TemplateError("it makes a number of more than 63 bits")
    return value


def printable(value: Any) -> Any:
    if not isinstance(value, _PRINTABLE):
        raise TemplateError(
            f"it prints a value of the kind {_kind(value)}: only text, numbers, booleans and nothing are the same "
            "everywhere (a list can be printed with tojson or join)"
        )
    return number(value)


def as_text(value: Any) -> str:
    text = str(printable(value))
    read(text)
    make(len(text))
    return text


def joined(parts: Iterable[Any], between: str = "") -> str:
    texts = [str(printable(part)) for part in parts]
    spend(len(texts))
    make(sum(map(len, texts)) + len(between) * max(0, len(texts) - 1))
    return between.join(texts)


def _kind(value: Any) -> str:
    return type(value).__name__


# Operators


def before_binop(operator: str, left: Any, right: Any) -> None:
    """Pay for left OPERATOR right before it is worked out. Raises TemplateError."""
    spend(1)
    if operator == "*":
        _pay_repeated(left, right)
        _pay_repeated(right, left)
    elif operator == "+":
        _pay_sum(left, right)
    elif operator == "%" and isinstance(left, str):
        _pay_percent(left, right)
    elif operator == "**" and not (isinstance(left, int) and isinstance(right, int) and 0 <= right < 64):
        # Powers of fractions come from the system's library, whose last digit differs.
        raise TemplateError("it raises to a power that is no whole number below 64")


def _pay_repeated(value: Any, times: Any) -> None:
    if isinstance(times, int) and isinstance(value, str):
        make(len(value) * max(0, times))
    elif isinstance(times, int) and isinstance(value, list | tuple):
        spend(len(value) * max(0, times))


def _pay_sum(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        # Markup escapes what is added to it.
        grown = 1 if type(left) is type(right) is str else _ESCAPED
        read(left)
        read(right)
        make(grown * (len(left) + len(right)))
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
        spend(len(left) + len(right))


def _pay_percent(text: str, given: Any) -> None:
    read(text)
    values = given.values() if isinstance(given, dict) else given if isinstance(given, tuple) else (given,)
    for value in values:
        printable(value)
    # A bracket that is open is looked for to the end, from each field anew.
    spend(text.count("%") * len(text) // _STEP_CHARACTERS)
    fields = _FORMAT.findall(text)
    if any(width == "*" or (width and int(width[:6]) > MAX_WIDTH) for field in fields for width in field):
        raise TemplateError(f"it prints a field wider than {MAX_WIDTH}")
    whole = sum(weigh(value) for value in values)
    make(len(text) + len(fields) * (_ESCAPED * whole + _LONGEST_NUMBER + 400 + 3 * MAX_WIDTH))


class Formatter(SandboxedFormatter):
    """str.format. A field prints what a template may print."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return super().convert_field(printable(value), conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        read(format_spec)
        widths = re.findall(r"\d+", format_spec[:_STEP_CHARACTERS])
        if len(format_spec) > MAX_WIDTH or any(int(width[:6]) > MAX_WIDTH for width in widths):
            raise TemplateError(f"it prints a field wider than {MAX_WIDTH}")
        text = super().format_field(printable(value), format_spec)
        make(len(text))
        return text


# Methods of texts, lists and mappings

METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        "capitalize casefold center count endswith find format format_map index isalnum isalpha isascii isdecimal "
        "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition "
        "removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith "
        "strip swapcase title upper zfill".split()
    ),
    list: frozenset({"index", "count", "copy"}),
    tuple: frozenset({"index", "count"}),
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
}
_FROM_THE_END = frozenset({"rfind", "rindex", "rpartition", "rsplit"})
_WIDE = frozenset({"center", "ljust", "rjust", "zfill"})
_STRIPS = frozenset({"strip", "lstrip", "rstrip"})


def methods_of(value: Any) -> frozenset[str]:
    return next((names for kind, names in METHODS.items() if isinstance(value, kind)), frozenset())


def bounded_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a text, list or mapping, paid for when it is called."""
    owner, name = method.__self__, method.__name__  # type: ignore[attr-defined] - a bound method

    def bounded(*args: Any, **kwargs: Any) -> Any:
        if isinstance(owner, str):
            _pay_text_method(owner, name, [*args, *kwargs.values()])
            if name == "join" and args:
                # What is left of a sequence that can be read once was counted, not read.
                args = (args[0].left() if isinstance(args[0], ReadOnce) else args[0], *args[1:])
        elif isinstance(owner, dict):
            spend(1 if name == "get" else 1 + len(owner))
        else:
            weigh(owner)
            weigh(args)
        return result(method(*args, **kwargs))

    return bounded


def result(value: Any) -> Any:
    """What an operation gave, paid for; a generator becomes what can be counted."""
    if isinstance(value, str):
        make(len(value))
    elif isinstance(value, list | tuple):
        spend(len(value))
    elif isinstance(value, Iterator) and not isinstance(value, ReadOnce):
        items: list[Any] = []
        for item in value:
            spend(1)
            items.append(item)
        return ReadOnce(items)
    return number(value)


def _pay_text_method(text: str, name: str, args: Sequence[Any]) -> None:
    read(text)
    characters = sum(weigh(arg) for arg in args)
    first = args[0] if args else None
    for arg in args:
        if isinstance(arg, int) and abs(arg) > MAX_TEXT:
            raise TemplateError(f"it gives {name} a number above {MAX_TEXT}")
    if name in _WIDE and isinstance(first, int):
        make(max(0, first))
    elif name == "join":
        make(characters + len(text) * length_hint(first, 0))
    elif name == "replace":
        pay_replaced(text, *args)
    elif name in _STRIPS:
        pay_stripped(first)
    elif name in ("split", "rsplit", "splitlines"):
        spend(text.count(first) if isinstance(first, str) and first else len(text) // 2)
    if name in _FROM_THE_END and isinstance(first, str):
        # Python looks for a text from the end without the tricks that make it quick from the beginning.
        spend(len(text) * len(first) // _STEP_CHARACTERS)


def pay_replaced(text: str, *args: Any) -> None:
    """args: what, by what, and how many times at most."""
    if len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        make(len(text) + text.count(args[0]) * max(0, len(args[1]) - len(args[0])))


def pay_stripped(characters: Any) -> None:
    if isinstance(characters, str) and len(characters) > MAX_STRIPPED:
        raise TemplateError(f"it strips more than {MAX_STRIPPED} different characters")


# Filters


def pay_indent(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    wide = width if isinstance(width, int) else len(str(printable(width)))
    text = str(printable(text))
    make(len(text) + (len(text.splitlines()) + 1) * max(0, wide))


def pay_json(value: Any, indent: Any = None, separators: Any = None) -> None:
    around = [indent] if isinstance(indent, str) else []
    around += list(separators) if isinstance(separators, list | tuple) else []
    longest = max([indent if isinstance(indent, int) else 0, *(len(str(one)) for one in around)])
    if longest > MAX_WIDTH:
        raise TemplateError(f"it writes JSON with more than {MAX_WIDTH} characters between two values")
    before = _budget.get().steps
    characters = weigh(value)
    values = before - _budget.get().steps
    make(_ESCAPED * characters + values * (4 + longest * (2 if indent is None else MAX_NESTED)))


def pay_number_of(text: Any, *_: Any, **__: Any) -> None:
    """Before a text becomes a number: how many digits Python reads is a setting of the process."""
    if isinstance(text, str) and len(text) > 6 * MAX_WIDTH and text.strip().isalnum():
        raise TemplateError("it reads a number of more than 600 digits")


def pay_round(_: Any, precision: Any = 0, *__: Any, **___: Any) -> None:
    if not isinstance(precision, int) or abs(precision) > 20:
        raise TemplateError("it rounds to more than 20 digits")


def pay_sum(_: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise TemplateError("it adds up what are no numbers")
