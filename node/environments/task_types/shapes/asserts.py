"""Tests that are written as Python (MBPP, HumanEval, KodCode, AceCode) -> calls with the value that each must return.

Run as they stand in the sandbox, they would show a program what is expected. So they are read, never run. Every test
must compare a call of the function, with arguments that are plain values, with a plain value; else the row is refused.
"""

import ast
import json
from collections.abc import Iterator
from typing import Any

MAX_SOURCE = 256 * 1024
# What `ast.parse` says of text that nests too deeply depends on the version of Python: any of the last two.
_NO_PYTHON = (SyntaxError, ValueError, MemoryError, RecursionError)
_HARMLESS = ("METADATA",)
"""Names that HumanEval gives to what is no test."""


class _Unread(ValueError):
    """A test that is not of the one form."""


def cases_of(source: str, function: str = "", called: str = "") -> list[dict[str, Any]]:
    """The tests in the form of `shapes.tests`. function: the one that rows name, else the first that is called; called:
    what the tests call it (HumanEval: candidate). Raises ValueError."""
    if len(source) > MAX_SOURCE:
        raise ValueError(f"its tests have more than {MAX_SOURCE} characters")
    try:
        tests = list(_tests(ast.parse(source).body, {}))
    except _Unread:
        raise
    except _NO_PYTHON:
        raise ValueError("its tests are no Python") from None
    if not tests:
        raise ValueError("it has no tests: any program would pass")
    name = called or function or tests[0][0]
    for one, *_ in tests:
        if one != name:
            raise ValueError(f"its tests call {one[:40]!r} as well as {name[:40]!r}: only one function can be tested")
    return [_case(function or name, arguments, expected) for _, arguments, expected in tests]


_Test = tuple[str, list[Any], Any]
"""(what is called, with what, what it must return)."""


def _tests(body: list[ast.stmt], known: dict[str, Any]) -> Iterator[_Test]:
    """known: names that stand for plain values so far."""
    for line in body:
        if isinstance(line, ast.Assert):
            yield _test(line.test, known)
        elif isinstance(line, ast.FunctionDef):
            yield from _tests(line.body, dict(known))
        elif isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            if line.targets[0].id not in _HARMLESS:
                known[line.targets[0].id] = _plain(line.value, known)
        elif not _says_nothing(line):
            raise _Unread(f"line {line.lineno} of its tests does more than compare a call with a value")


def _says_nothing(line: ast.stmt) -> bool:
    """Imports, texts, `pass`, and HumanEval's call of its own check."""
    if isinstance(line, ast.Import | ast.ImportFrom | ast.Pass):
        return True
    if not isinstance(line, ast.Expr):
        return False
    one = line.value
    calls_check = isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "check"
    return isinstance(one, ast.Constant) or calls_check


def _test(test: ast.expr, known: dict[str, Any]) -> _Test:
    """`f(x) == y`, `y == f(x)`, `f(x) is y`, `f(x)`, `not f(x)`, `abs(f(x) - y) < 1e-6`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return (*_call(test.operand, known), False)
    if isinstance(test, ast.Call):
        return (*_call(test, known), True)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = test.left, test.comparators[0]
        if isinstance(test.ops[0], ast.Eq | ast.Is):
            if not isinstance(left, ast.Call):
                left, right = right, left
            return (*_call(left, known), _plain(right, known))
        if isinstance(test.ops[0], ast.Lt | ast.LtE) and (difference := _difference(left)) is not None:
            bound = _plain(right, known)
            # The bound of scores is 1e-6 of the value. A wider one would pay for what is wrong here.
            if isinstance(bound, float) and bound <= 1e-5:
                return (*_call(difference.left, known), float(_plain(difference.right, known)))
    raise _Unread(f"line {test.lineno} of its tests is no comparison of a call with a plain value")


def _difference(node: ast.expr) -> ast.BinOp | None:
    """What stands in abs(a - b)."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func) in ("abs", "math.fabs") and len(node.args) == 1):
        return None
    inner = node.args[0]
    return inner if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) else None


def _call(node: ast.expr, known: dict[str, Any]) -> tuple[str, list[Any]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        raise _Unread(f"line {node.lineno} of its tests calls no function by its name, or with named arguments")
    return node.func.id, [_plain(one, known) for one in node.args]


def _plain(node: ast.expr, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    try:
        return ast.literal_eval(node)
    except _NO_PYTHON + (TypeError,):
        raise _Unread(f"line {node.lineno} of its tests has {ast.unparse(node)[:40]!r}, no plain value") from None


def _case(function: str, arguments: list[Any], expected: Any) -> dict[str, Any]:
    """Arguments that JSON changes (tuples, sets, keys that are numbers) go in as Python writes them."""
    if not _is_json(expected):
        raise ValueError(f"a test expects {repr(expected)[:40]}, which does not come out of the sandbox as it is")
    exact = _is_json(arguments) and json.loads(json.dumps(arguments)) == arguments
    case = {"fn_name": function, "input": arguments if exact else [], "output": json.loads(json.dumps(expected))}
    return case if exact else case | {"python": repr(arguments)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
