"""What to say of a word that nobody knows."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """What to use instead: the nearest known word, else all of them."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(names)}"
