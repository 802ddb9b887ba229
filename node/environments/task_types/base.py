"""The interface of a task type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from node.environments.base import Determinism
from node.environments.errors import Undecided
from node.environments.programs import ProgramRunner
from node.environments.scoring_pool import POOL

Truth = tuple[str, ...]
"""What a scorer needs of a row. Texts, so that problems stay plain values."""
Question = tuple[str, Truth]
"""A complete answer, and the truth of its problem."""
Row = Mapping[str, Any]


class Scorer(Protocol):
    """For one thread; blocks. gave_up: how many answers so far this machine could not score; they scored 0."""

    @property
    def gave_up(self) -> int: ...

    def score(self, questions: Sequence[Question]) -> list[float]:
        """0 to 1 for each, in bounded time."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TaskType:
    """name: as rows have it; truth: (verification_info, row) -> what its scorer needs, raises ValueError that says what
    is wrong; open: its scorer, which may run programs; programs: whether it does."""

    name: str
    about: str
    determinism: Determinism
    truth: Callable[[Row, Row], Truth]
    open: Callable[[ProgramRunner], Scorer]
    programs: bool = False


class PureScorer:
    """A scorer that is a function of the answer and the truth alone, called in a child process."""

    def __init__(self, reward: Callable[[str, Truth], float]) -> None:
        self._reward = reward
        self.gave_up = 0

    def score(self, questions: Sequence[Question]) -> list[float]:
        rewards = POOL.call_all(self._reward, questions)
        self.gave_up += sum(isinstance(reward, Undecided) for reward in rewards)
        # None: the scorer raised, as it does on every machine. Only what is undecided was counted above.
        return [0.0 if isinstance(reward, Undecided) else reward or 0.0 for reward in rewards]

    def close(self) -> None:
        """Nothing to stop."""


def pure(reward: Callable[[str, Truth], float]) -> Callable[[ProgramRunner], PureScorer]:
    return lambda _: PureScorer(reward)


def read(function: Callable[[str], str | None], questions: Sequence[Question]) -> list[str | None | Undecided]:
    """What a function finds in each answer, in a child process."""
    return POOL.read(function, [answer for answer, _ in questions])


def said(answer: str) -> str:
    """An answer without its reasoning."""
    return answer.rpartition("</think>")[2].strip()
