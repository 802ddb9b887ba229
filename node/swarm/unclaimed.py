"""What the newest policy's files lack once nobody commits to any more: those who made their share divide it.

Pure: knows who committed to how many files; nothing of messages, and the clock is an argument.
"""

import math
from collections import Counter
from collections.abc import Collection

from node.bounded_dict import BoundedDict
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS


class UnclaimedShare:
    """Counts the files of one policy, the newest that anybody committed to."""

    def __init__(self) -> None:
        self._step = -1
        self._files: Counter[Address] = Counter()
        self._last = 0.0
        self._taken = 0

    def began(self, step: int, now: float) -> None:
        """The policy of `step` is here: whoever works has worked on it from now on."""
        self._turn(step)
        self._last = now

    def made(self, worker: Address, step: int, now: float) -> None:
        """It has committed to a file for the policy of `step`."""
        self._turn(step)
        if step == self._step:
            self._files[worker] += 1
            self._last = now

    def _turn(self, step: int) -> None:
        if step > self._step:
            self._step, self._taken = step, 0
            self._files.clear()

    def taken(self, needed: int, quiet: float, now: float) -> int:
        """How many files beyond its share a worker makes that has made it. needed: of all together; quiet: seconds
        without a file of anybody's after which no more are to be expected. Who hears of no file, not even of its own,
        cannot know."""
        missing = needed - self._files.total()
        if self._files and missing > 0 and self.quiet_for(now) >= quiet:
            self._taken += math.ceil(missing / len(self._files))
            # What was divided takes time to make: only another quiet time divides what is missing still.
            self._last = now
        return self._taken

    def quiet_for(self, now: float) -> float:
        """Seconds since the last file, since the policy came or since the last division."""
        return now - self._last


class ActiveWorkers:
    """Which of the workers that live make something: who lives and makes nothing has no share in a step.

    memory: for so many steps a worker counts that was just met, or has just made something. So neither a node that
    starts, and has heard of nobody's work, nor one that joins is taken for idle."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._last: BoundedDict[Address, int] = BoundedDict(2 * MAX_MEMBERS)

    def made(self, worker: Address, step: int) -> None:
        """It has committed to a file for the policy of `step`."""
        self._last[worker] = max(step, self._last.get(worker, step))

    def among(self, living: Collection[Address], step: int) -> list[Address]:
        """Those of the living workers that share in what the newest policy needs, in one order everywhere; all of them,
        where none would."""
        active = [worker for worker in living if self._last.setdefault(worker, step) >= step - self._memory]
        return sorted(active or living)
