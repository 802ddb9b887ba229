"""What a tool is, how it is called in plain text (<python>print(6 * 7)</python>), and how its result is told.

A call is what an answer *ends* with, after its reasoning, so that code in the middle of an answer is none. Every text
is either one call or none.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from node.environments.errors import Undecided

MAX_CALL = 64 * 1024
"""Characters between the tags."""
_CUT = " [cut]"


@dataclass(frozen=True, slots=True)
class ToolCall:
    tool: str
    text: str


def parse_call(answer: str, tools: Collection[str]) -> ToolCall | None:
    """The call that an answer ends with; None if it ends with none of these tools', or with one too long or empty."""
    said = answer.rpartition("</think>")[2].rstrip()
    for tool in tools:
        # From the last opening tag on: code before it may hold one as well.
        before, opened, text = said.removesuffix(f"</{tool}>").rpartition(f"<{tool}>")
        if said.endswith(f"</{tool}>") and opened and 0 < len(text.strip()) and len(text) <= MAX_CALL:
            # Line breaks only: blanks at the beginning are Python's indentation.
            return ToolCall(tool, text.strip("\n"))
    return None


def tell_result(text: str, most: int) -> str:
    """What the model is told. most: characters of the result; what cannot be encoded is replaced."""
    # A guest can print half of a surrogate pair, and no tokenizer encodes that.
    sound = text.encode("utf-8", "replace").decode("utf-8")
    shown = sound if len(sound) <= most else sound[:most] + _CUT
    return f"<result>\n{shown.rstrip()}\n</result>"


def how_to_call(tools: Collection[tuple[str, str]]) -> str:
    """Instructions for the model. tools: (name, what it does)."""
    lines = [f"<{name}>...</{name}> {about}" for name, about in tools]
    return "You may end an answer with one call of a tool, and will be told its result:\n" + "\n".join(lines)


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
