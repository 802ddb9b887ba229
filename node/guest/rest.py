"""Whether a node rests, and why: its owner paused it, its hours are over, or its machine is in use.

Who works asks before each new thing (`over`), and does it within `work`. What is under way when a rest begins has so
many seconds, then it is dropped: nothing of it was promised yet. Once nothing is under way the engine may go (`quiet`).
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from node.changes import Changes

PATIENCE = 60.0
"""Seconds that what is under way may last into a rest."""
PAUSED = "paused"
"""What a node that rests calls its state."""
DOING = "paused: it takes no new work for a while"
"""The same at length, for everybody: why is its owner's affair."""


class GuestRest:
    """One of each node. patience: seconds, where nobody says otherwise."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.changed = Changes()
        self.dropped = 0
        """Works that were cut short."""
        self._whys: dict[str, str] = {}
        self._cut_at = math.inf
        self._under_way: set[trio.CancelScope] = set()

    @property
    def why(self) -> str:
        """In words; empty while it works."""
        return next(iter(self._whys.values()), "")

    @property
    def quiet(self) -> bool:
        """Whether it rests, and nothing is under way any more."""
        return bool(self._whys) and not self._under_way

    def say(self, who: str, why: str, patience: float | None = None) -> None:
        """One reason to rest begins, goes on in other words, or (empty) ends. patience: of this reason."""
        if self._whys.get(who, "") == why:
            return
        began = not self._whys
        self._whys = {name: words for name, words in self._whys.items() if name != who} | ({who: why} if why else {})
        if not self._whys:
            self._cut(math.inf)
        elif why:
            until = trio.current_time() + (self.patience if patience is None else patience)
            # A second reason may shorten what the first one granted, and never adds to it.
            self._cut(until if began else min(until, self._cut_at))
        self.changed.tell()

    def _cut(self, at: float) -> None:
        self._cut_at = at
        for scope in self._under_way:
            scope.deadline = at

    async def over(self) -> None:
        """Returns while the node works."""
        await self.changed.until(lambda: not self._whys)

    @contextmanager
    def work(self) -> Iterator[trio.CancelScope]:
        """Do something that a rest cuts short: `cancelled_caught` of the scope tells."""
        with trio.CancelScope(deadline=self._cut_at) as scope:
            self._under_way.add(scope)
            try:
                yield scope
            finally:
                self._under_way.discard(scope)
                self.dropped += scope.cancel_called
                self.changed.tell()
