"""Answers that are made to hold up whoever scores them: each was quadratic, or deep, for some expression or parser."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

HOSTILE: Mapping[str, Callable[[int], str]] = {
    "blocks that are never closed": lambda n: "```a\n" * (n // 5),
    "closed blocks": lambda n: "```\n" * (n // 4),
    "blank lines": lambda n: "\n" * (n - 1) + "a",
    "blanks": lambda n: "{" + " " * (n - 2) + "a",
    "full stops": lambda n: "." * (n - 1) + "a",
    "answers that are never closed": lambda n: "<answer>" * (n // 8),
    "empty answers": lambda n: "<answer></answer>" * (n // 17),
    "boxes that are never closed": lambda n: "\\boxed{" * (n // 7),
    "a box of braces": lambda n: "\\boxed{" + "{" * ((n - 8) // 2) + "}" * ((n - 8) // 2),
    "objects that are never closed": lambda n: '{"output":' * (n // 10),
    "small objects": lambda n: '{"a":{}}' * (n // 8),
    "deep lists": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "many numbers": lambda n: "[" + "1," * (n // 2 - 1) + "1]",
    "one number": lambda n: "9" * n,
    "stars": lambda n: "*a" * (n // 2),
    "titles that are never closed": lambda n: "<<a" * (n // 3),
    "thoughts": lambda n: "</think>" * (n // 8 - 1) + "a",
    "words": lambda n: "a " * (n // 2),
}
"""What it is -> a text of about so many characters, never more."""

_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def last_block_before(text: str) -> str | None:
    """How programs were found in answers before: quadratic."""
    found = _BLOCK.findall(text)
    return found[-1] if found else None


def read_badly(text: str) -> str:
    """A scorer with every fault that one can have. Gives its text back."""
    if text == "die":
        raise MemoryError
    if text == "raise":
        raise RecursionError
    last_block_before(text[:400_000])
    return text


def read_when_there_is(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.05)
    return path
