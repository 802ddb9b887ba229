"""A reward function of one's own over the problems of any environment: `score(row, answer) -> float`, at a desk.

row: what the problem is (Row); answer: the text that was sampled last, special tokens left out, also where the length
limit cut it off. Whatever is finite may be returned, also -1 or 7. The function is trusted and has no deadline: it is
its owner's code in its owner's process, and at a desk no verdict depends on it.
"""

import math
from collections.abc import Sequence
from typing import Any, TypedDict

from node.environments.base import Environment, Problem, Tokenizer, Transcript, last_answer
from node.own_code import Function, calling, unusable

_WANTED = "a finite number"


class Row(TypedDict):
    """answer: whatever the environment's own scorer compares with: for mathematics right answers, any of them; for a
    package its row as JSON."""

    problem_id: str
    prompt: str
    answer: tuple[str, ...]


class OwnReward:
    """The environment with another scorer; everything else is the environment's."""

    def __init__(self, environment: Environment, import_path: str, function: Function, tokenizer: Tokenizer) -> None:
        self._environment = environment
        self._import_path = import_path
        self._function = function
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def another(self) -> None:
        """The function is its owner's, and is called by one thread at a time."""

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """Raises OwnCodeError."""
        return [self._one(problem, transcript) for problem, transcript in zip(problems, transcripts, strict=True)]

    def _one(self, problem: Problem, transcript: Transcript) -> float:
        row = Row(problem_id=problem.problem_id, prompt=problem.prompt, answer=problem.answer)
        answer = self._tokenizer.decode(last_answer(transcript))
        returned = calling(self._import_path, self._function, row, answer, wanted=_WANTED)
        try:
            reward = float(returned)
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            shown = f"{returned!r}"[:80]
            raise unusable(self._import_path, f"{shown} for problem {problem.problem_id[:80]!r}", _WANTED)
        return reward
