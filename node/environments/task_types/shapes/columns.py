"""Forms that are one question and one truth under names of their own: a table of columns.

Each row of the table says which columns make the form, and what its truth is read as.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from node.environments.task_types.shapes import intellect
from node.environments.task_types.shapes.asserts import cases_of
from node.environments.task_types.shapes.base import (
    Published,
    TaskShape,
    id_of,
    mapping,
    parsed,
    present,
    whole_question,
)
from node.environments.task_types.shapes.tests import asked, read_tests

_Row = Mapping[str, Any]
_Reading = tuple[str, str, dict[str, Any]]
"""(task type, how its truth was published, what the task type reads)."""


@dataclass(frozen=True, slots=True)
class ShapeColumns:
    """question: the column that asks; needs: those that make the form, besides; lacks: columns of other forms, which
    such a row has not; read: (row, the question) -> (prompt, reading)."""

    name: str
    question: str
    needs: tuple[str, ...]
    read: Callable[[_Row, Any], tuple[Any, _Reading]]
    lacks: tuple[str, ...] = ()

    def shape(self) -> TaskShape:
        wanted = {self.question, *self.needs}

        def fits(row: _Row) -> bool:
            return wanted <= row.keys() and row.keys().isdisjoint(self.lacks)

        return TaskShape(self.name, ", ".join((self.question, *self.needs)), fits, self._published)

    def _published(self, row: _Row) -> Published:
        whole_question(row)
        prompt, (task, form, info) = self.read(row, row[self.question])
        return Published(f"{self.name}, {form}", id_of(None, prompt), prompt, task, info)


def _mathematics(column: str, row: _Row, question: Any) -> tuple[Any, _Reading]:
    """A truth that is an answer, or a solution that boxes or marks it."""
    return question, intellect.answered(row[column])


def _proved(row: _Row, question: Any) -> tuple[Any, _Reading]:
    if "proof" in str(row.get("problem_type", "")).lower():
        raise ValueError("it asks for a proof, which is not scored here")
    return _mathematics("expected_answer", row, question)


def _turns(row: _Row, question: Any) -> tuple[Any, _Reading]:
    """Open-Reasoner-Zero: a list of two turns, or one column for each."""
    turns = row["conversations"] if "conversations" in row else [row["0"], row["1"]]
    if not isinstance(turns, list) or len(turns) != 2 or not all(isinstance(turn, dict) for turn in turns):
        raise ValueError(f"{question if isinstance(question, str) else 'the conversation'!r} is no pair of turns")
    truth = mapping(turns[1].get("ground_truth"), "ground_truth").get("value")
    return turns[0].get("value"), intellect.answered(truth)


def _tests(column: str, row: _Row, question: Any) -> tuple[Any, _Reading]:
    """Lists of inputs and outputs as JSON: APPS, TACO."""
    lists = row[column]
    form, cases = read_tests({"tests": lists})
    return _program(question, row.get("starter_code"), form, cases)


def _contest(row: _Row, question: Any) -> tuple[Any, _Reading]:
    if row.get("input_file") or row.get("output_file"):
        raise ValueError("its programs read or write a file, and there is none in the sandbox")
    cases: list[dict[str, Any]] = []
    for column in ("public_tests", "private_tests", "generated_tests"):
        found = row.get(column) or []
        if isinstance(found, dict):
            found = {"inputs": found.get("input", []), "outputs": found.get("output", [])}
        if found and (not isinstance(found, dict) or found["inputs"]):
            cases += read_tests({"tests": found})[1]
    return _program(question, None, "cases", cases)


def _asserted(row: _Row, question: Any) -> tuple[Any, _Reading]:
    """MBPP, AceCode: a list of assertions. They are shown, since nothing else says what the function is called."""
    column = "test_list" if "test_list" in row else "test_cases"
    lines = parsed(row[column], column) if isinstance(row[column], str) else row[column]
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError(f"{column} is no list of assertions")
    setup = row.get("test_setup_code") or ""
    cases = cases_of("\n".join((setup, *lines)))
    if not isinstance(question, str):
        raise ValueError("the question is no text")
    shown = "\n".join(lines[:3])
    prompt = f"{question}\n\nYour program must pass these tests:\n\n```python\n{shown}\n```\n\n{_ANSWER}"
    return prompt, _code("asserts", cases)


def _candidate(row: _Row, question: Any) -> tuple[Any, _Reading]:
    """HumanEval: the beginning of a function, and check(candidate)."""
    function = row["entry_point"]
    if not isinstance(function, str) or not function.isidentifier() or not isinstance(row["test"], str):
        raise ValueError("entry_point is no function's name, or test no text")
    return _program("", question, "asserts", cases_of(row["test"], function, "candidate"))


def _pytest(row: _Row, question: Any) -> tuple[Any, _Reading]:
    """KodCode: test functions for pytest."""
    if not isinstance(row["test"], str) or not isinstance(question, str):
        raise ValueError("question or test is no text")
    told = row["test_info"] if isinstance(row["test_info"], list) else parsed(str(row["test_info"]), "test_info")
    names = [one.get("function_name") for one in told if isinstance(one, dict)]
    declared = [one.get("function_declaration") for one in told if isinstance(one, dict)]
    if len(names) != 1 or not isinstance(names[0], str):
        raise ValueError("test_info does not name the one function that is tested")
    cases = cases_of(row["test"], names[0])
    starter = declared[0] if isinstance(declared[0], str) else f"def {names[0]}"
    return _program(question, starter, "asserts", cases)


_ANSWER = "Answer with a Python program in a ```python block."


def _program(question: Any, starter: Any, form: str, cases: list[dict[str, Any]]) -> tuple[Any, _Reading]:
    if not isinstance(question, str) or not isinstance(starter, str | None):
        raise ValueError("the question or its starter code is no text")
    return asked(question, starter).lstrip(), _code(f"tests: {form.partition(' in ')[0]}", cases)


def _code(form: str, cases: list[dict[str, Any]]) -> _Reading:
    return "prime_rl_code", form, {"language": "python", "test_cases": cases}


def _constraints(row: _Row, question: Any) -> tuple[Any, _Reading]:
    info = present({key: row.get(key) for key in ("instruction_id_list", "kwargs")})
    if isinstance(info.get("kwargs"), str):
        info["kwargs"] = parsed(info["kwargs"], "kwargs")
    return question, ("ifeval", "constraints", info)


def _rlvr(row: _Row, question: Any) -> tuple[Any, _Reading]:
    """allenai's RLVR mixes: the data set says how the truth is read."""
    source = row["dataset"]
    source = str(source[0] if isinstance(source, list) and len(source) == 1 else source)
    if source.lower().startswith("ifeval"):
        task, form, info = intellect.followed("ifeval", {"ground_truth": row["ground_truth"]}, None)
        return question, (task, form, info)
    if source.lower() in ("gsm8k", "math"):
        return _mathematics("ground_truth", row, question)
    raise ValueError(f"rows of the data set {source[:80]!r} are not scored here")


_OTHERS = ("task_type", "reward_model", "input_output", "instruction_id_list", "public_tests")
_OTHERS += ("test", "tests", "test_cases", "test_list")
"""Columns of forms that say more of a row than one question and one truth."""
_TRUTHS = ("final_answer", "expected_answer", "answer", "ground_truth", "reference_answer", "label", "target")
_TRUTHS += ("solution",)
"""Where a row has several of these, the first is its truth: a solution explains it."""


def _answers(name: str, question: str, truth: str, *lacks: str) -> ShapeColumns:
    before = _TRUTHS[: _TRUTHS.index(truth)] if truth in _TRUTHS else _TRUTHS
    return ShapeColumns(name, question, (truth,), partial(_mathematics, truth), (*_OTHERS, *before, *lacks))


TABLE = (
    _answers("TRL", "prompt", "solution"),
    _answers("TRL", "prompt", "ground_truth"),
    _answers("chat", "messages", "ground_truth", "prompt", "dataset"),
    _answers("chat", "messages", "answer", "prompt", "question", "problem"),
    _answers("DeepMath", "question", "final_answer"),
    _answers("DeepMath", "problem", "final_answer", "answer"),
    _answers("OpenMathReasoning", "question", "expected_answer"),
    ShapeColumns("OpenMathReasoning", "problem", ("expected_answer",), _proved, (*_OTHERS, "answer", "final_answer")),
    _answers("question", "question", "ground_truth", "problem"),
    _answers("question", "question", "reference_answer", "problem"),
    _answers("question", "question", "solution", "problem"),
    _answers("question", "problem", "ground_truth"),
    _answers("question", "query", "answer", "question", "problem", "prompt"),
    _answers("question", "query", "label", "question", "problem", "prompt"),
    _answers("question", "query", "response", "question", "problem", "prompt"),
    _answers("question", "instruction", "answer", "question", "problem", "prompt", "input"),
    _answers("question", "input", "target", "question", "problem", "prompt", "instruction"),
    ShapeColumns("RLVR", "messages", ("ground_truth", "dataset"), _rlvr, _OTHERS),
    ShapeColumns("Open-Reasoner-Zero", "0", ("1",), _turns),
    ShapeColumns("Open-Reasoner-Zero", "conversations", (), _turns, ("prompt", "question", "problem", "answer")),
    ShapeColumns("IFEval", "prompt", ("instruction_id_list",), _constraints, ("task_type",)),
    ShapeColumns("APPS, TACO", "question", ("input_output",), partial(_tests, "input_output"), ("answer",)),
    ShapeColumns("CodeContests", "description", ("public_tests",), _contest),
    ShapeColumns("MBPP", "text", ("test_list",), _asserted),
    ShapeColumns("MBPP", "prompt", ("test_list",), _asserted),
    ShapeColumns("AceCode", "question", ("test_cases",), _asserted, ("answer",)),
    ShapeColumns("HumanEval", "prompt", ("test", "entry_point"), _candidate),
    ShapeColumns("KodCode", "question", ("test", "test_info"), _pytest),
)
