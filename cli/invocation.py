"""How this program was called, so that it can be called again: in the background, or by a service manager."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "intellect-node"
IMPORTING = "importing the program, some seconds on a quiet machine"
"""What a daemon does before it can say more."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of the program. words: its command line; own_process: whether the process is the program's own, which a
    command may then fork."""

    words: Sequence[str]
    own_process: bool


def own_command() -> list[str]:
    """The words that start this very program, with whole paths: its script, or this Python with its module."""
    script = Path(sys.argv[0])
    if script.name == PROGRAM and os.access(script, os.X_OK):
        return [str(script.absolute())]
    return [sys.executable, "-m", "cli"]


def without(words: Sequence[str], *flags: str) -> list[str]:
    """The words of a command line, less some flags that take no value."""
    return [word for word in words if word not in flags]
