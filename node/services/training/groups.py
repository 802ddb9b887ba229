"""Verified groups on their way to a batch: with judges, with the teacher, or ready; and which of them are used up.

Used up is what trained a step, here or at the leader that is followed. The journal knows it over a restart, so that no
group is learnt from twice.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from node.recipe.label_queue import LabelQueue
from node.recipe.pool import Group, Key, RolloutPool
from node.recipe.teacher_queue import TeacherQueue
from node.services.context import Context, Rate
from node.state.journal import Journal
from node.swarm.facts import WorkId
from protocol.lots import unpack_groups
from protocol.manifest import ComposedBatch


class UsedUp:
    """Groups that were learnt from, while they are fresh enough to be taken once more. kept: steps."""

    def __init__(self, journal: Journal, kept: int) -> None:
        self._journal, self._kept = journal, kept
        self._steps: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._steps

    def __iter__(self) -> Iterator[Key]:
        return iter(self._steps)

    async def recall(self, first: int) -> None:
        """What the journal has of `first` and later steps, and nothing else."""
        found = await self._journal.do(self._journal.used.consumed, max(first, 0))
        self._steps = {(name[:-4], int.from_bytes(name[-4:])): step for name, step in found.items()}

    async def use(self, keys: Sequence[Key], step: int) -> None:
        await self._journal.do(self._journal.used.consume, [_name(key) for key in keys], step)
        self.note(keys, step)

    def note(self, keys: Iterable[Key], step: int) -> None:
        """Known from elsewhere."""
        self._steps |= dict.fromkeys(keys, step)
        # names of all steps would be GBs in a long run; a group that is staler is taken for none whatever its name
        self._steps = {key: at for key, at in self._steps.items() if at >= step - self._kept}


class Groups:
    """Of one trainer. next_batch: the first step without a batch; changed: hears of groups that became ready; kept:
    steps for which used up groups are remembered, None for as many as they are fresh."""

    def __init__(
        self, context: Context, next_batch: Callable[[], int], changed: Callable[[], object], kept: int | None = None
    ) -> None:
        spec = context.run.spec
        self._next_batch, self._changed = next_batch, changed
        self._most = spec.recipe.max_staleness
        self._per_file = spec.rollout.prompts_per_file
        self._policies, self._own_pool, self._journal = context.state.policies, context.pool, context.journal
        self.ready = RolloutPool(spec)
        self.label_queue = LabelQueue(spec, self.fresh, self.take_in)
        self.teacher_queue = TeacherQueue(spec, self.fresh, self._take_taught)
        self.used = UsedUp(context.journal, self._most if kept is None else kept)
        self.rate = Rate(30.0, context.clock.monotonic)

    def fresh(self, policy_step: int) -> bool:
        """Whether the next batch may learn from groups of a policy."""
        return self._next_batch() - policy_step <= self._most

    async def recall(self) -> set[WorkId]:
        """After a restart, or a term that took steps back: which groups are used up. The works of those that are free
        again, since the batch that they were journaled for was never written, or is no more."""
        first = self._next_batch()
        freed = await self._journal.do(self._journal.used.forget_consumed, first)
        await self.used.recall(first - self._most)
        return {name[:-4] for name in freed}

    def take_in(self, groups: list[Group]) -> None:
        """Accepted groups: ready, or to the teacher first."""
        # After a restart the ingest takes in files again whose groups have trained a step.
        unused = [group for group in groups if group.key not in self.used]
        (self.teacher_queue.put if self.teacher_queue.wanted else self._gather)(unused)

    def _take_taught(self, groups: list[Group]) -> None:
        """As the ingest does, since a term may have taken their policy back meanwhile."""
        orphan = self._policies.is_orphan
        self._gather([one for one in groups if one.origin and not orphan(one.origin.commitment.policy_root)])

    def _gather(self, groups: list[Group]) -> None:
        self.ready.add(group for group in groups if group.key not in self.used)
        self.rate.add(sum(sample.length for group in groups for sample in group.samples))
        self._changed()

    async def settle(self, keys: Sequence[Key], step: int) -> None:
        """`step` has learnt from these, or has found nothing to learn in them."""
        self.ready.settle(keys)
        await self.used.use(keys, step)

    async def settle_batch(self, composed: ComposedBatch) -> None:
        """What the leader used is used here too, or this trainer would train on it again as soon as it leads."""
        settled = list[Key]()
        for work in composed.works:
            name = work.name(self._own_pool)
            if work.judged:
                self._ask_nobody(name)
            for bitmap in (work.used, work.flat):  # those without signal included
                settled += [(name, group) for group in unpack_groups(bitmap, self._per_file) or ()]
        await self.settle(settled, composed.step)

    def forget(self, work: WorkId) -> None:
        """It is rejected after all."""
        self.ready.forget(work)
        self._ask_nobody(work)

    def _ask_nobody(self, work: WorkId) -> None:
        self.label_queue.forget(work)
        self.teacher_queue.forget(work)

    def forget_orphans(self) -> None:
        """What was made with policies that a term has taken back."""
        self.ready.forget_made_with(self._policies.is_orphan)

    def status(self) -> dict[str, Any]:
        return {
            "queued_rollouts": self.ready.rollouts,
            "tokens_per_second": round(self.rate.per_second, 1),
            "label_queue": {"files": len(self.label_queue), **self.label_queue.counts},
            "teacher_queue": {"files": len(self.teacher_queue), **self.teacher_queue.counts},
        }


def _name(key: Key) -> bytes:
    """What the journal calls a group: its work's id (at a desk its file's root) and its number."""
    root, number = key
    return root + number.to_bytes(4, "big")
