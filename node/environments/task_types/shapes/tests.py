"""Tests of programs in their published forms -> a list of {"fn_name", "input", "output"}.

Cases in a list (INTELLECT-2, SYNTHETIC-1), with `testtype` and `metadata.func_name` (LiveCodeBench, DeepCoder), or
two lists of inputs and outputs (TACO, APPS, PRIME); as they are or as JSON text; under any of the names that are in
use.
"""

import base64
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes.base import Published, TaskShape, id_of, mapping, only_known, parsed, present

PLACES = ("test_cases", "tests", "ground_truth")
MAX_TEXT = 4 << 20
HARMLESS = frozenset({"language", "style", "source", "difficulty", "starter_code", "metadata", "fn_name"})
HARMLESS |= {"time_limit", "memory_limit"}
"""Keys beside the tests that say nothing about what is right; programs are bounded by fuel and memory of the run."""
_CASE = frozenset({"type", "fn_name", "input", "output", "testtype", "metadata"})
_LISTS = frozenset({"inputs", "outputs", "fn_name"})
_KINDS = {"stdin": False, "stdin_stdout": False, "functional": True, "function_call": True}
"""Values of `testtype` and `type`: whether a function is called."""


def read_tests(info: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """(how they were published, the tests). Raises ValueError."""
    only_known(info, {*PLACES, "inputs", "outputs", *HARMLESS}, "verification_info")
    places = [place for place in PLACES if place in info] + ["inputs"] * ("inputs" in info or "outputs" in info)
    if len(places) != 1:
        raise ValueError(
            f"it has two truths: {' and '.join(places)}"
            if places
            else "it needs tests: test_cases, or inputs and outputs"
        )
    found: Any = {key: info[key] for key in _LISTS if key in info} if places == ["inputs"] else info[places[0]]
    if isinstance(found, str):
        if len(found) > MAX_TEXT:
            raise ValueError(f"its tests have more than {MAX_TEXT} characters")
        found = parsed(found, places[0])
    named = info.get("fn_name") or _named(info.get("metadata"))
    if isinstance(found, dict):
        return f"lists in {places[0]}", _from_lists(present(found), named)
    if not isinstance(found, list):
        raise ValueError(f"{places[0]} is neither a list of tests nor lists of inputs and outputs")
    published = any(isinstance(case, dict) and "testtype" in case for case in found)
    cases = [_case(case, number, named) for number, case in enumerate(found)]
    return (f"LiveCodeBench's in {places[0]}" if published else f"cases in {places[0]}"), cases


def _from_lists(lists: Mapping[str, Any], named: str) -> list[dict[str, Any]]:
    only_known(lists, _LISTS, "the tests")
    inputs, outputs = (
        parsed(one, "a list of tests") if isinstance(one, str) else one
        for one in (lists.get("inputs"), lists.get("outputs"))
    )
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("the tests need as many outputs as inputs")
    function = _one_name(lists.get("fn_name") or "", named)
    return [{"fn_name": function, "input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]


def _case(case: Any, number: int, named: str) -> dict[str, Any]:
    if not isinstance(case, dict):
        raise ValueError(f"test {number} is no object")
    case = present(case)
    only_known(case, _CASE, f"test {number}")
    if "input" not in case or "output" not in case:
        raise ValueError(f"test {number} has no input and output")
    function = _one_name(case.get("fn_name") or "", _named(case.get("metadata")))
    kinds = {_kind(case[key], number) for key in ("type", "testtype") if key in case}
    # A name in the row's metadata counts only for tests that say they call a function, or say nothing.
    if True in kinds:
        function = _one_name(function, named)
        if not function:
            raise ValueError(f"test {number} calls a function, and nothing names it (fn_name, metadata.func_name)")
    if case.get("type") == "function_call" and _is_list(case["input"]):
        raise ValueError(
            f"the input of test {number} is one list, or a list of arguments: give it as a list, not as text"
        )
    if False in kinds and (function or True in kinds):
        raise ValueError(f"test {number} reads standard input and calls a function: one of the two is wrong")
    return {"fn_name": function or ("" if kinds else named), "input": case["input"], "output": case["output"]}


def _is_list(given: Any) -> bool:
    """Whether one line of text is a list. SYNTHETIC-1's judge takes it for all arguments, APPS's for the only one."""
    return isinstance(given, str) and "\n" not in given.strip() and given.lstrip().startswith("[")


def _kind(word: Any, number: int) -> bool:
    if not isinstance(word, str) or word not in _KINDS:
        raise ValueError(f"test {number} is of the kind {str(word)[:40]!r}, which is not run here")
    return _KINDS[word]


def _named(metadata: Any) -> str:
    name = mapping(metadata, "metadata").get("func_name", "")
    if not isinstance(name, str):
        raise ValueError("metadata.func_name is no text")
    return name


def _one_name(one: Any, other: str) -> str:
    if not isinstance(one, str) or (one and other and one != other):
        raise ValueError(f"the tests name two functions: {str(one)[:40]!r} and {other[:40]!r}")
    return one or other


_LIVECODEBENCH = "LiveCodeBench"
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_SILENT = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"})
"""What a pickle of one text consists of; none of it names or calls anything."""


def _livecodebench(row: Mapping[str, Any]) -> Published:
    cases = [*_listed(row, "public_test_cases"), *_listed(row, "private_test_cases")]
    return _program(_LIVECODEBENCH, row, "question_content", {"test_cases": cases}, row.get("question_id"))


def _listed(row: Mapping[str, Any], column: str) -> list[Any]:
    cases = row.get(column) or []
    if isinstance(cases, str):
        cases = parsed(cases if cases.lstrip().startswith("[") else _packed(cases, column), column)
    if not isinstance(cases, list):
        raise ValueError(f"{column} is no list of tests")
    return cases


def _packed(text: str, column: str) -> str:
    """The text in a compressed pickle, which is only looked at."""
    opened = zlib.decompressobj()
    try:
        # With a bound: some kilobytes may unpack to gigabytes.
        pickled = opened.decompress(base64.b64decode(text, validate=True), MAX_TEXT)
        if opened.unconsumed_tail or not opened.eof:
            raise ValueError(f"{column} holds more than {MAX_TEXT} bytes, or is cut off")
        said = [(code.name, value) for code, value, _ in pickletools.genops(pickled)]
    except (ValueError, zlib.error) as error:
        raise ValueError(
            f"{column} is neither a JSON list nor LiveCodeBench's packed text: {str(error)[:120]}"
        ) from None
    texts = [value for name, value in said if name in _TEXTS]
    if len(texts) != 1 or any(name not in _TEXTS | _SILENT for name, _ in said):
        raise ValueError(f"{column} is a pickle of more than one text, and nothing is unpickled here: decode it before")
    return str(texts[0])


def asked(question: str, starter: Any) -> str:
    if not starter:
        return f"{question}\n\nRead the input from standard input. Answer with a Python program in a ```python block."
    return (
        f"{question}\n\nComplete this. Answer with a Python program in a ```python block.\n\n```python\n{starter}\n```"
    )


def _deepcoder(row: Mapping[str, Any]) -> Published:
    return _program("DeepCoder", row, "problem", {"tests": row["tests"]}, None)


def _program(shape: str, row: Mapping[str, Any], question: str, tests: dict[str, Any], written: Any) -> Published:
    """question: the column that asks; written: the row's own id."""
    if not isinstance(row[question], str):
        raise ValueError(f"{question} is no text")
    form, cases = read_tests(present({**tests, "metadata": row.get("metadata")}))
    prompt, info = asked(row[question], row.get("starter_code")), {"language": "python", "test_cases": cases}
    name = id_of(written, prompt, info)
    return Published(f"{shape}, {form.partition(' in ')[0]}", name, prompt, "prime_rl_code", info)


LIVECODEBENCH = TaskShape(
    _LIVECODEBENCH,
    "question_content, public_test_cases",
    lambda row: {"question_content", "public_test_cases"} <= row.keys(),
    _livecodebench,
)
DEEPCODER = TaskShape("DeepCoder", "problem, tests", lambda row: {"problem", "tests"} <= row.keys(), _deepcoder)
