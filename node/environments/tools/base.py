"""The interface of a tool."""

from collections.abc import Sequence
from typing import Protocol

from node.environments.errors import Undecided


class Tool(Protocol):
    """For one thread."""

    @property
    def about(self) -> str:
        """What it does, for the model, in one line."""
        ...

    def answer(self, text: str) -> str:
        """The result of a call: a function of `text` alone, or of that and counted limits. Raises Undecided."""
        ...

    def answers(self, texts: Sequence[str]) -> list[str | Undecided]:
        """The same of many calls at once, each by itself."""
        ...

    def another(self) -> "Tool":
        """The same for another thread."""
        ...

    def close(self) -> None:
        """Stop helper processes, if there are any."""
        ...
