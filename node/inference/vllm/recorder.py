"""The rows that tokens were drawn from, by request, until its completion takes them. Knows numpy only."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from node.inference.engine import U16


@dataclass(slots=True)
class _Taken:
    rows: list[U16] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)


class Recorder:
    """uint16[hidden] per drawn token, and which load's weights drew it."""

    def __init__(self) -> None:
        self._taken: dict[int, _Taken] = {}

    def add(self, draws: Iterable[tuple[int, int]], rows: U16, load: int) -> None:
        """draws: (request, place of the token in its output) of each of `rows`, uint16[n, hidden]. load: number of the
        weights in use.

        A place that comes again replaces what was there and all behind it: the request was cut into chunks, or began
        anew after others took its memory.
        """
        for (number, place), row in zip(draws, rows, strict=True):
            taken = self._taken.setdefault(number, _Taken())
            del taken.rows[place:], taken.loads[place:]
            taken.rows.append(row)
            taken.loads.append(load)

    def take(self, number: int, count: int) -> tuple[U16, list[int]]:
        """(uint16[count, hidden], load of each) of a request that ended after `count` tokens; it is forgotten."""
        taken = self._taken.pop(number)
        if len(taken.rows) < count:
            raise ValueError(f"request {number} has {len(taken.rows)} rows for {count} tokens")
        return np.stack(taken.rows[:count]), taken.loads[:count]

    def forget(self, number: int) -> None:
        self._taken.pop(number, None)
