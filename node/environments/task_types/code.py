"""`prime_rl_code`, `verifiable_code`: the fenced program of the answer, in Python, passes every test.

Tests feed standard input, or call a function. Each runs in a fresh copy of the sandbox; what is expected stays here.
"""

import ast
import json
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import msgspec

from node.bounded_dict import BoundedDict
from node.environments.base import JSON_BRACKETS, MAX_NESTED, key_of, nested_deeply
from node.environments.numbers import computed_near, integer, number
from node.environments.programs import ProgramRunner, ProgramTrial, finished, last_block
from node.environments.task_types.base import Question, Row, Truth, read, said
from node.environments.task_types.shapes.base import as_json, parsed
from node.sandbox import CallOutcome, CallStatus, Undecided

MAX_TESTS = 512
MAX_BYTES = 8 << 20
"""Of all tests of a row: every one of its answers carries them."""
PYTHON = ("python", "python3", "py")


class CodeCase(msgspec.Struct, frozen=True, omit_defaults=True):
    """expected: the text that is printed or, of a function, the JSON value that it returns; text: how that value was
    written, where nobody said whether the text is returned or what it says: both are right; python: the list of
    arguments as Python writes it, where JSON would change them."""

    expected: Any
    stdin: str = ""
    function: str = ""
    arguments: tuple[Any, ...] = ()
    text: str | None = None
    python: str = ""

    @property
    def trial(self) -> ProgramTrial:
        return ProgramTrial(self.stdin, self.function, self.arguments, self.python)

    def passed(self, outcome: CallOutcome) -> bool:
        if self.function:
            value = outcome.value
            right = same_value(value, self.expected) or (self.text is not None and value == self.text)
            return outcome.status is CallStatus.OK and right
        return finished(outcome) and same_output(outcome.printed.decode(errors="replace"), self.expected)


def read_truth(info: Row, row: Row) -> Truth:
    """The tests, in the one form that `shapes.tests` makes of all published ones, as one JSON text."""
    language = info.get("language", "python")
    if str(language).lower() not in PYTHON:
        raise ValueError(f"programs in {str(language)[:40]!r} are not run here, only Python")
    tests = [_test(case, place) for place, case in enumerate(info["test_cases"])]
    if not tests:
        raise ValueError("its list of tests is empty: any program would pass")
    if len(tests) > MAX_TESTS:
        raise ValueError(f"it has {len(tests)} tests, {MAX_TESTS} are allowed")
    encoded = msgspec.json.encode(tests)
    if len(encoded) > MAX_BYTES:
        raise ValueError(f"its tests have {len(encoded)} bytes, {MAX_BYTES} are allowed")
    return (encoded.decode(),)


def _test(case: Row, place: int) -> CodeCase:
    given, expected, function = case["input"], case["output"], case.get("fn_name") or ""
    if function and not function.isidentifier():
        raise ValueError(f"test {place} calls {function[:40]!r}, which is no function's name")
    if function:
        # Text beside text is JSON, as LiveCodeBench has it. Beside a list of values it may be either.
        text = expected if isinstance(expected, str) and not isinstance(given, str) else None
        value, arguments = _value(expected), _arguments(given, place)
        # Both would become null, and whoever returns nothing would be paid.
        as_json([value, arguments], f"test {place}")
        return CodeCase(value, function=function, arguments=tuple(arguments), text=text, python=case.get("python", ""))
    return CodeCase(_text(expected, place), stdin=_text(given, place))


def _arguments(given: Any, place: int) -> list[Any]:
    """A list of arguments, or text with one JSON value a line."""
    if isinstance(given, str):
        return [parsed(line, f"the input of test {place}") for line in given.strip().split("\n") if given.strip()]
    if not isinstance(given, list):
        raise ValueError(f"the input of test {place} is no list of arguments")
    return given


def _value(expected: Any) -> Any:
    """A JSON value, the text of one, or what Python prints of one (True, None, ['a']), as SYNTHETIC-1 compares."""
    if not isinstance(expected, str) or nested_deeply(expected, JSON_BRACKETS):
        return expected
    try:
        return json.loads(expected)
    except ValueError:
        return printed_value(expected)


def _text(value: Any, place: int) -> str:
    """Lines stand as a list in some rows."""
    lines = value if isinstance(value, list) else [value]
    if any(isinstance(line, list | dict) for line in lines):
        raise ValueError(f"test {place} has lists or objects where text is read or printed, and names no function")
    return "\n".join(map(str, lines))


class CodeScorer:
    """1 if every test is passed, else 0. The same program and tests are run once: their outcome is always the same."""

    def __init__(self, runner: ProgramRunner) -> None:
        self._runner = runner
        self._known = BoundedDict[bytes, float](1 << 14)
        self.gave_up = 0

    def score(self, questions: Sequence[Question]) -> list[float]:
        sources = read(last_block, questions)
        return [self._score(source, truth) for source, (_, truth) in zip(sources, questions, strict=True)]

    def _score(self, source: str | None | Undecided, truth: Truth) -> float:
        if source is None or isinstance(source, Undecided):
            self.gave_up += source is not None
            return 0.0
        key = key_of((source, truth))
        if key not in self._known:
            passed = self._passes(source, msgspec.json.decode(truth[0], type=list[CodeCase]))
            # Not remembered: this machine may tell the next time.
            if passed is None:
                self.gave_up += 1
                return 0.0
            self._known[key] = float(passed)
        return self._known[key]

    def _passes(self, source: str, tests: Sequence[CodeCase]) -> bool | None:
        """None if this machine cannot tell. The first test that fails decides."""
        outcomes = self._runner.run(source, [test.trial for test in tests])
        for test, outcome in zip(tests, outcomes, strict=True):
            if isinstance(outcome, Undecided):
                return None
            if not test.passed(outcome):
                return False
        return True

    def close(self) -> None:
        """The runner is somebody else's."""


# What a program printed or returned is compared as the judges of the published data do. Printed text: line by line
# without blanks at the ends, then token by token, numbers as `numbers` says. Returned values: as JSON. Two things of
# those judges are left out, since they pay for wrong answers: lines in any order, and a tolerance for whole numbers.
MAX_PRINTED = 64 * 1024
_FIXED = re.compile(r"[+-]?\d{1,60}\.(\d{6,60})")
"""A number with as many decimals as judges of competitions ask for."""


def same_output(printed: str, expected: str) -> bool:
    """Whether two texts say the same."""
    lines, wanted = _lines(printed), _lines(expected)
    if lines == wanted:
        return True
    return len(lines) == len(wanted) and all(_same_line(a, b) for a, b in zip(lines, wanted, strict=True))


def same_value(value: Any, expected: Any) -> bool:
    """Whether two JSON values are equal. An expected list of one may stand for its only element."""
    if _equal(value, expected, 0):
        return True
    return isinstance(expected, list) and len(expected) == 1 and _equal(value, expected[0], 0)


def printed_value(text: str) -> Any:
    """The JSON value that Python prints as this text; the text itself where it is none."""
    # Python's documentation warns that deep nesting can crash the interpreter in literal_eval.
    if len(text) > MAX_PRINTED or text.count("[") + text.count("(") + text.count("{") > MAX_NESTED:
        return text
    try:
        value = ast.literal_eval(text.strip())
        # Through JSON, as a function's result comes out of the sandbox: tuples are lists on both sides.
        return json.loads(json.dumps(value, allow_nan=False))
    # All that `literal_eval` is documented to raise. Its MemoryError is the parser's depth, not this machine's memory.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _equal(value: Any, expected: Any, depth: int) -> bool:
    if depth > MAX_NESTED:
        return False
    # In Python True == 1; in JSON they are two values.
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(
            _equal(a, b, depth + 1) for a, b in zip(value, expected, strict=True)
        )
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(_equal(value[key], expected[key], depth + 1) for key in value)
    if isinstance(value, float) or isinstance(expected, float):
        return isinstance(value, int | float) and isinstance(expected, int | float) and _close(value, expected)
    return type(value) is type(expected) and value == expected


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]


def _same_line(line: str, wanted: str) -> bool:
    tokens, others = line.split(), wanted.split()
    return len(tokens) == len(others) and all(_same_token(a, b) for a, b in zip(tokens, others, strict=True))


def _same_token(token: str, wanted: str) -> bool:
    if token == wanted:
        return True
    whole, other = integer(token), integer(wanted)
    if whole is not None and other is not None:
        return whole == other
    value, right = number(token), number(wanted)
    if value is None or right is None:
        return False
    if other is not None and value.denominator == 1:
        return value == right
    # 0.012346 says all that six decimals can say of 0.0123456789.
    decimals = _FIXED.fullmatch(token)
    rounded = decimals is not None and abs(value - right) * 10 ** len(decimals[1]) <= 1
    return rounded or computed_near(value, right)


def _close(value: float, expected: float) -> bool:
    # To an infinite number any would be near.
    if value == expected or not _finite(value) or not _finite(expected):
        return value == expected
    given, right = Fraction(value), Fraction(expected)
    return False if isinstance(expected, int) and given.denominator == 1 else computed_near(given, right)


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


MAX_CHARACTERS = 64 * 1024
MAX_TRIED = 64
"""Opening braces from the end at which an object is looked for."""


def read_output(info: Row, row: Row) -> Truth:
    if info.get("ground_truth") is None:
        raise ValueError("verification_info needs ground_truth: what the program prints or returns")
    return (as_json(info["ground_truth"], "ground_truth"),)


def output_reward(answer: str, truth: Truth) -> float:
    """1 for the predicted output, else 0."""
    found = last_object(said(answer)[-MAX_CHARACTERS:]) or {}
    # Both names at once would be two guesses.
    told = [found[name] for name in ("output", "code_output") if name in found]
    return float(len(told) == 1 and same_value(told[0], json.loads(truth[0])))


def last_object(text: str) -> dict[str, Any] | None:
    """The JSON object that ends last, the outermost of those; None if there is none, or in a text that is nested
    deeply."""
    if nested_deeply(text, JSON_BRACKETS):
        return None
    decoder = json.JSONDecoder()
    best: tuple[int, dict[str, Any]] | None = None
    place = len(text)
    for _ in range(MAX_TRIED):
        place = text.rfind("{", 0, place)
        if place < 0:
            break
        try:
            value, end = decoder.raw_decode(text, place)
        except ValueError:
            continue
        if isinstance(value, dict) and (best is None or end >= best[0]):
            best = (end, value)
    return best[1] if best else None
