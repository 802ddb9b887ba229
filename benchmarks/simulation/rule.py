"""How a pool decides whom it looks at, what trains, and what is paid: the rule that is planned, and not yet built.

Pure: what was seen goes in, what to do comes out. `pool.py` plays it with a thousand workers; the product's own rule
(`protocol.audit`) promises a power per worker, which costs more the more workers there are. Arrays have a number for
each worker.
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
B = NDArray[np.bool_]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """whole: groups of a newcomer that are all looked at, and that train only where they were; trusted: clean looked-at
    groups from which the floor is all that is drawn; half_life: policies in which these count half; looks: for the
    whole pool and policy, at least `least` of all groups; again: of looked-at groups that somebody else looks at once
    more; cut: what the refused share of looked-at groups takes off a day's pay.

    The alarm. ring: trusted workers refused in one policy that ring it; loudest: by how much the floor rises at most,
    reached where `loud_at` of the trusted workers that were looked at are refused; clears: clean looked-at groups since
    it began, with which a worker's other groups train again; quiet: policies without a ring that end it."""

    whole: int = 24
    trusted: int = 200
    half_life: float = 14 * 288
    looks: int = 160
    least: float = 0.005
    again: float = 1 / 24
    cut: float = 10.0
    ring: int = 3
    loudest: float = 10.0
    loud_at: float = 0.1
    clears: int = 1
    quiet: int = 3

    def floor(self, groups: int) -> float:
        """The share of the groups of whom one trusts that is looked at. groups: of the whole pool in a policy."""
        return min(1.0, max(self.looks / max(groups, 1), self.least))

    def share(self, clean: F64, whole: I64, floor: float) -> F64:
        """The share of each worker's groups to look at. whole: groups that it owes before any trains unlooked-at."""
        earned = self.whole / (self.whole + clean)
        return np.where(whole > 0, 1.0, np.where(clean < self.trusted, np.maximum(earned, floor), floor))

    @property
    def kept(self) -> float:
        """What a policy leaves of the clean groups on record."""
        return 0.5 ** (1 / self.half_life)

    def paid(self, units: F64, refused: I64, looked: I64) -> F64:
        """Of a day's units: what the looks say that they were worth."""
        return units * np.maximum(0.0, 1.0 - self.cut * refused / np.maximum(looked, 1))


class Alarm:
    """Whether trusted workers turn. since: the policy that rang it, None while all is quiet; factor: of the floor."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._last = 0
        self.since: int | None = None
        self.factor = 1.0

    def heard(self, policy: int, refused: int, looked: int) -> None:
        """What became of the trusted workers that were looked at in a policy. Before its batch is made: what rings
        holds for this batch, too."""
        rule = self._rule
        if refused >= rule.ring:
            self.since = policy if self.since is None else self.since
            self._last = policy
            self.factor = 1.0 + (rule.loudest - 1.0) * min(1.0, refused / max(looked, 1) / rule.loud_at)
        elif self.since is not None and policy - self._last >= rule.quiet:
            self.since, self.factor = None, 1.0

    def trains_whole(self, whole: I64, clean_since: I64) -> B:
        """Whose groups train without a look at each. clean_since: looked-at groups of each since the alarm began, none
        of them refused."""
        known = whole <= 0
        return known if self.since is None else known & (clean_since >= self._rule.clears)
