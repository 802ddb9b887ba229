"""SYNTHETIC-2's own task types: what stands in their verification_info.

`ifeval` names one check of RLVR-IFeval; those that count otherwise than IFEval does are refused by name, and so are
rows whose truth is a pair (`formatask_dual`): it was not published which answers to them are right.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from node.environments.names import nearest
from node.environments.task_types.shapes.base import mapping, only_known, parsed
from node.environments.task_types.shapes.pydantic_source import schema_of

_Info = dict[str, Any]
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


def followed(task: str, info: _Info, gold: Any) -> tuple[str, str, _Info]:  # noqa: ARG001
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


def _text(
    *also: str, names: tuple[str, ...] = ("ground_truth",)
) -> Callable[[str, _Info, Any], tuple[str, str, _Info]]:
    """One truth that is a text, under one of `names`; `also` repeats the question."""

    def read(task: str, info: _Info, gold: Any) -> tuple[str, str, _Info]:  # noqa: ARG001
        only_known(info, {*names, *also}, "verification_info")
        found = [info[name] for name in names if name in info]
        if len(found) != 1 or not isinstance(found[0], str) or not found[0].strip():
            raise ValueError(f"verification_info needs {' or '.join(names)}: one text")
        return task, task, {"ground_truth": found[0]}

    return read


def _pair(task: str, info: _Info, gold: Any) -> tuple[str, str, _Info]:
    if "ground_truth1" in info or "ground_truth2" in info:
        raise ValueError(
            "it has two truths, ground_truth1 and ground_truth2: which answers are right was not published"
        )
    return _text()(task, info, gold)


def _json(task: str, info: _Info, gold: Any) -> tuple[str, str, _Info]:  # noqa: ARG001
    only_known(info, {"ground_truth"}, "verification_info")
    truth = info.get("ground_truth")
    truth = parsed(truth, "ground_truth") if isinstance(truth, str) else truth
    if not isinstance(truth, dict) or not truth:
        raise ValueError("verification_info needs ground_truth: a JSON object that is not empty")
    return task, task, {"ground_truth": json.dumps(truth)}


def _pydantic(task: str, info: _Info, gold: Any) -> tuple[str, str, _Info]:  # noqa: ARG001
    only_known(info, {"pydantic_config", "model_name"}, "verification_info")
    source, name = info.get("pydantic_config"), info.get("model_name")
    if not isinstance(source, str) or not isinstance(name, str):
        raise ValueError("verification_info needs pydantic_config and model_name: two texts")
    return "json_schema", task, {"json_schema": schema_of(source, name)}


READERS: dict[str, Callable[[str, _Info, Any], tuple[str, str, _Info]]] = {
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
