"""INTELLECT-2, SYNTHETIC-1 and SYNTHETIC-2: prompt, task_type, verification_info, gold_standard_solution, problem_id.

SYNTHETIC-1's responses (`llm_response`, `response_id`) and what `task generate` writes are rows of this form, too:
several responses to a problem are one problem.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from node.environments.errors import nearest
from node.environments.math_scorer import last_box
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
from node.environments.task_types.shapes.pydantic_source import schema_of
from node.environments.task_types.shapes.tests import read_tests

NAME = "INTELLECT-2"
_INTEGER = re.compile(r"[+-]?\d{1,100}")
_CHOICE = re.compile(
    r"\\(?:text|textbf|mathrm|mathbf)\{ *\(([A-H])\)[ ~]*\}(?:[ ~:.]|\\[ ,;!:]|\\q?quad)*([^ ~:.].{0,200})"
)
_Info = dict[str, Any]
_Reading = tuple[str, str, _Info]
"""(task type, how its truth was published, what the task type reads)."""
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


def _followed(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
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

    def read(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
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


def _json(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
    only_known(info, {"ground_truth"}, "verification_info")
    truth = info.get("ground_truth")
    truth = parsed(truth, "ground_truth") if isinstance(truth, str) else truth
    if not isinstance(truth, dict) or not truth:
        raise ValueError("verification_info needs ground_truth: a JSON object that is not empty")
    return task, task, {"ground_truth": json.dumps(truth)}


def _pydantic(task: str, info: _Info, gold: Any) -> _Reading:  # noqa: ARG001
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
    "ifeval": _followed,
    "instruction_following": _followed,
    "unscrambling": _text("scrambled"),
    "unscramble_sentence": _text("scrambled"),
    "ascii_tree_formatting": _text("description"),
    "formatask": _pair,
    "git_diff": _text(names=("golden_diff", "ground_truth")),
    "complex_json_output": _json,
    "pydantic_adherance": _pydantic,
}

SHAPE = Shape(NAME, "prompt, task_type, verification_info", lambda row: "task_type" in row, read)
