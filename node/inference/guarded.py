"""An environment that several jobs use at a time: one call after the other, since scorers talk to helper processes.

What an environment could not decide in time is counted for the thread that asked, so that no job takes another's
undecided answers for its own. It is closed when nobody uses it any more.
"""

import threading
import weakref
from collections.abc import Sequence

from node.environments.base import Determinism, Environment, Problem, Reply, Transcript


class Guarded:
    """`Environment`, of another one: within."""

    def __init__(self, within: Environment) -> None:
        self.within = within
        self._lock = threading.RLock()
        self._own = threading.local()
        self._closer = weakref.finalize(self, within.close)

    @property
    def name(self) -> str:
        return self.within.name

    @property
    def size(self) -> int:
        return self.within.size

    @property
    def held_back(self) -> int:
        return self.within.held_back

    @property
    def determinism(self) -> Determinism:
        return self.within.determinism

    @property
    def turns(self) -> int:
        return self.within.turns

    @property
    def gave_up(self) -> int:
        """Of the calls of this thread."""
        return getattr(self._own, "gave_up", 0)

    def is_judged(self, problem: Problem) -> bool:
        return self.within.is_judged(problem)

    def problem(self, number: int) -> Problem:
        with self._lock:
            return self.within.problem(number)

    def held_back_problem(self, number: int) -> Problem:
        with self._lock:
            return self.within.held_back_problem(number)

    def prompt_tokens(self, problem: Problem) -> list[int]:
        with self._lock:
            return self.within.prompt_tokens(problem)

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        with self._lock:
            return self.within.step(problem, transcript)

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        with self._lock:
            return self.within.steps(problems, transcripts)

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        with self._lock:
            before = self.within.gave_up
            scores = self.within.score(problems, transcripts)
            self._own.gave_up = self.gave_up + self.within.gave_up - before
            return scores

    def close(self) -> None:
        """Once; nobody may use it then."""
        self._closer()
