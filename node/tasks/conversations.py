"""What was said in a rollout, as messages: the form that users of published data expect.

Read off the tokens by the model's own chat template, and only where the template makes exactly these tokens of the
messages that were read. What was sampled is a list of tokens; roles that were guessed from it would teach a model
something that nobody said. Elsewhere (no template, a prompt that is plain text) the text itself is the message.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol

import msgspec

from node.inference.errors import ModelError
from protocol.segments import pieces

_MARK = "intellect-node-stands-here-"


class Texts(Protocol):
    """What is needed of a tokenizer (node.inference.tokenizer)."""

    def decode(self, tokens: Sequence[int]) -> str: ...
    def spell(self, tokens: Sequence[int]) -> str: ...
    def render(self, messages: Sequence[tuple[str, str]]) -> str: ...
    def encode_messages(self, messages: Sequence[tuple[str, str]]) -> list[int]: ...
    def encode_reply(self, text: str) -> list[int]: ...


class ConversationMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class Conversations:
    """For one model's tokens."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._forms = cache(self._literals)

    def prompt(self, tokens: Sequence[int]) -> list[ConversationMessage]:
        """The messages of a prompt, the last one the user's."""
        written = self._texts.spell(tokens)
        for roles in _prompt_forms():
            contents = _between(written, self._forms(roles))
            said = list(zip(roles, contents, strict=True)) if contents is not None else []
            # Text alone would not do: a user may have typed what the template puts between messages.
            if said and self._texts.encode_messages(said) == list(tokens):
                return [ConversationMessage(*one) for one in said]
        return [ConversationMessage("user", self._texts.decode(tokens))]

    def response(self, output: Sequence[int], segments: Sequence[int]) -> list[ConversationMessage]:
        """What was said behind it: the policy's turns, and between them the environment's. segments: as in
        protocol.segments."""
        return [
            ConversationMessage("assistant", self._texts.decode(tokens))
            if sampled
            else ConversationMessage("user", self._reply(tokens))
            for tokens, sampled in pieces(output, segments)
        ]

    def _reply(self, tokens: Sequence[int]) -> str:
        *_, before, behind = self._forms(("user", "assistant", "user")) or ("", "")
        written = self._texts.spell(tokens)
        for start in (place for place in range(len(before)) if written.startswith(before[place:])):
            content = _between(written, (before[start:], behind))  # the answer's end token was the policy's own
            if content is not None and self._texts.encode_reply(content[0]) == list(tokens):
                return content[0]
        return self._texts.decode(tokens)

    def _literals(self, roles: tuple[str, ...]) -> tuple[str, ...]:
        """What the template puts before, between and behind messages of these roles; empty where it takes none such."""
        marks = [f"{_MARK}{number}-" for number in range(len(roles))]
        try:
            left = self._texts.render(list(zip(roles, marks, strict=True)))
        # A template may refuse roles, or their order: then there is no such conversation to tell apart.
        except ModelError:
            return ()
        literals: list[str] = []
        for mark in marks:
            literal, found, left = left.partition(mark)
            # The template left a message out or moved it, so its form says nothing about the others.
            if not found:
                return ()
            literals.append(literal)
        return (*literals, left)


def _prompt_forms() -> Iterator[tuple[str, ...]]:
    """The longest first: a message that holds another one is seldom what was meant."""
    for pairs in range(8, -1, -1):  # exchanges before the last question of a prompt that are told apart
        exchange = ("user", "assistant") * pairs + ("user",)
        yield ("system", *exchange)
        yield exchange


def _between(written: str, literals: Sequence[str]) -> list[str] | None:
    """What stands between literals that a text is made with; None if it is not."""
    if not literals or not written.startswith(literals[0]):
        return None
    found: list[str] = []
    place = len(literals[0])
    for literal in literals[1:-1]:
        end = written.find(literal, place)
        if end < 0:
            return None
        found.append(written[place:end])
        place = end + len(literal)
    last = len(written) - len(literals[-1])
    return [*found, written[place:last]] if place <= last and written.endswith(literals[-1]) else None
