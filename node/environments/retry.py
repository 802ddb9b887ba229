"""`retry`: put n digits in ascending order, with another try after a wrong one. Right at try t scores 1/t, else 0.

After a wrong answer the environment says how many digits stand in their place, as "=3=", and asks again: the smallest
task that takes turns. Problems and numbers are those of `sort`.
"""

from collections.abc import Sequence
from pathlib import Path

from node.environments.base import Environment, Problem, Tokenizer, Transcript, last_answer
from node.environments.errors import EnvironmentFault
from node.environments.sort import Arguments as SortArguments
from node.environments.sort import SortEnvironment


class Arguments(SortArguments, frozen=True, forbid_unknown_fields=True):
    """digits, held_back: as in `sort`; tries: answers to one problem, the first among them."""

    tries: int = 2


class RetryEnvironment(SortEnvironment):
    name = "retry"

    def __init__(self, arguments: Arguments, tokenizer: Tokenizer) -> None:
        super().__init__(arguments, tokenizer)
        most_tries = 64
        if not 1 <= arguments.tries <= most_tries:
            why = f"tries={arguments.tries} is out of range"
            raise EnvironmentFault(f"environment {self.name!r} cannot be loaded", why, f"use 1..{most_tries}")
        self.turns = arguments.tries

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        answer, right = self._tokenizer.decode(last_answer(transcript)), problem.answer[0]
        if answer == right:
            return None
        in_place = sum(one == other for one, other in zip(answer, right, strict=False))
        return self._tokenizer.encode(f"={in_place}=")

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        right = super().score(problems, transcripts)
        # Sampled segments and the environment's alternate, and both ends are sampled.
        tries = [len(transcript) // 2 + 1 for transcript in transcripts]
        return [score / count for score, count in zip(right, tries, strict=True)]


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> Environment:
    """Raises EnvironmentFault for arguments out of range."""
    return RetryEnvironment(arguments, tokenizer)
