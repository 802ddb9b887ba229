"""Counters of one run that a daemon which starts again goes on with.

Kept in the journal once a second and at the end: `kill -9` costs the counts of a second at most. What must not be lost
at all (promises, files, pay) has tables of its own there.
"""

from collections import Counter

import trio

from node.changes import every
from node.state.journal import Journal


class LifetimeCounters:
    """run: the root of the run that is counted."""

    def __init__(self, journal: Journal, run: bytes) -> None:
        self._journal = journal
        self._run = run
        self._parts: dict[str, Counter[str]] = {}
        self._kept: dict[tuple[str, str], int] = {}

    def part(self, name: str) -> Counter[str]:
        """The counters of one part of the node, to be counted in."""
        return self._parts.setdefault(name, Counter())

    async def load(self) -> None:
        """Go on where the last daemon of this directory ended."""
        for part, name, count in await self._journal.do(self._journal.tallies, self._run):
            self._kept[part, name] = count
            self.part(part)[name] += count

    async def keep(self) -> None:
        """Write what has changed, until cancelled and then once more."""
        try:
            await every(1.0, self.save, at_once=False)
        finally:
            with trio.CancelScope(shield=True):
                await self.save()

    async def save(self) -> None:
        now = {(part, name): n for part, counts in self._parts.items() for name, n in counts.items()}
        changed = [(*place, count) for place, count in now.items() if self._kept.get(place) != count]
        if changed:
            await self._journal.do(self._journal.note_tallies, self._run, changed)
            self._kept = now
