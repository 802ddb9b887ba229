"""Rows whose columns have names of their own: what a run says of them, before published forms are looked for."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from node.environments.math_scorer import boxes

MARK = "####"
_PROMPTS = ("prompt", "question", "problem")
_TRUTHS = ("answer", "solution", "ground_truth")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant"}
"""ShareGPT's words for who speaks."""


class DatasetColumns(Protocol):
    """What the arguments of `dataset` say of columns; empty: nothing."""

    @property
    def prompt_column(self) -> str: ...
    @property
    def answer_column(self) -> str: ...
    @property
    def messages_column(self) -> str: ...


def with_named_columns(row: Mapping[str, Any], said: DatasetColumns) -> dict[str, Any]:
    """The row as published forms have it. Raises ValueError for a column that it does not have, or one that cannot be
    what it is said to be.

    messages_column: a chat. Its last answer is the truth unless another column is, and what was said before the prompt.
    """
    found = dict(row)
    if not (said.prompt_column or said.answer_column or said.messages_column):
        return found
    prompt: Any = _taken(found, said.prompt_column)
    answer: Any = _taken(found, said.answer_column)
    if said.messages_column:
        asked, answered = _asked_and_answered(_taken(found, said.messages_column), said.messages_column)
        prompt, answer = asked if prompt is None else prompt, answered if answer is None else answer
    if prompt is not None:
        kept = [name for name in _PROMPTS if name in found]
        for name in kept:
            del found[name]
    if answer is None:
        found["prompt" if "task_type" in found or "reward_model" in found else "question"] = prompt
        return found
    for name in _TRUTHS:
        found.pop(name, None)
    if prompt is None:
        prompt = next((found.pop(name) for name in _PROMPTS if name in found), None)
        if prompt is None:
            raise ValueError(f"there is no prompt: none of {', '.join(_PROMPTS)}; name its column in prompt_column")
    return found | _as_form(prompt, answer)


def _as_form(prompt: Any, answer: Any) -> dict[str, Any]:
    """The two under the names of the form that fits the answer: worked to a mark, worked to a box, or bare."""
    if isinstance(answer, str) and boxes(answer) and isinstance(prompt, str):
        return {"problem": prompt, "solution": answer}
    if isinstance(prompt, str):
        return {"question": prompt, "answer": answer}
    # Of a chat only the truth itself is compared: forms with worked answers have a question that is text.
    if isinstance(answer, str) and MARK in answer:
        answer = answer.rpartition(MARK)[2].strip().replace(",", "")
    elif isinstance(answer, str) and (found := boxes(answer)):
        answer = ", ".join(found)  # all of it, where it has several
    return {"prompt": prompt, "answer": answer}


def _taken(row: dict[str, Any], name: str) -> Any:
    """The column's value, which is taken out; None where none is named. In any case of letters."""
    if not name:
        return None
    own = name if name in row else next((key for key in row if str(key).lower() == name.lower()), None)
    if own is None:
        close = get_close_matches(name, map(str, row), 1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(str, list(row)[:12]))}"
        raise ValueError(f"there is no column {name!r}; {hint}")
    value = row.pop(own)
    if value is None:
        raise ValueError(f"its column {name!r} is empty")
    return value


def _asked_and_answered(chat: Any, name: str) -> tuple[list[dict[str, Any]], str | None]:
    """(messages up to the user's last, what the assistant says behind it)."""
    if not isinstance(chat, Sequence) or isinstance(chat, str) or not all(isinstance(one, Mapping) for one in chat):
        raise ValueError(f"its column {name!r} is no list of messages with role and content")
    said = [(one.get("role", one.get("from")), one.get("content", one.get("value"))) for one in chat]
    messages = [{"role": _ROLES.get(str(role), role), "content": text} for role, text in said]
    answer = messages.pop()["content"] if messages and messages[-1]["role"] == "assistant" else None
    return messages, answer if isinstance(answer, str) else None
