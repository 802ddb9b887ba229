"""The interface of an environment: numbered problems, and a deterministic score for an answer.

Knows nothing of models, sampling or the network. A tokenizer is passed in, because scoring must see
exactly the tokens that were sampled. Training problems are numbered 0..size-1 (the numbers that
`protocol.draw` names); held-back problems have a numbering of their own and are never trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class EnvironmentSettings(Protocol):
    """The part of a run's file that names an environment (`protocol.run.EnvironmentSpec`)."""

    @property
    def name(self) -> str: ...

    @property
    def args(self) -> dict[str, int | float | str]: ...


class Tokenizer(Protocol):
    """What environments need of a tokenizer."""

    @property
    def eos(self) -> frozenset[int]:
        """Token ids that end an answer."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without special tokens."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        ...

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of one user message in the model's chat template, ready for the assistant's turn."""
        ...


@dataclass(frozen=True, slots=True)
class Problem:
    """problem_id: unique in its environment; prompt: text; answer: whatever the environment's scorer needs."""

    problem_id: str
    prompt: str
    answer: tuple[str, ...]


class Environment(Protocol):
    """Numbered problems and their scores. Everything is deterministic."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """How many training problems there are."""
        ...

    @property
    def held_back(self) -> int:
        """How many evaluation problems there are, disjoint from the training problems."""
        ...

    @property
    def gave_up(self) -> int:
        """How many answers so far could not be scored in time: they scored 0, and elsewhere might have scored 1."""
        ...

    def problem(self, number: int) -> Problem:
        """Training problem `number`, 0 <= number < size."""
        ...

    def held_back_problem(self, number: int) -> Problem:
        """Evaluation problem `number`, 0 <= number < held_back."""
        ...

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """The exact prompt that the model is given."""
        ...

    def score(self, problems: Sequence[Problem], outputs: Sequence[Sequence[int]]) -> list[float]:
        """Reward of each output (token ids, end token included) to the problem at its place, in bounded time."""
        ...

    def close(self) -> None:
        """Stop helper processes, if there are any."""
        ...
