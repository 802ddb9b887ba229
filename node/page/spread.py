"""How policies spread: how long after the first member each other one held them, as heartbeats tell. Pure.

Heartbeats name the newest policy only. Who skips some had them by then at the latest. What a member held when it was
first heard of says nothing about how policies travel.
"""

from collections.abc import Iterable

import msgspec

KEPT = 12
"""Policies."""
SPREAD_COLUMNS = ("step", "at", "held", "live", "seconds")
SHOWN = 16
"""Times of one policy: beyond that, as many quantiles."""


class Spread(msgspec.Struct):
    """One policy. at: unix seconds at which the first member held it; seconds: of each member, by its address."""

    step: int
    at: float
    seconds: dict[str, float]


class SpreadBook:
    """The newest policies."""

    def __init__(self) -> None:
        self._policies: dict[int, Spread] = {}
        self._had: dict[str, int] = {}

    def feed(self, now: float, holders: Iterable[tuple[str, int]]) -> None:
        """holders: (member, step of its newest policy, -1 for none) at `now`, unix seconds."""
        for member, step in holders:
            had = self._had.get(member)
            if had is not None and step > had:
                self._note(member, max(had + 1, step - KEPT + 1), step, now)
            self._had[member] = step if had is None else max(had, step)
        for step in sorted(self._policies)[:-KEPT]:
            del self._policies[step]

    def _note(self, member: str, first: int, last: int, now: float) -> None:
        newest = max(self._policies, default=-1)
        for step in range(max(first, newest - KEPT + 1), last + 1):
            spread = self._policies.get(step)
            if spread is None:
                spread = self._policies[step] = Spread(step, now, {})
            spread.seconds[member] = round(now - spread.at, 1)

    def rows(self, live: int) -> dict[int, tuple[int, float, int, int, list[float]]]:
        """By step: (step, at, members that hold it, members alive, their times ascending)."""
        return {
            step: (step, round(spread.at, 1), len(spread.seconds), live, quantiles(sorted(spread.seconds.values())))
            for step, spread in self._policies.items()
        }


def quantiles(ascending: list[float], most: int = SHOWN) -> list[float]:
    """All of them, or `most` evenly chosen ones with the first and the last."""
    last = len(ascending) - 1
    return ascending if last < most else [ascending[round(i * last / (most - 1))] for i in range(most)]
