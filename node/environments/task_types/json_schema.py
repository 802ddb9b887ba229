"""`json_schema`: the answer is JSON that fits a schema (draft 2020-12, without remote references and formats).

The schema's patterns are regular expressions of a stranger on text of another and may run for ever. So they are tried
in the sandbox, which counts instructions; the library for schemas needs native code, which the sandbox has not.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from node.bounded_dict import BoundedDict
from node.environments.base import key_of
from node.environments.errors import nearest
from node.environments.guests import guest
from node.environments.programs import ProgramRunner
from node.environments.task_types.base import Question, Row, Truth, read, said
from node.environments.task_types.shapes.base import parsed
from node.sandbox import CallStatus, Sandbox, Undecided

MAX_SCHEMA = 64 * 1024
MAX_ANSWER = 256 * 1024
_REMEMBERED = 1 << 14
_ENTRY = "intellect_schema"
TYPES = ("object", "array", "string", "boolean", "null", "number", "integer")
_COUNTS = ("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ONE = ("not", "items", "contains", "additionalProperties", "propertyNames")
_SEVERAL = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SAYING = ("$schema", "$id", "$comment", "title", "description", "default", "examples", "const")
_SHAPES: dict[str, Any] = {
    "type": str | list[str],
    "enum": list[Any],
    "required": list[str],
    "uniqueItems": bool,
    "pattern": str,
    "$ref": str,
    **dict.fromkeys(_COUNTS, Annotated[int, msgspec.Meta(ge=0)]),
    **dict.fromkeys(_NUMBERS, int | float),
    **dict.fromkeys(_ONE, bool | dict[str, Any]),
    **dict.fromkeys(_SEVERAL, Annotated[list[bool | dict[str, Any]], msgspec.Meta(min_length=1)]),
    **dict.fromkeys(_NAMED, dict[str, bool | dict[str, Any]]),
    **dict.fromkeys(_SAYING, Any),
}
"""What may stand behind each keyword."""


def read_truth(info: Row, row: Row) -> Truth:
    schema = info.get("json_schema", info.get("schema"))
    if isinstance(schema, str):
        schema = parsed(schema, "the schema")
    if not isinstance(schema, dict):
        raise ValueError("verification_info needs json_schema: an object")
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA:
        raise ValueError(f"the schema has more than {MAX_SCHEMA} characters")
    for one in _schemas(schema):
        _check(one, schema)
    return (text,)


def _check(schema: dict[str, Any], root: dict[str, Any]) -> None:
    for key, rule in schema.items():
        # A keyword that is not checked would be met by every answer.
        if key not in _SHAPES:
            raise ValueError(f"the schema's keyword {key[:80]!r} is not checked here; {nearest(key, _SHAPES)}")
        try:
            msgspec.convert(rule, _SHAPES[key], strict=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"the schema's {key} is wrong: {error}") from None
        if key == "$ref" and not rule.startswith("#"):
            raise ValueError(f"the schema refers to {rule[:80]!r}, and nothing is fetched")
        if key == "$ref" and not _resolves(rule, root):
            raise ValueError(f"the schema refers to {rule[:80]!r}, which is not there")
    names = schema.get("type", [])
    for name in [names] if isinstance(names, str) else names:
        if name not in TYPES:
            raise ValueError(f"the schema's type {name[:80]!r} does not exist; {nearest(name, TYPES)}")
    if not schema.get("multipleOf", 1) > 0:
        raise ValueError("the schema's multipleOf is not above 0")


def _resolves(reference: str, root: Any) -> bool:
    """Whether a JSON pointer into the schema leads to a schema."""
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            name = part.replace("~1", "/").replace("~0", "~")
            root = root.get(name) if isinstance(root, dict) else None
    return isinstance(root, bool | dict)


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and those inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, rule in schema.items():
        inner = [rule] if key in _ONE else rule if key in _SEVERAL and isinstance(rule, list) else []
        inner = [*rule.values()] if key in _NAMED and isinstance(rule, dict) else inner
        for one in inner:
            yield from _schemas(one)


class SchemaScorer:
    """1 for an answer that fits, else 0; one that runs out of fuel does not."""

    def __init__(self, runner: ProgramRunner) -> None:
        self._runner = runner
        self._sandbox: Sandbox | None = None
        self._known = BoundedDict[bytes, float](_REMEMBERED)
        self.gave_up = 0

    def score(self, questions: Sequence[Question]) -> list[float]:
        texts = read(json_in, questions)
        self.gave_up += sum(isinstance(text, Undecided) for text in texts)
        asked = [(text if isinstance(text, str) else "", q[1]) for text, q in zip(texts, questions, strict=True)]
        keys = [key_of(question) for question in asked]
        # Read before the new ones are remembered: these may push the old ones out.
        found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: q for key, q in zip(keys, asked, strict=True) if q[0] and key not in found}
        told = self._ask(new)
        self._known.update(told)
        found |= told
        self.gave_up += sum(key in new and key not in told for key in keys)
        return [found.get(key, 0.0) for key in keys]

    def _ask(self, questions: Mapping[bytes, Question]) -> dict[bytes, float]:
        """The rewards, without those that this machine could not find."""
        if not questions:
            return {}
        if self._sandbox is None:
            self._sandbox = self._runner.open(_ENTRY, guest(_ENTRY))
        outcomes = self._sandbox.call_all("fits", [(json.loads(truth[0]), text) for text, truth in questions.values()])
        # Out of fuel is the same on every machine, so it may be remembered as a wrong answer.
        return {
            key: float(outcome.status is CallStatus.OK and outcome.value is True)
            for key, outcome in zip(questions, outcomes, strict=True)
            if not isinstance(outcome, Undecided)
        }

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def json_in(answer: str) -> str:
    """The answer's JSON: its last fenced block, or else all of it; empty if that is too long."""
    text = said(answer)
    # Two searches from the end: an expression looks for the end of each block that is never closed.
    opened = text.rfind("```", 0, text.rfind("```")) if text.count("```") > 1 else -1
    if opened >= 0:
        text = text[opened + 3 : text.rfind("```")].removeprefix("json")
    text = text.strip()
    return text if len(text) <= MAX_ANSWER else ""
