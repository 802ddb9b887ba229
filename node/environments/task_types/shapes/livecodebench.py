"""LiveCodeBench: question_content, public and private tests, metadata.func_name. DeepCoder: problem, tests.

Private tests are published as a pickle of one text, compressed, in base64. Nothing is unpickled here: the text is read
out of it, and a pickle that says anything else is refused.
"""

import base64
import pickletools
import zlib
from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes.base import Published, Shape, id_of, parsed, present
from node.environments.task_types.shapes.tests import MAX_TEXT, read_tests

NAME = "LiveCodeBench"
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_SILENT = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"})
"""What a pickle of one text consists of; none of it names or calls anything."""


def read(row: Mapping[str, Any]) -> Published:
    question = row["question_content"]
    if not isinstance(question, str):
        raise ValueError("question_content is no text")
    cases = [*_listed(row, "public_test_cases"), *_listed(row, "private_test_cases")]
    form, tests = read_tests(present({"test_cases": cases, "metadata": row.get("metadata")}))
    prompt = _asked(question, row.get("starter_code"))
    info = {"language": "python", "test_cases": tests}
    name = id_of(row.get("question_id"), prompt, info)
    return Published(f"{NAME}, {form.partition(' in ')[0]}", name, prompt, "prime_rl_code", info)


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


def _asked(question: str, starter: Any) -> str:
    if not starter:
        return f"{question}\n\nRead the input from standard input. Answer with a Python program in a ```python block."
    return (
        f"{question}\n\nComplete this. Answer with a Python program in a ```python block.\n\n```python\n{starter}\n```"
    )


def _deepcoder(row: Mapping[str, Any]) -> Published:
    problem = row["problem"]
    if not isinstance(problem, str):
        raise ValueError("problem is no text")
    form, tests = read_tests(present({"tests": row["tests"], "metadata": row.get("metadata")}))
    prompt, info = _asked(problem, row.get("starter_code")), {"language": "python", "test_cases": tests}
    return Published(
        f"DeepCoder, {form.partition(' in ')[0]}", id_of(None, prompt, info), prompt, "prime_rl_code", info
    )


SHAPE = Shape(
    NAME,
    "question_content, public_test_cases",
    lambda row: {"question_content", "public_test_cases"} <= row.keys(),
    read,
)
DEEPCODER = Shape("DeepCoder", "problem, tests", lambda row: {"problem", "tests"} <= row.keys(), _deepcoder)
