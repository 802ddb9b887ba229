"""`reverse`: write n digits backwards. Exact match scores 1, anything else 0. Numbered as in `sort`."""

from pathlib import Path

from node.environments.base import Environment, Problem, Tokenizer
from node.environments.sort import Arguments, SortEnvironment

__all__ = ["Arguments", "ReverseEnvironment", "load"]


class ReverseEnvironment(SortEnvironment):
    """Asked as "=1234=", so that one model can tell it from `sort`."""

    name = "reverse"

    def _input(self, place: int) -> Problem:
        text = self._digits_at(place)
        return Problem(problem_id=f"reverse-{text}", prompt=f"={text}=", answer=(text[::-1],))


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> Environment:
    """Raises EnvironmentFault for arguments out of range."""
    return ReverseEnvironment(arguments, tokenizer)
