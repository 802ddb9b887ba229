"""Inside the sandbox: does a JSON value fit a schema? Patterns are regular expressions, which may run for ever."""

import json
import math
import re
from typing import Any

_TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "number": (int, float),
    "integer": int,
}  # fmt: skip


def fits(schema: Any, text: str) -> bool:
    """Whether `text` is JSON that the schema allows."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return _fits(value, schema, schema)


def _fits(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and not _fits(value, _target(schema["$ref"], root), root):
        return False
    return all(RULES[key](value, rule, schema, root) for key, rule in schema.items() if key in RULES)


def _target(reference: str, root: Any) -> Any:
    found = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        found = found[part.replace("~1", "/").replace("~0", "~")] if part else found
    return found


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, _TYPES[name])


def _same(value: Any, other: Any) -> bool:
    return _key(value) == _key(other)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _properties(value: Any, rule: Any, schema: Any, root: Any) -> bool:
    return all(_fits(value[name], rule[name], root) for name in rule if name in value)


def _patterns(value: Any, rule: Any, schema: Any, root: Any) -> bool:
    return all(
        _fits(value[name], one, root) for pattern, one in rule.items() for name in value if re.search(pattern, name)
    )


def _others(value: Any, rule: Any, schema: Any, root: Any) -> bool:
    patterns = schema.get("patternProperties", {})
    named = schema.get("properties", {})
    left = [name for name in value if name not in named and not any(re.search(p, name) for p in patterns)]
    return all(_fits(value[name], rule, root) for name in left)


def _items(value: Any, rule: Any, schema: Any, root: Any) -> bool:
    return all(_fits(one, rule, root) for one in value[len(schema.get("prefixItems", [])) :])


def _of(kind: str, check: Any) -> Any:
    """A rule that says nothing about values of other kinds."""
    return lambda value, rule, schema, root: not _is(value, kind) or check(value, rule, schema, root)


RULES: dict[str, Any] = {
    "type": lambda v, r, s, root: any(_is(v, name) for name in ([r] if isinstance(r, str) else r)),
    "enum": lambda v, r, s, root: any(_same(v, one) for one in r),
    "const": lambda v, r, s, root: _same(v, r),
    "allOf": lambda v, r, s, root: all(_fits(v, one, root) for one in r),
    "anyOf": lambda v, r, s, root: any(_fits(v, one, root) for one in r),
    "oneOf": lambda v, r, s, root: sum(_fits(v, one, root) for one in r) == 1,
    "not": lambda v, r, s, root: not _fits(v, r, root),
    "properties": _of("object", _properties),
    "patternProperties": _of("object", _patterns),
    "additionalProperties": _of("object", _others),
    "required": _of("object", lambda v, r, s, root: all(name in v for name in r)),
    "minProperties": _of("object", lambda v, r, s, root: len(v) >= r),
    "maxProperties": _of("object", lambda v, r, s, root: len(v) <= r),
    "propertyNames": _of("object", lambda v, r, s, root: all(_fits(name, r, root) for name in v)),
    "prefixItems": _of("array", lambda v, r, s, root: all(_fits(a, b, root) for a, b in zip(v, r))),  # noqa: B905
    "items": _of("array", _items),
    "contains": _of("array", lambda v, r, s, root: any(_fits(one, r, root) for one in v)),
    "minItems": _of("array", lambda v, r, s, root: len(v) >= r),
    "maxItems": _of("array", lambda v, r, s, root: len(v) <= r),
    "uniqueItems": _of("array", lambda v, r, s, root: not r or len({_key(one) for one in v}) == len(v)),
    "minimum": _of("number", lambda v, r, s, root: v >= r),
    "maximum": _of("number", lambda v, r, s, root: v <= r),
    "exclusiveMinimum": _of("number", lambda v, r, s, root: v > r),
    "exclusiveMaximum": _of("number", lambda v, r, s, root: v < r),
    "multipleOf": _of("number", lambda v, r, s, root: math.isclose(v / r, round(v / r), abs_tol=1e-9)),
    "minLength": _of("string", lambda v, r, s, root: len(v) >= r),
    "maxLength": _of("string", lambda v, r, s, root: len(v) <= r),
    "pattern": _of("string", lambda v, r, s, root: re.search(r, v) is not None),
}
