"""`llm_judgeable_groundtruth_similarity`: how good an answer is, judges say. Here nothing is decided.

The truth is what a good answer is, and what judges are told to look at; `node.inference.opinions` shows it to them.
"""

from collections.abc import Sequence

from node.environments.programs import ProgramRunner
from node.environments.task_types.base import Question, Row, Truth

MAX_CHARACTERS = 64 * 1024


def read_truth(info: Row, row: Row) -> Truth:
    solution = row.get("gold_standard_solution") or info.get("gold_standard_solution") or info.get("ground_truth")
    told = info.get("judging_instructions") or ""
    if not isinstance(solution, str) or not isinstance(told, str) or len(solution) + len(told) > MAX_CHARACTERS:
        raise ValueError("it needs gold_standard_solution: a text, not too long")
    return (solution, told) if told else (solution,)


class Undecided:
    """Gives up on every answer."""

    def __init__(self) -> None:
        self.gave_up = 0

    def score(self, questions: Sequence[Question]) -> list[float]:
        self.gave_up += len(questions)
        return [0.0] * len(questions)

    def close(self) -> None:
        """Nothing to stop."""


def open_scorer(runner: ProgramRunner) -> Undecided:  # noqa: ARG001 - runs no programs
    return Undecided()
