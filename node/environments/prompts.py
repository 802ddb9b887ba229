"""A prompt as people write it: text, or the messages of a chat that ends with the user's."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from node.environments.base import Problem, Said, Tokenizer, is_held_back, numbered

MAX_CHARACTERS = 1 << 20
MAX_MESSAGES = 64


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a published chat; other keys of it say nothing to a model."""

    role: Literal["system", "user", "assistant"]
    content: str


def read_prompt(value: Any) -> tuple[tuple[Said, ...], str]:
    """(what was said before, the user's last message). Raises ValueError that says what is wrong."""
    messages = [ChatMessage("user", value)] if isinstance(value, str) else _messages(value)
    if len(messages) > MAX_MESSAGES or sum(len(one.content) for one in messages) > MAX_CHARACTERS:
        raise ValueError("the prompt is too long")
    if not messages or messages[-1].role != "user" or not messages[-1].content:
        raise ValueError("the prompt is empty, or its last message is not the user's")
    return tuple((one.role, one.content) for one in messages[:-1]), messages[-1].content


def encode_prompt(problem: Problem, tokenizer: Tokenizer, *, chat: bool) -> list[int]:
    """The tokens that the model is given: in its chat template, or the text as it stands."""
    if not chat:
        return tokenizer.encode(problem.prompt)
    if not problem.before:
        return tokenizer.encode_chat(problem.prompt)
    return tokenizer.encode_messages([*problem.before, ("user", problem.prompt)])


def check_template(before: Sequence[Said], *, chat: bool) -> None:
    """Raise ValueError for a chat of several messages where there is no template to put them into."""
    if before and not chat:
        raise ValueError("the prompt is a chat of several messages, and template = 'plain' has no place for them")


class ListedProblems:
    """What environments have in common that hold all their problems as a list."""

    _training: Sequence[Problem]
    _held_back: Sequence[Problem]
    _tokenizer: Tokenizer
    _chat: bool

    def hold(self, problems: Sequence[Problem], held_back_share: float) -> None:
        """Keep a share of the problems back for evaluation, by their ids."""
        held = [is_held_back(one.problem_id, held_back_share) for one in problems]
        self._training = [one for one, back in zip(problems, held, strict=True) if not back]
        self._held_back = [one for one, back in zip(problems, held, strict=True) if back]

    @property
    def size(self) -> int:
        return len(self._training)

    @property
    def held_back(self) -> int:
        return len(self._held_back)

    def problem(self, number: int) -> Problem:
        return numbered(self._training, number)

    def held_back_problem(self, number: int) -> Problem:
        return numbered(self._held_back, number)

    def prompt_tokens(self, problem: Problem) -> list[int]:
        return encode_prompt(problem, self._tokenizer, chat=self._chat)

    def reply_tokens(self, said: str) -> list[int]:
        """What is said behind an answer, in the chat template or as it stands."""
        return (self._tokenizer.encode_reply if self._chat else self._tokenizer.encode)(said)


def _messages(value: Any) -> Sequence[ChatMessage]:
    try:
        return msgspec.convert(value, list[ChatMessage])
    except msgspec.ValidationError as error:
        raise ValueError(f"the prompt is neither text nor a list of messages with role and content: {error}") from None
