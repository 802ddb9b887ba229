"""A pydantic model's source -> a JSON schema, without running it. What it cannot say exactly is refused by name.

Values are taken as JSON has them: pydantic's own coercions ("3" for an int) are wrong answers here. Validators are
programs and need pydantic itself, which the sandbox does not hold.
"""

import ast
from typing import Any

MAX_SOURCE = 64 * 1024
_PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}
_BOUNDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
}
_SAYING = {"default", "default_factory", "description", "title", "examples", "example"}
_MODULES = {"pydantic", "typing", "enum", "__future__", "datetime"}


def schema_of(source: str, name: str) -> dict[str, Any]:
    """The schema of the model `name`. Raises ValueError."""
    if len(source) > MAX_SOURCE:
        raise ValueError(f"pydantic_config has more than {MAX_SOURCE} characters")
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ValueError("pydantic_config is no Python") from None
    classes: dict[str, ast.ClassDef] = {}
    for one in body:
        if isinstance(one, ast.ClassDef):
            classes[one.name] = one
        elif not isinstance(one, ast.Import | ast.ImportFrom) and not _is_text(one):
            raise ValueError(f"pydantic_config does more than define models: line {one.lineno}")
        elif isinstance(one, ast.ImportFrom) and (one.module or "").partition(".")[0] not in _MODULES:
            raise ValueError(f"pydantic_config imports {str(one.module)[:80]!r}")
    if name not in classes:
        raise ValueError(f"pydantic_config has no model {name[:80]!r}")
    definitions = {key: _class(one, classes) for key, one in classes.items()}
    return {"$ref": f"#/$defs/{name}", "$defs": definitions}


def _class(one: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    bases = [base.id for base in one.bases if isinstance(base, ast.Name)]
    if one.decorator_list or one.keywords or len(bases) != len(one.bases):
        raise ValueError(f"the model {one.name} has bases or decorators that are not read here")
    if "Enum" in bases and set(bases) <= {"Enum", "str", "int"}:
        return {"enum": [_literal(member.value, one.name) for member in one.body if isinstance(member, ast.Assign)]}
    if bases != ["BaseModel"]:
        raise ValueError(f"the model {one.name} is derived from {', '.join(bases)[:80] or 'nothing'}")
    return _model(one, classes)


def _model(one: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    schema: dict[str, Any] = {"type": "object"}
    for line in one.body:
        if _is_text(line) or isinstance(line, ast.Pass):
            continue
        if isinstance(line, ast.Assign) and _is_config(line):
            schema |= _config(line.value, one.name)
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            rules, optional = _field(line.value, line.target.id)
            kind = _type(line.annotation, classes)
            properties[line.target.id] = {"allOf": [kind, _bounded(kind, rules, line.target.id)]} if rules else kind
            required += [] if optional else [line.target.id]
        else:
            what = line.name if isinstance(line, ast.FunctionDef | ast.ClassDef) else f"line {line.lineno}"
            raise ValueError(f"the model {one.name} has a validator or another part that is not read here: {what}")
    return schema | {"properties": properties} | ({"required": required} if required else {})


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _is_config(line: ast.Assign) -> bool:
    return len(line.targets) == 1 and isinstance(line.targets[0], ast.Name) and line.targets[0].id == "model_config"


def _config(value: ast.expr, name: str) -> dict[str, Any]:
    if not isinstance(value, ast.Call):
        raise ValueError(f"the model {name} has a configuration that is not read here")
    given = {word.arg: _literal(word.value, name) for word in value.keywords if word.arg}
    if value.args or set(given) - {"extra"} or given.get("extra", "ignore") not in ("forbid", "ignore", "allow"):
        raise ValueError(f"the model {name} has a configuration that is not read here: {', '.join(given)[:80]}")
    return {"additionalProperties": False} if given.get("extra") == "forbid" else {}


def _field(value: ast.expr | None, name: str) -> tuple[dict[str, Any], bool]:
    """(bounds, whether it may be left out)."""
    if value is None:
        return {}, False
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Field"):
        return {}, True
    rules: dict[str, Any] = {}
    optional = bool(value.args) and not (isinstance(value.args[0], ast.Constant) and value.args[0].value is ...)
    for word in value.keywords:
        if word.arg in _SAYING:
            is_value = not (isinstance(word.value, ast.Constant) and word.value.value is ...)
            optional = optional or (word.arg in ("default", "default_factory") and is_value)
        elif word.arg in (*_BOUNDS, "min_length", "max_length", "pattern", "regex"):
            rules[str(word.arg)] = _literal(word.value, name)
        else:
            raise ValueError(f"the field {name} has a rule that is not read here: {word.arg}")
    return rules, optional


def _bounded(kind: dict[str, Any], rules: dict[str, Any], name: str) -> dict[str, Any]:
    """The bounds in a schema's words: a length is of a text or of a list."""
    schema: dict[str, Any] = {}
    listed = any(one.get("type") == "array" for one in (kind, *kind.get("anyOf", ())))
    for word, value in rules.items():
        if word in _BOUNDS and isinstance(value, int | float) and not isinstance(value, bool):
            schema[_BOUNDS[word]] = value
        elif word in ("min_length", "max_length") and isinstance(value, int) and value >= 0:
            schema[word[:3] + ("Items" if listed else "Length")] = value
        elif word in ("pattern", "regex") and isinstance(value, str):
            schema["pattern"] = value
        else:
            raise ValueError(f"the field {name} has a rule that is not read here: {word}")
    return schema


def _type(node: ast.expr, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.Constant) and node.value is None:
        return {"type": "null"}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return {"anyOf": [_type(node.left, classes), _type(node.right, classes)]}
    if isinstance(node, ast.Name):
        return _named(node.id, classes)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(node.value.id, inner, classes)
    raise ValueError(f"the type {ast.unparse(node)[:80]} is not read here")


def _named(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    if name in _PLAIN:
        return {"type": _PLAIN[name]}
    if name in classes:
        return {"$ref": f"#/$defs/{name}"}
    simple = {"Any": {}, "list": {"type": "array"}, "List": {"type": "array"}, "dict": {"type": "object"}}
    if name in simple:
        return simple[name]
    raise ValueError(f"the type {name[:80]} is not read here")


def _generic(name: str, inner: list[ast.expr], classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
    if name == "Literal":
        return {"enum": [_literal(one, "Literal") for one in inner]}
    kinds = [_type(one, classes) for one in inner]
    if name in ("List", "list") and len(kinds) == 1:
        return {"type": "array", "items": kinds[0]}
    if name in ("Dict", "dict") and len(kinds) == 2 and kinds[0] == {"type": "string"}:
        return {"type": "object", "additionalProperties": kinds[1]}
    if name == "Optional" and len(kinds) == 1:
        return {"anyOf": [kinds[0], {"type": "null"}]}
    if name == "Union":
        return {"anyOf": kinds}
    raise ValueError(f"the type {name[:80]} with {len(kinds)} parts is not read here")


def _literal(node: ast.expr, name: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{name} has a value that is no literal") from None
