"""How many files a pool makes of a policy, so that the age of what is learnt from is chosen, and not found; who shares
in them, and what they lack once nobody commits to any more: those who made their share divide it.

A batch takes as many files as are made of a policy. So what is in hand, made and not yet learnt from, stays for ever
what it once was, and its age with it: half a batch too much at the start is half a step of age for the whole run. Here
it is brought to one amount at each policy, from wherever it was: a batch, and one more for each step of age.

The least age at which the learner does not wait is the one that stays. With an age of one it waits where a policy's
files take longer, from its arrival to their verdicts, than a step of the learner: then they are made, and not accepted,
when the next policy comes. With an age of two or more one less would do where even the newest policy's files are
accepted by then. Of the two cases never both hold, whatever the times are. What decides stands in everybody's books.

Pure: the register, the votes and the manifests are asked by whoever calls, and the clock is an argument.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection
from enum import Enum

from node.bounded_dict import BoundedDict
from node.swarm.register import WorkId
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS


class WorkFate(Enum):
    """What became of a work: no verdict yet; accepted, and named by no batch; used or refused."""

    OPEN = 0
    ACCEPTED = 1
    GONE = 2


class FilesAhead:
    """As one worker sees its pool. most: the age, in steps, beyond which nothing is learnt from; fate: None where
    nobody reads what batches are made of. Then an age of one is begun with, and left to itself."""

    def __init__(self, most: int, fate: Callable[[WorkId], WorkFate] | None) -> None:
        self.age = min(1, most)
        # The last step is for what comes late: at the greatest age, each file that does would be lost.
        self._oldest = max(min(1, most), most - 1)
        self.needed = 0
        """Files of the newest policy that all workers make together."""
        self._most, self._fate = most, fate
        self._first = self._step = -1
        self._batch = 0.0
        self._short: list[bool] = []
        self._plenty: list[bool] = []
        self._works: dict[int, dict[WorkId, None]] = {}

    def made(self, work: WorkId, step: int) -> None:
        """Somebody has committed to a file for the policy of `step`."""
        # What was before this worker met its first policy may be used up: it has read no manifest of that time.
        if step >= self._first:
            self._works.setdefault(step, {})[work] = None

    def arrived(self, step: int, batch: float, read: int) -> None:
        """The policy of `step` is here. batch: files that a batch takes; read: the newest step of which it is known
        what its batch named, -1 before the first."""
        self._batch, begins = batch, self._first < 0
        self._first = step if begins else self._first
        # What was asked of the policy before may be under way still. Whoever makes nothing of it is seen at the next.
        fresh = step - self._step <= self._most
        before = max(self.needed - len(self._works.get(self._step, ())), 0) if fresh else 0
        self._step = step
        if self._fate is None:
            self.needed = _whole(batch * (2 if self._most and begins else 1))
            return
        oldest = max(step - self._most, self._first)
        self._works = {at: works for at, works in self._works.items() if at >= oldest}
        fates = [self._fate(work) for works in self._works.values() for work in works]
        # A policy says that the batch before it was taken, also before its manifest is here.
        taken = batch * max(step - 1 - max(read, self._first - 1), 0)
        accepted = fates.count(WorkFate.ACCEPTED) - taken
        made = accepted + fates.count(WorkFate.OPEN)
        if not begins:
            self._choose(accepted / batch, made / batch)
        self.needed = min(max(_whole((1 + self.age) * batch - made - before), 0), _whole(2 * batch))

    def _choose(self, accepted: float, made: float) -> None:
        """accepted, made: batches of files that are in hand when a policy comes."""
        # What was asked for is made, and waits for its verdicts. Of workers that are never done, more would not be had.
        self._short.append(accepted < 1 and made >= self.age)
        # One step less would do, or so much is not made anyway.
        self._plenty.append(accepted >= 2 or made < self.age - 0.5)
        looks = 8  # policies that are looked at together
        if len(self._short) < looks:
            return
        # Policies at which the learner lacks files until one step more is in hand.
        short = 2
        # Policies at which one step less would have done until it is. Where files are slow batches come in pairs, and
        # every second one is not waited for.
        plenty = 7
        if sum(self._short) >= short and self.age < self._oldest:
            self.age += 1
        elif sum(self._plenty) >= plenty and self.age > 1:
            self.age -= 1
        self._short.clear()
        self._plenty.clear()

    def share(self, workers: int, place: int) -> int:
        """Of one worker of so many. place: of it among them; who makes one more changes with each policy. Where they
        are more than a batch has files each makes one all the same, and batches are chosen from plenty."""
        if workers > self._batch:
            return max(-(-self.needed // workers), 1)
        each, over = divmod(self.needed, workers)
        return each + ((place + self._step) % workers < over)


def _whole(files: float) -> int:
    return math.ceil(files - 1e-9)


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
