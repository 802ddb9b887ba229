"""SYNTHETIC-2's texts in a given form: sentences in order, trees of characters, formatted text, diffs, JSON objects.

1 for the whole form, else 0. The published judges of the first two pay for parts, too: a guess of the beginning is
paid.
"""

import json
import re
from collections.abc import Callable
from functools import wraps

from node.environments.task_types.base import Row, Truth, said
from node.environments.task_types.code import last_object, same_value

MAX_CHARACTERS = 256 * 1024
_SENTENCE = re.compile(r"\*?\d{1,6}\*?[.:][ \t]+(\S.*)")


def read_truth(info: Row, row: Row) -> Truth:
    text = info["ground_truth"]
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"its ground_truth has more than {MAX_CHARACTERS} characters")
    return (text,)


def read_sentences(info: Row, row: Row) -> Truth:
    (text,) = read_truth(info, row)
    if len(sentences(text)) < 2:
        raise ValueError("its ground_truth has not two numbered sentences: any answer would be in order")
    return (text,)


def read_diff(info: Row, row: Row) -> Truth:
    (text,) = read_truth(info, row)
    if not changes(text):
        raise ValueError("its diff changes nothing")
    return (text,)


def between(text: str, tag: str) -> str:
    """What stands in the only pair of these tags; empty where there is none, or several."""
    first, opened, rest = text.partition(f"<{tag}>")
    inner, closed, after = rest.partition(f"</{tag}>")
    # Several pairs would be several guesses.
    if not opened or not closed or f"<{tag}>" in inner + after or f"</{tag}>" in first + after:
        return ""
    return inner


def sentences(text: str) -> list[str]:
    """Numbered lines, without their numbers."""
    found = (_SENTENCE.match(line.strip()) for line in text.splitlines())
    return [one[1].strip() for one in found if one]


def changes(text: str) -> list[str]:
    """The lines of a diff that say something: files, changes and what stands around them; not where they stand."""
    lines = [line.rstrip() for line in text.strip().splitlines()]
    kept = [line for line in lines if not line.startswith(("index ", "diff --git", "@@", "new file", "deleted file"))]
    return kept if any(line[:1] in "+-" and not line.startswith(("+++", "---")) for line in kept if line) else []


def whole(right: Callable[[str, str], bool]) -> Callable[[str, Truth], float]:
    """A reward: 1 where an answer without its reasoning is right, else 0. A scoring child finds it by its name."""

    @wraps(right)
    def reward(answer: str, truth: Truth) -> float:
        text = said(answer)
        return float(0 < len(text) <= MAX_CHARACTERS and right(text, truth[0]))

    return reward


@whole
def ordered(text: str, truth: str) -> bool:
    return sentences(between(text, "unscrambled_text")) == sentences(truth)


@whole
def tree(text: str, truth: str) -> bool:
    return _lines(between(text, "ascii_formatted")) == _lines(truth)


@whole
def formed(text: str, truth: str) -> bool:
    return _lines(text) == _lines(truth)


@whole
def diff(text: str, truth: str) -> bool:
    """In the only fenced block, or all of the answer."""
    parts = text.split("```")
    if len(parts) == 3:
        text = parts[1].partition("\n")[2]
    return changes(text) == changes(truth)


@whole
def json_object(text: str, truth: str) -> bool:
    found = last_object(text)
    return found is not None and same_value(found, json.loads(truth))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
