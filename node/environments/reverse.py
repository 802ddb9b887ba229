"""`reverse`: write n digits backwards. Exact match scores 1, anything else 0. Numbered as in `sort`."""

from node.environments.base import Problem
from node.environments.sort import SortEnvironment


class ReverseEnvironment(SortEnvironment):
    """Asked as "=1234=", so that one model can tell it from `sort`."""

    name = "reverse"

    def _input(self, place: int) -> Problem:
        text = self._digits_at(place)
        return Problem(problem_id=f"reverse-{text}", prompt=f"={text}=", answer=(text[::-1],))
