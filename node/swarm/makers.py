"""Which of the workers that live make something: who lives and makes nothing has no share in a step.

Pure: knows who lives and who committed to what; nothing of messages or clocks.
"""

from collections.abc import Collection

from node.recent import Recent
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS


class Makers:
    """memory: for so many steps a worker counts that was just met, or has just made something. So neither a node that
    starts, and has heard of nobody's work, nor one that joins is taken for idle."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._last: Recent[Address, int] = Recent(2 * MAX_MEMBERS)

    def made(self, worker: Address, step: int) -> None:
        """It has committed to a file for the policy of `step`."""
        self._last[worker] = max(step, self._last.get(worker, step))

    def count(self, living: Collection[Address], step: int) -> int:
        """How many of the living workers share in what the newest policy needs; all of them, where none would."""
        last = (self._last.setdefault(worker, step) for worker in living)
        return sum(each >= step - self._memory for each in last) or len(living)
