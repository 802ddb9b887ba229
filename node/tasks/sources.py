"""The rows that a task's problems were made of, in SYNTHETIC-1's columns: generated data can be trained on. Blocking.

`dataset`, `task filter` and readers of JSONL and parquet take them: a column has one type, so what is neither text,
number nor truth value is written as JSON.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from node.environments.dataset import read_problems
from node.environments.prompts import read_prompt
from node.environments.task_types.shapes.base import Published
from protocol.run import EnvironmentSpec

NAMED = ("task_type", "verification_info", "gold_standard_solution", "source", "in_source_id", "metadata")
"""SYNTHETIC-1's columns of a problem, beside problem_id and prompt. Texts; infos are JSON."""
MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_SCALARS: dict[type, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class Sources:
    """assets: where the environment's data files lie; wanted: problem ids. Problems of environments without rows have
    their environment's name as task type, and their prompt as the model was asked."""

    def __init__(self, environment: EnvironmentSpec, assets: Path, wanted: Collection[str]) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._names = {part.title: part.name for part in environment.parts}
        self._name = environment.name
        for label, spec in [(f"{part.title}/", part) for part in environment.parts] or [("", environment)]:
            path = spec.args.get("path")
            if path and (assets / str(path)).is_file():
                self._read(assets / str(path), label, wanted)
        # A column has one type: one chat among the prompts makes all of them chats.
        self.chats = any(not isinstance(row["prompt"], str) for row in self._rows.values())
        self.types = self._types()

    def _read(self, path: Path, label: str, wanted: Collection[str]) -> None:
        for raw, published in read_problems(path):
            name = label + published.problem_id
            if name in wanted:
                # A data set of responses has a problem several times; its first row stands for it.
                self._rows.setdefault(name, _columns(raw, published))

    def of(self, problem_id: str, asked: str) -> dict[str, Any]:
        """The source columns of a problem, as written; asked: its prompt as the model had it."""
        row = self._rows.get(problem_id)
        if row is None:
            label = problem_id.partition("/")[0]
            row = {"prompt": asked, "task_type": self._names.get(label, self._name)}
        row = {**dict.fromkeys(NAMED), **dict.fromkeys(self.types), **row}
        if self.chats:
            before, last = read_prompt(row["prompt"])
            row["prompt"] = [{"role": role, "content": text} for role, text in (*before, ("user", last))]
        return {name: _written(value, self.types.get(name)) for name, value in row.items()}

    def _types(self) -> dict[str, pa.DataType]:
        """Of the columns that are the source's own: one that holds values of several types is JSON text."""
        found: dict[str, set[type]] = {}
        for row in self._rows.values():
            for name in row.keys() - {*NAMED, "prompt"}:
                found.setdefault(name, set()).update({type(row[name])} - {type(None)})
        return {
            name: _SCALARS[kinds.pop()] if len(kinds) == 1 and kinds < {*_SCALARS} else pa.string()
            for name, kinds in sorted(found.items())
        }


def fields(sources: Sources) -> list[tuple[str, pa.DataType]]:
    """Names and types of the columns."""
    prompt = MESSAGES if sources.chats else pa.string()
    return [("prompt", prompt), *((name, pa.string()) for name in NAMED), *sources.types.items()]


def _columns(raw: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """The row's own columns, and SYNTHETIC-1's. Of another form its own are called source_..., so that the row is of
    one form."""
    own = "task_type" in raw
    kept = {
        name if own else f"source_{name}": value for name, value in raw.items() if name not in ("problem_id", "prompt")
    }
    return kept | {
        "prompt": published.prompt,
        "task_type": published.task,
        "verification_info": json.dumps(published.info),
        "gold_standard_solution": published.gold if isinstance(published.gold, str) else None,
        "source": raw.get("source", raw.get("data_source")),
    }


def _written(value: Any, kind: pa.DataType | None) -> Any:
    if value is None or isinstance(value, str) or kind in (pa.int64(), pa.float64(), pa.bool_()):
        return value
    return value if kind is None and isinstance(value, list) else json.dumps(value, default=str)
