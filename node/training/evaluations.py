"""Which policies of a run are evaluated, and which of them still wait for it. Reads the spool; evaluates nothing."""

from node.training.spool import Spool
from protocol.run import RunSpec


class Evaluations:
    """Of one run on one spool."""

    def __init__(self, spool: Spool, run: RunSpec) -> None:
        self._spool = spool
        self._every, self._last = run.evaluation.every, run.recipe.steps
        self._next = 0

    def due(self, step: int) -> bool:
        """Every so many steps, and the run's last policy."""
        return step % self._every == 0 or step == self._last

    def settled(self, step: int) -> bool:
        """Whether its evaluation is there, or was not asked for, or cannot be had any more."""
        there = self._spool.evaluation_path(step).exists()
        return not self.due(step) or there or self._lost(step) or self._spool.was_skipped(step)

    def complete(self, step: int) -> bool:
        """Whether all that there will ever be of a step is there."""
        return self._spool.is_complete(step) and self.settled(step)

    def _lost(self, step: int) -> bool:
        """Published, and its image deleted: by hand, or by a program that evaluated before it published."""
        return self._spool.is_complete(step) and not self._spool.policy_path(step).exists()

    def next(self) -> int | None:
        """The oldest step that has to be evaluated still, published or not; None if all are."""
        # What another trainer decides anew is cut, perhaps by another process: then its evaluations are due again.
        found = self._next
        due = (found - 1) // self._every * self._every
        while found and not self.settled(max(due, 0)):
            found, due = max(due, 0), due - self._every
        while found <= self._last and self.settled(found):
            found += 1
        self._next = found  # in one assignment: threads ask, too
        return found if found <= self._last else None

    def waiting(self) -> list[int]:
        """Published steps whose evaluation is due and not there."""
        first = self.next()
        if first is None:
            return []
        newest = self._spool.newest_step()
        return [step for step in range(first, newest + 1) if not self.settled(step)]

    @property
    def behind(self) -> bool:
        """Whether so many wait that training should wait for them."""
        # Policies that may wait for their evaluation before the next batch is held back: each keeps an image on the
        # disk. To leave evaluations out instead would make the curve depend on how fast the machine is.
        return len(self.waiting()) > 4
