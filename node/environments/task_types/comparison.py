"""Is what a program printed or returned what was expected? As the judges of the published data see it.

Printed text is compared line by line without blanks at the ends, then token by token, numbers within a tolerance
(rtol 1e-5, atol 1e-8, as numpy's allclose). Returned values are compared as JSON; floats within the same tolerance.
The published judges also accept lines in any order; that is left out, because it pays for wrong orders.
"""

import ast
import json
import math
from typing import Any

_RELATIVE, _ABSOLUTE = 1e-5, 1e-8
MAX_DEPTH = 64
MAX_PRINTED = 64 * 1024


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
    if len(text) > MAX_PRINTED or text.count("[") + text.count("(") + text.count("{") > MAX_DEPTH:
        return text
    try:
        value = ast.literal_eval(text.strip())
        return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _equal(value: Any, expected: Any, depth: int) -> bool:
    if depth > MAX_DEPTH:
        return False
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
    try:
        return _close(float(token), float(wanted))
    except ValueError:
        return False


def _close(value: float, expected: float) -> bool:
    try:
        return math.isfinite(value) and abs(value - expected) <= _ABSOLUTE + _RELATIVE * abs(expected)
    except OverflowError:  # a whole number beyond all floats
        return value == expected
