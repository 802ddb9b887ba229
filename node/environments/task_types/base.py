"""The interface of a task type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from blake3 import blake3

from node.environments.base import Determinism
from node.environments.programs import ProgramRunner

Truth = tuple[str, ...]
"""What a scorer needs of a row. Texts, so that problems stay plain values."""
Question = tuple[str, Truth]
"""A complete answer, and the truth of its problem."""
Row = Mapping[str, Any]


def key_of(question: Question) -> bytes:
    """32 bytes to remember a question by: answers and truths may be long."""
    return blake3(msgspec.json.encode(question)).digest()


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
    """A scorer that is a function of the answer and the truth alone."""

    gave_up = 0

    def __init__(self, reward: Callable[[str, Truth], float]) -> None:
        self._reward = reward

    def score(self, questions: Sequence[Question]) -> list[float]:
        return [self._reward(answer, truth) for answer, truth in questions]

    def close(self) -> None:
        """Nothing to stop."""


def said(answer: str) -> str:
    """An answer without its reasoning."""
    return answer.rpartition("</think>")[2].strip()
