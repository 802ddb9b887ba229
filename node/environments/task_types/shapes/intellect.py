"""INTELLECT-2, SYNTHETIC-1 and SYNTHETIC-2: prompt, task_type, verification_info, gold_standard_solution, problem_id.

SYNTHETIC-1's responses (`llm_response`, `response_id`) and what `task generate` writes are rows of this form, too:
several responses to a problem are one problem.
"""

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from node.environments.errors import nearest
from node.environments.math_scorer import boxes
from node.environments.task_types.shapes.base import (
    MOST_WORDS,
    Published,
    TaskShape,
    as_json,
    id_of,
    is_mathematical,
    is_no_answer,
    mapping,
    number_as_text,
    only_known,
    parsed,
)
from node.environments.task_types.shapes.tests import read_tests

NAME = "INTELLECT-2"
MARK = "####"
_TAGGED = re.compile(r"<answer>(.{1,1024})</answer>", re.DOTALL)
_SAYS = re.compile(r"(?i:the answer is):?[ \t]*(.{1,200}?)[ \t]*\.?[ \t]*")
"""MetaMath's last line."""
# Bounded: int() takes quadratic time for a row of digits, and refuses a long one.
_INTEGER = re.compile(r"[+-]?\d{1,100}")
_CHOICE = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf)\{ *\(([A-H])\)[ ~]*\}(?:[ ~:.]|\\[ ,;!:]|\\q?quad)*([^ ~:.].{0,200})"
)
_Info = dict[str, Any]
_Reading = tuple[str, str, _Info]
"""(task type, how its truth was published, what the task type reads)."""
# Of SYNTHETIC-2's checks these count as IFEval does. The others are refused by name.
_IFEVAL: dict[str, tuple[str, Mapping[str, str]]] = {
    "verify_keywords": ("keywords:existence", {"keyword_list": "keywords"}),
    "validate_forbidden_words": ("keywords:forbidden_words", {"forbidden_words": "forbidden_words"}),
    "validate_lowercase": ("change_case:english_lowercase", {}),
    "validate_uppercase": ("change_case:english_capital", {}),
    "validate_no_commas": ("punctuation:no_comma", {}),
    "validate_quotation": ("startend:quotation", {}),
    "validate_title": ("detectable_format:title", {}),
    "validate_json_format": ("detectable_format:json_format", {}),
    "validate_end": ("startend:end_checker", {"end_phrase": "end_phrase"}),
    "verify_postscript": ("detectable_content:postscript", {"postscript_marker": "postscript_marker"}),
    "validate_choice": ("detectable_format:constrained_response", {"options": "options"}),
    "validate_two_responses": ("combination:two_responses", {}),
    "verify_bullet_points": ("detectable_format:number_bullet_lists", {"N": "num_bullets"}),
    "validate_highlighted_sections": ("detectable_format:number_highlighted_sections", {"N": "num_highlights"}),
    "validate_placeholders": ("detectable_content:number_placeholders", {"N": "num_placeholders"}),
}


def read(row: Mapping[str, Any]) -> Published:
    task, gold = row["task_type"], row.get("gold_standard_solution")
    if not isinstance(task, str):
        raise ValueError("task_type is no text")
    if "prompt" not in row:
        raise ValueError("it has no prompt")
    info = mapping(row.get("verification_info"), "verification_info")
    task, form, read_info = _READERS.get(task, _other)(task, info, gold)
    name = id_of(row.get("problem_id"), row["prompt"], task, read_info)
    return Published(f"{NAME}, {form}", name, row["prompt"], task, read_info, gold)


def mathematics(task: str, info: _Info, gold: Any) -> _Reading:
    """A ground truth that is text or a number; without one, the boxes of the gold solution."""
    only_known(info, {"ground_truth"}, "verification_info")
    boxed = _boxed(gold) if isinstance(gold, str) else ""
    truth = info.get("ground_truth")
    if truth is None or truth == "":
        if not boxed:
            raise ValueError("verification_info needs ground_truth, or gold_standard_solution a \\boxed{answer}")
        return task, "gold solution", {"ground_truth": _chosen(boxed)}
    form = "number" if isinstance(truth, int | float) and not isinstance(truth, bool) else task
    truths = truths_of(truth)
    if (
        # Only whole numbers are compared: one expression has many spellings, which contradict nothing.
        isinstance(truths, str)
        and _INTEGER.fullmatch(truths)
        and _INTEGER.fullmatch(boxed)
        and int(truths) != int(boxed)
    ):
        raise ValueError(f"it has two truths: ground_truth {truths[:40]}, gold_standard_solution {boxed[:40]}")
    return task, form, {"ground_truth": truths}


def truths_of(truth: Any) -> Any:
    """One text, or a list of which one must be met. Raises ValueError for what nobody's answer could equal."""
    if isinstance(truth, str) and truth.lstrip().startswith('["'):
        truth = parsed(truth, "ground_truth")
    if isinstance(truth, list):
        return [truths_of(one) for one in truth]
    text = number_as_text(truth)
    if isinstance(text, str) and is_no_answer(text):
        raise ValueError(f"its truth is {text.strip()[:40]!r}, which stands for none")
    if isinstance(text, str) and text.strip() and not is_mathematical(text, MOST_WORDS):
        raise ValueError("its truth is prose: compared as mathematics, a right answer in other words would score 0")
    return _chosen(_bare(text)) if isinstance(text, str) else text


def answered(truth: Any) -> _Reading:
    """A truth that is an answer, or a solution that boxes or marks it, as its answers may. Raises ValueError."""
    if isinstance(truth, list) and len(truth) == 1:
        truth = truth[0]
    if isinstance(truth, list):
        raise ValueError(f"it has {len(truth)} truths, and nothing says whether one of them or all are asked for")
    if not isinstance(truth, str):
        return "marked_math", "answer", {"ground_truth": truths_of(truth)}
    truth = truth.rpartition("</think>")[2]
    truth = tagged[1].strip() if (tagged := _TAGGED.search(truth)) else truth
    if boxed := _boxed(truth):
        return "marked_math", "gold solution", {"ground_truth": _chosen(boxed)}
    if MARK in truth:
        return "marked_math", "gold solution", {"ground_truth": truths_of(truth.rpartition(MARK)[2].strip())}
    said = _SAYS.fullmatch(truth.strip().rpartition("\n")[2])
    return "marked_math", "answer", {"ground_truth": truths_of(said[1] if said else truth)}


def _bare(text: str) -> str:
    """Without the box or the dollars around it."""
    text = (", ".join(boxes(text)) or text).strip()
    return text[1:-1].strip() if len(text) > 2 and text[0] == text[-1] == "$" and text.count("$") == 2 else text


def _chosen(text: str) -> str | list[str]:
    """A choice that stands with its value, \\textbf{(B)} 8: either is right."""
    choice = _CHOICE.fullmatch(text.strip())
    return [text, choice[1], choice[2].strip()] if choice else text


def _boxed(text: str) -> str:
    """What a solution boxes: all of it, where it has several boxes."""
    inner = ", ".join(dict.fromkeys(boxes(text)))
    return inner if is_mathematical(inner, MOST_WORDS) and not is_no_answer(inner) else ""


def code(task: str, info: _Info, gold: Any) -> _Reading:
    form, cases = read_tests(info)
    return task, f"tests: {form}", {"language": info.get("language", "python"), "test_cases": cases}


def _output(task: str, info: _Info, gold: Any) -> _Reading:
    only_known(info, {"ground_truth", "code_output", "language"}, "verification_info")
    if "ground_truth" in info and "code_output" in info and info["ground_truth"] != info["code_output"]:
        raise ValueError("it has two truths: ground_truth and code_output")
    return task, task, {"ground_truth": info.get("ground_truth", info.get("code_output"))}


def _gym(task: str, info: _Info, gold: Any) -> _Reading:
    names = {"dataset_name", "entry", "reasoning_gym_dataset", "reasoning_gym_entry", "ground_truth"}
    only_known(info, names, "verification_info")
    return task, task, info


def _schema(task: str, info: _Info, gold: Any) -> _Reading:
    only_known(info, {"json_schema", "schema"}, "verification_info")
    if len(info) > 1:
        raise ValueError("it has two truths: json_schema and schema")
    return task, task, info


def _judged(task: str, info: _Info, gold: Any) -> _Reading:
    only_known(info, {"judging_instructions", "gold_standard_solution", "ground_truth"}, "verification_info")
    return task, task, {**info, "gold_standard_solution": gold or info.get("gold_standard_solution")}


def _other(task: str, info: _Info, gold: Any) -> _Reading:
    """A type that nothing here scores, or one whose info is read as it is: whoever scores says so."""
    return task, task, info


def followed(task: str, info: _Info, gold: Any) -> _Reading:
    """IFEval's lists of constraints, or the one check that SYNTHETIC-2 names."""
    if "ground_truth" not in info:
        only_known(info, {"instruction_id_list", "kwargs", "key"}, "verification_info")
        return task, task, info
    only_known(info, {"ground_truth"}, "verification_info")
    given = mapping(info["ground_truth"], "ground_truth")
    name = str(given.pop("func_name", ""))
    if name not in _IFEVAL:
        raise ValueError(f"the check {name[:80]!r} counts otherwise than IFEval; {nearest(name, _IFEVAL)}")
    constraint, names = _IFEVAL[name]
    only_known(given, names, f"the check {name}")
    kwargs = {names[key]: value for key, value in given.items()}
    return task, "RLVR-IFeval's check", {"instruction_id_list": [constraint], "kwargs": [kwargs]}


def _text(*also: str, names: tuple[str, ...] = ("ground_truth",)) -> Callable[[str, _Info, Any], _Reading]:
    """One truth that is a text, under one of `names`; `also` repeats the question."""

    def read(task: str, info: _Info, gold: Any) -> _Reading:
        only_known(info, {*names, *also}, "verification_info")
        found = [info[name] for name in names if name in info]
        if len(found) != 1 or not isinstance(found[0], str) or not found[0].strip():
            raise ValueError(f"verification_info needs {' or '.join(names)}: one text")
        return task, task, {"ground_truth": found[0]}

    return read


def _pair(task: str, info: _Info, gold: Any) -> _Reading:
    if "ground_truth1" in info or "ground_truth2" in info:
        raise ValueError(
            "it has two truths, ground_truth1 and ground_truth2: which answers are right was not published"
        )
    return _text()(task, info, gold)


def _json(task: str, info: _Info, gold: Any) -> _Reading:
    only_known(info, {"ground_truth"}, "verification_info")
    truth = info.get("ground_truth")
    truth = parsed(truth, "ground_truth") if isinstance(truth, str) else truth
    if not isinstance(truth, dict) or not truth:
        raise ValueError("verification_info needs ground_truth: a JSON object that is not empty")
    return task, task, {"ground_truth": as_json(truth, "ground_truth")}


def _pydantic(task: str, info: _Info, gold: Any) -> _Reading:
    only_known(info, {"pydantic_config", "model_name"}, "verification_info")
    source, name = info.get("pydantic_config"), info.get("model_name")
    if not isinstance(source, str) or not isinstance(name, str):
        raise ValueError("verification_info needs pydantic_config and model_name: two texts")
    return "json_schema", task, {"json_schema": schema_of(source, name)}


_READERS: dict[str, Callable[[str, _Info, Any], _Reading]] = {
    "verifiable_math": mathematics,
    "prime_rl_code": code,
    "verifiable_code": code,
    "code_output_prediction": _output,
    "reasoning_gym": _gym,
    "json_schema": _schema,
    "llm_judgeable_groundtruth_similarity": _judged,
    "ifeval": followed,
    "instruction_following": followed,
    "unscrambling": _text("scrambled"),
    "unscramble_sentence": _text("scrambled"),
    "ascii_tree_formatting": _text("description"),
    "formatask": _pair,
    "git_diff": _text(names=("golden_diff", "ground_truth")),
    "complex_json_output": _json,
    "pydantic_adherance": _pydantic,
}

SHAPE = TaskShape(NAME, "prompt, task_type, verification_info", lambda row: "task_type" in row, read)


# A pydantic model's source -> a JSON schema, without running it. What it cannot say exactly is refused by name.
# Values are taken as JSON has them: pydantic's own coercions ("3" for an int) are wrong answers here. Validators are
# programs and need pydantic itself, which the sandbox does not hold.
MAX_SOURCE = 64 * 1024
_NO_PYTHON = (SyntaxError, ValueError, MemoryError, RecursionError)
"""What parsing comes to where a text is none."""
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
    except _NO_PYTHON:
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
        return {
            "enum": [_literal_value(member.value, one.name) for member in one.body if isinstance(member, ast.Assign)]
        }
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
            # Bounds stand beside the type and not in it: the type may be a reference or a choice of several.
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
    given = {word.arg: _literal_value(word.value, name) for word in value.keywords if word.arg}
    if value.args or set(given) - {"extra"} or given.get("extra", "ignore") not in ("forbid", "ignore", "allow"):
        raise ValueError(f"the model {name} has a configuration that is not read here: {', '.join(given)[:80]}")
    # pydantic ignores further fields unless it is told otherwise, and so does a schema.
    return {"additionalProperties": False} if given.get("extra") == "forbid" else {}


def _field(value: ast.expr | None, name: str) -> tuple[dict[str, Any], bool]:
    """(bounds, whether it may be left out)."""
    if value is None:
        return {}, False
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "Field"):
        return {}, True
    rules: dict[str, Any] = {}
    # Field(...) says that the field must be there; any other first argument is its default.
    optional = bool(value.args) and not (isinstance(value.args[0], ast.Constant) and value.args[0].value is ...)
    for word in value.keywords:
        if word.arg in _SAYING:
            is_value = not (isinstance(word.value, ast.Constant) and word.value.value is ...)
            optional = optional or (word.arg in ("default", "default_factory") and is_value)
        elif word.arg in (*_BOUNDS, "min_length", "max_length", "pattern", "regex"):
            rules[str(word.arg)] = _literal_value(word.value, name)
        else:
            raise ValueError(f"the field {name} has a rule that is not read here: {word.arg}")
    return rules, optional


def _bounded(kind: dict[str, Any], rules: dict[str, Any], name: str) -> dict[str, Any]:
    """The bounds in a schema's words: a length is of a text or of a list."""
    schema: dict[str, Any] = {}
    # Optional[list] is a choice of two types, and a length is that of its list.
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
        try:
            node = ast.parse(node.value, mode="eval").body
        except _NO_PYTHON:
            raise ValueError(f"the type {node.value[:80]!r} is no Python") from None
    if isinstance(node, ast.Constant) and node.value is None:
        return {"type": "null"}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return {"anyOf": [_type(node.left, classes), _type(node.right, classes)]}
    if isinstance(node, ast.Name):
        return _named_type(node.id, classes)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return _generic(node.value.id, inner, classes)
    raise ValueError(f"the type {ast.unparse(node)[:80]} is not read here")


def _named_type(name: str, classes: dict[str, ast.ClassDef]) -> dict[str, Any]:
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
        return {"enum": [_literal_value(one, "Literal") for one in inner]}
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


def _literal_value(node: ast.expr, name: str) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(f"{name} has a value that is no literal") from None
