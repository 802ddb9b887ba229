"""A trainer whose state is older than what its key has stated: it was restored from a backup.

The journal knows by now what the pool has heard (`node.services.continuity`). A second statement about a step would be
a lie, so until its state has come that far this trainer is the standby of its former self: it replays what it stated,
or goes on from a checkpoint at or after that. Where neither can be had, a pool with a chair gets a new term, from the
step that is here: its lease is left to run out. Without one the run cannot go on from here, and the trainer says so.
"""

from collections.abc import Callable

import structlog
import trio

from node.services.context import Context
from node.training.errors import TrainingError
from node.training.spool import Spool

log = structlog.get_logger()
REPEATED = 64
"""Own announcements that are said again, so that they are known here: a take-over takes no more back."""


class Returning:
    """One trainer's."""

    def __init__(self, context: Context, spool: Spool) -> None:
        self._context = context
        self._spool = spool
        self.stated = -1
        """The newest step that its key has stated and that is not here; -1: nothing is behind."""
        self._term = 0
        self._from = -1
        self.gives_up = False
        """Whether its term can only end: it is not held any more."""

    async def tick(self) -> None:
        """Before anything is made here."""
        journal = self._context.journal
        slot = await journal.do(journal.newest_slot, "policy")
        if slot is None:
            return
        step, term = int.from_bytes(slot[:8]), int.from_bytes(slot[8:])
        self._from = self._spool.newest_step()
        if step <= self._from or not self._counts(step, term):
            return
        self.stated, self._term = step, term
        log.warning("trainer.behind_itself", step=self._from, stated=step, term=term)
        text = f"the state here is of step {self._from}, and this key has stated step {step}: catching up with it"
        self._context.progress.trouble(text)
        for raw in await journal.do(journal.last_said, "policy", REPEATED):
            await self._context.board.post_raw(raw)

    def covers(self, step: int) -> bool:
        """Whether policy `step` was stated before, and is to come out as it was."""
        return self._from < step <= self.stated and self._counts(step, self._term)

    def _counts(self, step: int, term: int) -> bool:
        """Whether a later term has not decided otherwise."""
        return self._context.membership.terms.of(step).number == term

    async def run(self, nothing_leads_on: Callable[[], bool]) -> None:
        """Until the state has caught up, or a term decides anew. Raises TrainingError where nothing can."""
        at, in_vain = self._spool.newest_step(), 0
        while self.covers(self.stated) and (newest := self._spool.newest_step()) < self.stated:
            # Counted, not timed: what could not be had is offered again now and then.
            at, in_vain = newest, (0 if newest > at else in_vain + nothing_leads_on())
            # Looks at which nothing led on from the newest step, before that is believed.
            if in_vain >= 30 and not self.gives_up:
                self._end()
            await trio.sleep(1.0)

    def _end(self) -> None:
        step = self._spool.newest_step()
        what = f"the state here is of step {step}, and this key has stated step {self.stated}"
        if self._context.membership.terms.seated:
            self.gives_up = True
            self._context.progress.trouble(f"{what}: its term is left to end, and a new one goes on from step {step}")
            return
        raise TrainingError(
            "this trainer cannot go on from its state",
            f"{what}; the steps between them can be neither replayed nor taken over, and a second statement about them "
            "would be a lie",
            f"put back a copy of spool/ that is of step {self.stated} or later, or open a new pool for the run",
        )
