"""Members chose many of the words on the page. Here they become plain, short text; numbers become numbers or None."""

import math
import unicodedata
from typing import Any

_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Categories of characters that move, hide or turn what stands beside them."""


def words(value: Any, longest: int = 200) -> str:
    """Text of at most `longest` characters without anything invisible; empty for what is no text."""
    if not isinstance(value, str):
        return ""
    # Cut first: a member may send far more than is shown, and each character costs.
    cut = value[: longest + 1]
    seen = cut if cut.isascii() and cut.isprintable() else "".join(map(_shown, cut))
    return seen if len(seen) <= longest else seen[: longest - 1] + "…"


def number(value: Any) -> float | int | None:
    """A finite number with four significant decimals, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else round(value, 4)


def table(value: Any, most: int = 32) -> dict[str, float | int]:
    """Names and numbers; at most so many."""
    if not isinstance(value, dict):
        return {}
    pairs = ((words(str(name), 40), number(one)) for name, one in list(value.items())[:most])
    return {name: one for name, one in pairs if one is not None}


class Steady:
    """Moments that are told as "so long ago": each stays what it was until it has really moved, so that nothing counts
    as changed because two clocks were read a little apart. As many are kept as there are names."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, name: str, now: float, ago: Any) -> int | None:
        """now: unix seconds; ago: seconds, or None for a moment that is not known."""
        if not isinstance(ago, int | float) or not math.isfinite(ago):
            return None
        at, before = now - ago, self._known.get(name)
        if before is None or abs(at - before) > 1.5:  # seconds by which a moment may seem to move
            self._known[name] = before = round(at)
        return before


def _shown(character: str) -> str:
    return " " if unicodedata.category(character) in _UNSEEN else character
