"""Around a package's module `environment`: its rows in slices, its functions one call each.

Rows are made while this is loaded, so that every call begins with them in place.
"""

import itertools
import json
from typing import Any

import environment  # pyright: ignore[reportMissingImports]

MAX_ROWS = 1_000_000
_OPTIONAL = ("step", "program", "golden", "files", "tests")


def _made() -> list[Any] | None:
    if hasattr(environment, "rows"):
        return list(itertools.islice(environment.rows(), MAX_ROWS + 1))
    if hasattr(environment, "size"):
        return [environment.row(number) for number in range(min(environment.size(), MAX_ROWS + 1))]
    return None


_ROWS = _made()


def describe() -> dict[str, Any]:
    """Which functions there are, and how many rows; None: they lie in a file."""
    return {
        "functions": [name for name in ("prompt", "score", *_OPTIONAL) if callable(getattr(environment, name, None))],
        "rows": None if _ROWS is None else len(_ROWS),
    }


def asked(first: int, most: int) -> list[list[Any]]:
    """[row, prompt] of the rows from `first` on, as many as fit into `most` characters of JSON, at least one."""
    found, size = [], 0
    for number, row in enumerate((_ROWS or [])[first:], first):
        pair = _pair(number, row)
        size += len(pair)
        if found and size > most:
            break
        found.append(json.loads(pair))
    return found


def prompts(first: int, rows: list[Any]) -> list[Any]:
    """The prompts of rows of a file."""
    return [json.loads(_pair(first + place, row))[1] for place, row in enumerate(rows)]


def _pair(number: int, row: Any) -> str:
    try:
        row = json.loads(json.dumps(row, allow_nan=False))
        return json.dumps([row, environment.prompt(row)], allow_nan=False)
    except Exception as error:
        raise RuntimeError(f"row {number}: {type(error).__name__}: {error}") from None


def sweep(asked: list[list[Any]]) -> list[list[Any]]:
    """The rewards of one-turn answers, many rows at once. "raised" is no reward; null: a program, run elsewhere."""
    return [[_swept(row, text) for text in texts] for row, texts in asked]


def _swept(row: Any, text: str) -> Any:
    row, turns = json.loads(json.dumps(row)), [{"role": "assistant", "content": text}]
    try:
        if callable(getattr(environment, "program", None)):
            return 0.0 if environment.program(row, turns) is None else None
        value = environment.score(row, turns)
        json.dumps(value, allow_nan=False)
    except Exception:
        return "raised"
    return "raised" if value is None else value


def step(row: Any, turns: list[dict[str, str]]) -> Any:
    return environment.step(row, turns)


def program(row: Any, turns: list[dict[str, str]]) -> Any:
    return environment.program(row, turns)


def score(row: Any, turns: list[dict[str, str]]) -> Any:
    return environment.score(row, turns)


def score_with(row: Any, turns: list[dict[str, str]], found: Any) -> Any:
    """found: what programs did, or what a session left."""
    return environment.score(row, turns, found)


def files(row: Any) -> Any:
    return environment.files(row)


def tests(row: Any) -> Any:
    return environment.tests(row)


def golden(row: Any) -> Any:
    return environment.golden(row)
