"""Batches in: the learner has batch N as soon as policy N is here (or is about to be) and the groups for it are.

Which files may be used is the ingest's to say, which groups make a batch node.recipe's; staleness is counted from the
policy that made the tokens. What is used up is journaled before the batch is written, so a restart neither repeats nor
loses anything.
"""

from contextlib import suppress

import structlog
import trio

from node.recipe.batch_log import BatchEntry
from node.recipe.pool import Selection, group_id
from node.recipe.stats import describe
from node.services.training.groups import Groups
from node.services.training.leading import Shared
from node.services.training.stating import make_batch
from protocol.errors import IntellectError
from protocol.manifest import FED, decode_composed

log = structlog.get_logger()
AHEAD = 1
"""Steps that the learner may be ahead of what is published: batch K+1 is made while policy K is announced. A batch that
is made sooner would miss the rollouts of the newest policies."""


class Feeding:
    """lost: rollouts of batches that could not be made; again: seconds before other groups are tried after one, doubled
    each time, and at most: a store that fails at once would use up all that wait."""

    def __init__(self, shared: Shared, groups: Groups, again: tuple[float, float] = (5.0, 60.0)) -> None:
        self._again = again
        self._context, self._spool, self._watch = shared.context, shared.spool, shared.watch
        self._groups, self._record, self._evaluations = groups, shared.record, shared.evaluations
        self._timings, self._others, self._leading = shared.timings, shared.others, shared.leading
        self.lost, self._pause = 0, again[0]

    async def run(self) -> None:
        """Until the last batch, or the end of the run."""
        step: int | None = None
        while not self._record.ends:
            told = self._watch.next
            # The disk is asked only where there may be something to do: most of what is told here changes nothing.
            if step is None or not self._waits(step):
                step = await trio.to_thread.run_sync(self._spool.next_batch)
                if step >= self._context.run.spec.recipe.steps:
                    return
                if await (self._make(step) if self._leading.leads(step + 1) else self._others.follow(step)):
                    step = None
                    continue
            with trio.move_on_after(self._others.next_try):
                await told.wait()

    def _waits(self, step: int) -> bool:
        """Whether this trainer, which leads, lacks a policy or groups for a batch."""
        lacks = step > self._record.step + AHEAD or self._groups.ready.missing(step) > 0
        return lacks and self._leading.leads(step + 1)

    async def _make(self, step: int) -> bool:
        """Whether there is a batch more: from fresh files, oldest first."""
        if self._others.apart is not None or step > self._record.step + AHEAD:
            return False
        fed: set[bytes] | None = None
        if self._groups.ready.missing(step) == 0:
            # From manifests on disk, which are read only once there is a batch to order.
            behind, fed = await trio.to_thread.run_sync(lambda: (self._evaluations.behind, self._fed(step)))
            if behind:
                return False
        selection = self._groups.ready.take(step, fed)
        if selection is None:
            await self._record.barren(step, self._groups.ready.barren)
            return False
        await self._hand_over(selection)
        return True

    def _fed(self, step: int) -> set[bytes]:
        """Workers of whom the last batches before this one named a work."""
        found = set[bytes]()
        for at in range(max(step - FED, 0), step):
            with suppress(OSError, IntellectError):  # of a checkpoint that was taken over
                composed = decode_composed(self._spool.works_path(at).read_bytes())
                found.update(work.node for work in composed.works)
        return found

    async def _hand_over(self, selection: Selection) -> None:
        """Journal what is used up, then the batch log, then the batch: a crash in between frees the groups again. What
        cannot be made again from its names is not learnt from."""
        step, ready = selection.step, self._groups.ready
        try:
            composed, batch = await make_batch(self._context, selection)
        except IntellectError as error:
            log.error("batch.not_made", step=step, why=error.why)
            self.lost += sum(len(group.rows) for group in selection.settled)
            await trio.sleep(self._pause)
            self._pause = min(2 * self._pause, self._again[1])
            return
        self._pause = self._again[0]
        await self._groups.settle([group.key for group in selection.settled], step)
        stats = describe(selection, waiting=ready.rollouts, stale=ready.stale_rollouts)
        stats["file_seconds"] = self._timings.means(selection.groups)
        entry = BatchEntry(step, stats, [group_id(group) for group in selection.groups])
        await self._record.batch(entry, composed, batch)
        log.info("batch.written", step=step, groups=len(selection.groups), flat=stats["groups_flat"])
