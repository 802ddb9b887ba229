"""Rows of verifiers v0: prompt or question, answer, and optionally task, info and example_id.

What scores them stands in their package. Taken is what has one meaning: tests in the info, a task type of here, and
answers that are mathematics. Prose is refused, since comparing it as mathematics would score every answer 0.
"""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes import gym, intellect
from node.environments.task_types.shapes.base import (
    Published,
    Shape,
    id_of,
    is_mathematical,
    is_no_answer,
    mapping,
    number_as_text,
    whole_question,
)
from node.environments.task_types.shapes.gsm8k import MARK
from node.environments.task_types.shapes.tests import PLACES

NAME = "verifiers v0"
_MATHEMATICS = ("default", "math", "gsm8k", "math500", "aime2024", "aime2025", "amc2023")


def fits(row: Mapping[str, Any]) -> bool:
    named = "answer" in row and ("question" in row or "prompt" in row)
    return named and not (isinstance(row["answer"], str) and MARK in row["answer"]) and not gym.fits(row)


def read(row: Mapping[str, Any]) -> Published:
    prompt, task = row.get("prompt", row.get("question")), row.get("task", "default")
    info = mapping(row.get("info"), "info")
    name = id_of(row.get("example_id", row.get("id")), prompt, info, row["answer"])
    if task == "code" or {*PLACES, "inputs", "outputs"} & info.keys():
        _, form, read_info = intellect.code("prime_rl_code", info, None)
        return Published(f"{NAME}, {form.partition(' in ')[0]}", name, prompt, "prime_rl_code", read_info)
    whole_question(row)
    answer = number_as_text(row["answer"])
    if task not in _MATHEMATICS:
        raise ValueError(
            f"the task {str(task)[:80]!r} is scored by its package; give the row a task_type of `env list`"
        )
    if info:
        raise ValueError(f"what its info says ({', '.join(map(str, info))[:80]}) is known to its package only")
    if not isinstance(answer, str) or not is_mathematical(answer) or is_no_answer(answer):
        raise ValueError("its answer is no mathematics, and how else to compare it is known to its package only")
    return Published(f"{NAME}, mathematics", name, prompt, "marked_math", {"ground_truth": answer})


SHAPE = Shape(NAME, "question or prompt, answer", fits, read)
