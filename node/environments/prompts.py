"""A prompt as people write it: text, or the messages of a chat that ends with the user's."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from node.environments.base import Problem, Said, Tokenizer

MAX_CHARACTERS = 1 << 20
MAX_MESSAGES = 64


class Message(msgspec.Struct, frozen=True):
    """One message of a published chat; other keys of it say nothing to a model."""

    role: Literal["system", "user", "assistant"]
    content: str


def read_prompt(value: Any) -> tuple[tuple[Said, ...], str]:
    """(what was said before, the user's last message). Raises ValueError that says what is wrong."""
    messages = [Message("user", value)] if isinstance(value, str) else _messages(value)
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


def check_template(problem: Problem, *, chat: bool) -> None:
    """Raise ValueError for a chat of several messages where there is no template to put them into."""
    if problem.before and not chat:
        raise ValueError("the prompt is a chat of several messages, and template = 'plain' has no place for them")


def _messages(value: Any) -> Sequence[Message]:
    try:
        return msgspec.convert(value, list[Message])
    except msgspec.ValidationError as error:
        raise ValueError(f"the prompt is neither text nor a list of messages with role and content: {error}") from None
