"""An environment some of whose answers get no verdict on this machine."""

from collections.abc import Callable, Sequence
from typing import Any

from node.environments.base import Problem, Transcript


class Unsure:
    """Another one's, without a verdict where `unknown` says so of (problem, how often it was asked of before)."""

    def __init__(self, environment: Any, unknown: Callable[[Problem, int], bool]) -> None:
        self._environment, self._unknown = environment, unknown
        self.gave_up, self.asked = 0, 0
        self._times: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        self.asked += len(problems)
        scores = self._environment.score(problems, transcripts)
        return [self._told(problem, score) for problem, score in zip(problems, scores, strict=True)]

    def _told(self, problem: Problem, score: float) -> float:
        times = self._times.get(problem.problem_id, 0)
        self._times[problem.problem_id] = times + 1
        if not self._unknown(problem, times):
            return score
        self.gave_up += 1
        return 0.0
