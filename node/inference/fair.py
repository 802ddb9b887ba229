"""Whose turn it is on an engine: kinds of work, each with a weight, and none waits for ever. Pure.

Start-time fair queueing: what a kind of work has used, divided by its weight, is its clock; whose clock is behind is
next. Nobody saves up: what comes back from idleness starts at the clock of what is at work (Goyal, Vin and Cheng 1996).
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

Share = Literal["rollout", "verdict", "evaluation", "task"]
WEIGHTS: Mapping[Share, float] = {"rollout": 6.0, "verdict": 4.0, "evaluation": 3.0, "task": 2.0}
"""Shares of an engine's time where all want it; of rollouts and tasks alone, tasks get a quarter."""


class FairClock:
    """The clocks of all kinds of work. used: seconds that each has had."""

    def __init__(self, weights: Mapping[Share, float] = WEIGHTS) -> None:
        self._weights = weights
        self._clocks: dict[Share, float] = dict.fromkeys(weights, 0.0)
        self._now = 0.0
        self._active: frozenset[Share] = frozenset()
        self.used: dict[Share, float] = dict.fromkeys(weights, 0.0)

    def charge(self, share: Share, seconds: float) -> None:
        self.used[share] += seconds
        self._clocks[share] += seconds / self._weights[share]

    def order(self, wanting: Collection[Share]) -> list[Share]:
        """Those that want the engine now, the next one first."""
        for share in frozenset(wanting) - self._active:
            self._clocks[share] = max(self._clocks[share], self._now)
        self._active = frozenset(wanting)
        ordered = sorted(wanting, key=lambda share: (self._clocks[share], -self._weights[share]))
        if ordered:
            self._now = max(self._now, self._clocks[ordered[0]])
        return ordered


def emptiest(holding: Mapping[Share, int], wanting: Iterable[Share]) -> Share:
    """Who gets the next place of several that are in use at a time. holding: places that each has now."""
    return min(wanting, key=lambda share: ((holding.get(share, 0) + 1) / WEIGHTS[share], -WEIGHTS[share]))
