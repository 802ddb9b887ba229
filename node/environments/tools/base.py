"""The interface of a tool."""

from typing import Protocol


class Tool(Protocol):
    """For one thread."""

    @property
    def about(self) -> str:
        """What it does, for the model, in one line."""
        ...

    def answer(self, text: str) -> str:
        """The result of a call: a function of `text` alone, or of that and counted limits. Raises Undecided."""
        ...

    def close(self) -> None:
        """Stop helper processes, if there are any."""
        ...
