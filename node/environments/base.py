"""The interface of an environment: numbered problems, and a deterministic score for an answer.

Knows nothing of models, sampling or the network. A tokenizer is passed in, because scoring must see
exactly the tokens that were sampled. Training problems are numbered 0..size-1 (the numbers that
`protocol.draw` names); held-back problems have a numbering of their own and are never trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from node.environments.errors import DatasetError

_Arguments = TypeVar("_Arguments")


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


def load_environment(settings: EnvironmentSettings, assets: Path, tokenizer: Tokenizer) -> Environment:
    """The environment that `settings` names; its files lie below `assets`.

    Raises EnvironmentFault (unknown name or arguments) or DatasetError (bad data).
    """
    from node.environments.dataset import DatasetArguments, load_dataset
    from node.environments.errors import EnvironmentFault
    from node.environments.sort import SortArguments, SortEnvironment

    def arguments(kind: type[_Arguments]) -> _Arguments:
        try:
            return msgspec.convert(settings.args, kind, strict=True)
        except msgspec.ValidationError as error:
            raise EnvironmentFault(
                f"environment {settings.name!r} cannot be loaded",
                f"its arguments are wrong: {error}",
                "correct [environment.args] in the run file",
            ) from None

    if settings.name == "sort":
        return SortEnvironment(arguments(SortArguments), tokenizer)
    if settings.name == "dataset":
        return load_dataset(arguments(DatasetArguments), assets, tokenizer)
    raise EnvironmentFault(
        f"environment {settings.name!r} cannot be loaded",
        "there is no environment of that name",
        "use 'sort' or 'dataset', or update intellect-node",
    )


LOOKED_AT = 4096


def check_prompts(environment: Environment, limit: int) -> None:
    """Raise DatasetError if a prompt has more than `limit` tokens.

    A worker that draws such a problem could not deliver. Of a large environment, LOOKED_AT problems at even
    distances are looked at.
    """
    stride = max(1, environment.size // LOOKED_AT)
    for number in range(0, environment.size, stride):
        problem = environment.problem(number)
        length = len(environment.prompt_tokens(problem))
        if not 1 <= length <= limit:
            raise DatasetError(
                "a prompt does not fit the run",
                f"problem {problem.problem_id[:80]!r} has {length} tokens, rollout.max_prompt_tokens is {limit}",
                "raise rollout.max_prompt_tokens in the run file, or remove the problem",
            )
