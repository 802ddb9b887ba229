"""What can be wrong with an environment or its data."""

import difflib
from collections.abc import Iterable

from node.errors import Mistakes
from node.sandbox.errors import Undecided
from protocol.errors import IntellectError

__all__ = ["DatasetError", "EnvironmentFault", "PackageError", "Undecided"]


class EnvironmentFault(IntellectError):
    """An environment that cannot be loaded: unknown name, bad arguments, missing scorer."""


class DatasetError(EnvironmentFault):
    """A data file that cannot be used; `why` names file and line. findings: all mistakes, where there are rows."""

    findings: Mistakes | None = None


class PackageError(EnvironmentFault):
    """An environment package that cannot be used: its files, its description, its code or its rows."""


def nearest(word: str, known: Iterable[str]) -> str:
    """What to use instead: the nearest known word, else all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}"
