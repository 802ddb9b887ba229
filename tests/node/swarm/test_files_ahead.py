"""The age of what is learnt from, under a clock of numbers: a learner, its pool's workers, and what is on its way."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean

import pytest

from node.swarm.files_ahead import FilesAhead, WorkFate
from node.swarm.register import WorkId

BATCH, WORKERS, MOST = 4, 2, 4


@dataclass
class Pool:
    """step: seconds of the learner for a batch; file: of a worker for a file; verdict: from a file to its values;
    extra: files of the first policy beyond what is asked for; begins: the age with which the workers begin."""

    step: float
    file: float
    verdict: float
    extra: int = 0
    begins: int = 1
    fates: dict[WorkId, WorkFate] = field(default_factory=dict)
    ages: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number, self._now = count(), 0.0
        self._accepted: Counter[int] = Counter()
        self._names: dict[int, list[WorkId]] = {}
        self._policy, self._batches, self._busy, self._free_at = -1, 0, False, 0.0
        self._made: dict[int, Counter[int]] = {}
        self.workers = [FilesAhead(MOST, lambda work: self.fates[work]) for _ in range(WORKERS)]
        for one in self.workers:
            one.age = self.begins
        self._at_work = [False] * WORKERS

    def run(self, steps: int) -> None:
        self._publish()
        for _ in range(self.extra):
            self._commit(0)
        while self._policy < steps and self._events:
            self._now, _, then = heapq.heappop(self._events)
            then()

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._number), then))

    def _publish(self) -> None:
        self._policy += 1
        self._free_at = self._now
        self._made[self._policy] = Counter()
        for place, one in enumerate(self.workers):
            one.arrived(self._policy, BATCH, self._policy - 1)
            self._go_on(place)
        self._busy = False
        self._learn()

    def _go_on(self, place: int) -> None:
        step = self._policy
        if not self._at_work[place] and self._made[step][place] < self.workers[place].share(WORKERS, place):
            self._made[step][place] += 1
            self._at_work[place] = True
            self._after(self.file, lambda: self._done(place, step))

    def _done(self, place: int, step: int) -> None:
        self._at_work[place] = False
        self._commit(step)
        self._go_on(place)

    def _commit(self, step: int) -> None:
        work = WorkId(next(self._number).to_bytes(32))
        self.fates[work] = WorkFate.OPEN
        self._names.setdefault(step, []).append(work)
        for one in self.workers:
            one.made(work, step)
        self._after(self.verdict, lambda: self._accept(work, step))

    def _accept(self, work: WorkId, step: int) -> None:
        self.fates[work] = WorkFate.ACCEPTED
        self._accepted[step] += 1
        self._learn()

    def _learn(self) -> None:
        fresh = {step: many for step, many in self._accepted.items() if self._batches - step <= MOST and many}
        if self._busy or sum(fresh.values()) < BATCH or self._batches > self._policy:
            return
        self._busy = True
        used = [step for step in sorted(fresh, reverse=True) for _ in range(fresh[step])][:BATCH]
        for step in used:
            self._accepted[step] -= 1
            ready = [work for work in self._names[step] if self.fates[work] is WorkFate.ACCEPTED]
            self.fates[ready[0]] = WorkFate.GONE
        self.ages.append(fmean(self._batches - step for step in used))
        self.waited.append(self._now - self._free_at)
        self._batches += 1
        self._after(self.step, self._publish)


STARTS = [(extra, begins) for extra in (0, 1, 3, 6, 11) for begins in (1, 2, 3)]


def ends(pool: Pool) -> tuple[float, float]:
    """Mean age, and seconds for which the learner waited at a step, when it has settled."""
    pool.run(160)
    return fmean(pool.ages[-40:]), fmean(pool.waited[-40:])


@pytest.mark.parametrize(
    ("step", "file", "verdict", "age"),
    [
        (10.0, 1.0, 2.0, 1),  # a policy's files are there long before the next one
        (3.0, 1.0, 2.5, 2),  # they take longer than a step
        (3.0, 1.0, 5.5, 3),
        (3.0, 2.5, 1.0, 1),  # workers that are never idle: more in hand would not make them faster
    ],
)
def test_from_any_start_the_age_settles_at_the_least_that_does_not_make_the_learner_wait(
    step: float, file: float, verdict: float, age: int
) -> None:
    found = [ends(Pool(step, file, verdict, extra, begins)) for extra, begins in STARTS]
    assert {round(one, 2) for one, _ in found} == {age}, found
    enough = WORKERS * step >= BATCH * file
    assert all((waited == 0.0) == enough for _, waited in found), found


def test_what_was_refused_or_never_came_is_made_good_at_the_next_policy() -> None:
    fates: dict[WorkId, WorkFate] = {}
    ahead = FilesAhead(2, lambda work: fates[work])
    ahead.arrived(0, BATCH, -1)
    assert (ahead.needed, [ahead.share(3, place) for place in range(3)]) == (8, [3, 3, 2])
    assert ahead.share(9, 8) == 1, "more workers than files"
    for number in range(8):
        work = WorkId(bytes([number]) * 32)
        fates[work] = WorkFate.GONE if number < 2 else WorkFate.ACCEPTED
        ahead.made(work, 0)
    ahead.arrived(1, BATCH, -1)  # before the manifest of batch 0 was read
    assert ahead.needed == 6
    ahead.arrived(2, BATCH, 1)  # nobody has made any of them yet, and they may come
    assert ahead.needed == 0
    ahead.arrived(3, BATCH, 2)  # none came, and what there was is too old
    assert ahead.needed == 8


def test_of_a_run_that_allows_no_age_each_policy_has_its_own_batch() -> None:
    ahead = FilesAhead(0, lambda _: WorkFate.ACCEPTED)
    for step in range(3):
        ahead.arrived(step, BATCH, step - 1)
        assert (ahead.needed, ahead.age) == (BATCH, 0)
        ahead.made(WorkId(bytes([step]) * 32), step)  # of four, and the others come too late for anybody
