"""`marked_math`: mathematics whose answer stands in a box, in <answer> tags, or behind the last `####` or `Answer:`.

GSM8K, verl and DAPO ask for the marks; as `verifiable_math` sees them, a right answer behind some reasoning would
score 0.
"""

import re
from collections.abc import Sequence

from node.environments.programs import ProgramRunner
from node.environments.task_types.base import Question
from node.environments.task_types.math import MathematicalScorer

_MARKS = ("####", "Answer:", "answer is:", "<answer>")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")


def marked(answer: str) -> str:
    """The answer with what stands behind its last mark in a box, where there is a mark and no box behind it."""
    text = answer.rpartition("</think>")[2]
    place, mark = max((text.rfind(mark), mark) for mark in _MARKS)
    if place < 0 or text.rfind("\\boxed{") > place:
        return text
    said = text[place + len(mark) :].strip().partition("</answer>")[0].strip()
    said = said.partition("\n")[0].strip().strip("*$").rstrip(".").strip()
    said = said.removeprefix("\\(").removesuffix("\\)").strip()
    return f"\\boxed{{{said.replace(',', '') if _GROUPED.fullmatch(said) else said}}}"


class MarkedScorer(MathematicalScorer):
    """As `verifiable_math`, on the marked answer."""

    def score(self, questions: Sequence[Question]) -> list[float]:
        return super().score([(marked(answer), truth) for answer, truth in questions])


def open_scorer(runner: ProgramRunner) -> MarkedScorer:  # noqa: ARG001 - runs no programs
    return MarkedScorer()
