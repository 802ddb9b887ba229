"""INTELLECT-2, SYNTHETIC-1 and SYNTHETIC-2: prompt, task_type, verification_info, gold_standard_solution, problem_id.

SYNTHETIC-1's responses (`llm_response`, `response_id`) and what `task generate` writes are rows of this form, too:
several responses to a problem are one problem.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from node.environments.math_scorer import last_box
from node.environments.task_types.shapes import synthetic2
from node.environments.task_types.shapes.base import (
    MOST_WORDS,
    Published,
    Shape,
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
_INTEGER = re.compile(r"[+-]?\d{1,100}")
_CHOICE = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf)\{ *\(([A-H])\)[ ~]*\}(?:[ ~:.]|\\[ ,;!:]|\\q?quad)*([^ ~:.].{0,200})"
)
_Info = dict[str, Any]
_Reading = tuple[str, str, _Info]
"""(task type, how its truth was published, what the task type reads)."""


def read(row: Mapping[str, Any]) -> Published:
    task, gold = row["task_type"], row.get("gold_standard_solution")
    if not isinstance(task, str):
        raise ValueError("task_type is no text")
    if "prompt" not in row:
        raise ValueError("it has no prompt")
    info = mapping(row.get("verification_info"), "verification_info")
    task, form, read_info = _READERS.get(task, _other)(task, info, gold)
    name = id_of(row.get("problem_id"), row["prompt"], task, read_info)
    return Published(f"{NAME}, {form}", name, row["prompt"], task, read_info, gold, several="response_id" in row)


def mathematics(task: str, info: _Info, gold: Any) -> _Reading:
    """A ground truth that is text or a number; without one, the last box of the gold solution."""
    only_known(info, {"ground_truth"}, "verification_info")
    boxed = _last_box(gold) if isinstance(gold, str) else ""
    truth = info.get("ground_truth")
    if truth is None or truth == "":
        if not boxed:
            raise ValueError("verification_info needs ground_truth, or gold_standard_solution a \\boxed{answer}")
        return task, "gold solution", {"ground_truth": _chosen(boxed)}
    form = "number" if isinstance(truth, int | float) and not isinstance(truth, bool) else task
    truths = truths_of(truth)
    if (
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


def _bare(text: str) -> str:
    """Without the box or the dollars around it."""
    text = (last_box(text) or text).strip()
    return text[1:-1].strip() if len(text) > 2 and text[0] == text[-1] == "$" and text.count("$") == 2 else text


def _chosen(text: str) -> str | list[str]:
    """A choice that stands with its value, \\textbf{(B)} 8: either is right."""
    choice = _CHOICE.fullmatch(text.strip())
    return [text, choice[1], choice[2].strip()] if choice else text


def _last_box(text: str) -> str:
    inner = (last_box(text) or "").strip()
    return inner if is_mathematical(inner) and not is_no_answer(inner) else ""


def code(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001 - a program that passes is no truth
    form, cases = read_tests(info)
    return task, f"tests: {form}", {"language": info.get("language", "python"), "test_cases": cases}


def _output(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
    only_known(info, {"ground_truth", "code_output", "language"}, "verification_info")
    if "ground_truth" in info and "code_output" in info and info["ground_truth"] != info["code_output"]:
        raise ValueError("it has two truths: ground_truth and code_output")
    return task, task, {"ground_truth": info.get("ground_truth", info.get("code_output"))}


def _gym(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
    names = {"dataset_name", "entry", "reasoning_gym_dataset", "reasoning_gym_entry", "ground_truth"}
    only_known(info, names, "verification_info")
    return task, task, info


def _schema(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
    only_known(info, {"json_schema", "schema"}, "verification_info")
    if len(info) > 1:
        raise ValueError("it has two truths: json_schema and schema")
    return task, task, info


def _judged(task: str, info: _Info, gold: Any) -> _Reading:
    only_known(info, {"judging_instructions", "gold_standard_solution", "ground_truth"}, "verification_info")
    return task, task, {**info, "gold_standard_solution": gold or info.get("gold_standard_solution")}


def _other(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
    """A type that nothing here scores, or one whose info is read as it is: whoever scores says so."""
    return task, task, info


_READERS: dict[str, Callable[[str, _Info, Any], _Reading]] = {
    "verifiable_math": mathematics,
    "prime_rl_code": code,
    "verifiable_code": code,
    "code_output_prediction": _output,
    "reasoning_gym": _gym,
    "json_schema": _schema,
    "llm_judgeable_groundtruth_similarity": _judged,
    **synthetic2.READERS,
}

SHAPE = Shape(NAME, "prompt, task_type, verification_info", lambda row: "task_type" in row, read)
