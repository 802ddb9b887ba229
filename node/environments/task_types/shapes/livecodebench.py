"""LiveCodeBench: question_content, public and private tests, metadata.func_name. DeepCoder: problem, tests.

Private tests that are a compressed pickle are refused: nothing is unpickled here. Decode them where the data was
downloaded.
"""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes.base import Published, Shape, id_of, parsed, present
from node.environments.task_types.shapes.tests import read_tests

NAME = "LiveCodeBench"


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
        if not cases.lstrip().startswith("["):
            raise ValueError(f"{column} is no JSON list (a compressed pickle?): decode it before")
        cases = parsed(cases, column)
    if not isinstance(cases, list):
        raise ValueError(f"{column} is no list of tests")
    return cases


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
