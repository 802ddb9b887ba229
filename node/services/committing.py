"""From a file that the engine made to a promise that everybody hears: stored, signed, journaled, posted; and what
becomes of it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import trio

from node.chain.errors import tokens
from node.services.context import Context
from node.state.made import WorkDone
from node.swarm.facts import WorkTouched
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.checks import reason_name
from protocol.messages import RolloutCommitted
from protocol.statements import WorkCommitment, sign, work_id

log = structlog.get_logger()
REPEATED = 16
"""Own commitments that a start says again."""


def slot_name(root: bytes, index: int) -> bytes:
    """What the journal calls a commitment's place. root: of the policy, or the id of the task."""
    return root + index.to_bytes(8, "big")


async def commit(
    context: Context,
    root: bytes,
    index: int,
    path: Path,
    units: int,
    step: int | None = None,
    round_: int | None = None,
    then: Callable[[], object] = lambda: None,
) -> WorkCommitment:
    """Commit to a file under (root, index). units: of work in it; step: of the policy; None for a task's; round_: that
    it is a contribution to; then: is called in the journal's thread once the journal has it. Raises StateError where
    the journal holds another promise for this place, or the place lies under the fence."""
    # In the store first: whoever hears of the commitment asks for the file at once.
    info = await context.blobs.add(path)
    path.unlink(missing_ok=True)  # noqa: ASYNC240 - one small local file
    epoch = context.time.epoch()
    commitment = WorkCommitment(context.pool, context.key.address, root, index, info.root, units, epoch)
    signature = sign(context.key, context.domain, commitment)
    message = RolloutCommitted(pool=context.pool, commitment=commitment, signature=signature, size=info.size)
    raw = context.board.sealed(message)
    place, file = (slot_name(root, index), raw), (info.root, root, index, units, context.clock.wall())
    of = (context.run.root, step, epoch, work_id(commitment))
    # Before it is said: a second promise for the same place would cost the stake.
    about: dict[str, Any] = {"task": root} if step is None else {"step": step if round_ is None else round_}

    def note() -> None:
        context.journal.commit_file(*place, *file, *of)
        then()

    await context.journal.promise(note, **about)
    await context.board.post_raw(raw)
    return commitment


class OwnWorks:
    """What this node committed to, and what became of it: done, as its journal has it for the whole run."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._journal = context.journal
        self.done = WorkDone({}, Counter(), 0)
        self._made = b"", -1, 0
        """For which policy, at how many slots of the journal, and how many."""

    async def count(self) -> None:
        self.done = await self._journal.do(self._read)

    async def made(self, policy_root: bytes) -> int:
        """Files that this node committed to for a policy."""
        if self._made[:2] != (policy_root, self._journal.slots):
            await self._journal.do(self.note, policy_root)
        return self._made[2]

    def note(self, policy_root: bytes) -> None:
        """Count what was done, and those for a policy. In the journal's thread."""
        self._made = policy_root, self._journal.slots, self._journal.count_said("commitment", policy_root)
        self.done = self._read()

    def _read(self) -> WorkDone:
        return self._journal.files.work_done(self._context.run.root)

    async def repeat(self) -> None:
        """After a restart: say again what was committed last; the files are still in the store."""
        # The crash may have come between the journal and the gossip; who has them already drops them.
        for raw in await self._journal.do(self._journal.last_said, "commitment", REPEATED):
            await self._context.board.post_raw(raw)

    async def follow(self, state: Callable[[WorkId], FileState]) -> None:
        """Tell of each verdict on a work of ours until cancelled; a dispute may change one once more. state: what the
        pool thinks of a work."""
        register, own = self._context.state.register, self._context.key.address
        told = self._context.facts.subscribe(WorkTouched)
        known: dict[WorkId, FileState] = {}
        while True:
            # Seconds until they are looked at though nobody spoke.
            with trio.move_on_after(5.0):  # some things only time decides
                work = register.get((await told.receive()).work)
                if work is not None and work.node == own:
                    self._context.state.register.was_delivered(work)  # it lies in our own store
                    known.setdefault(work.id, FileState.OPEN)
            for id, before in list(known.items()):
                work, now = register.get(id), state(id)
                if work is None:
                    del known[id]  # it is closed
                elif now is not before and now in (FileState.ACCEPTED, FileState.REJECTED):
                    known[id] = now
                    await self._judged(work, now is FileState.ACCEPTED)

    async def _judged(self, work: RegisteredWork, accepted: bool) -> None:
        """The pool has decided on a work of ours, or otherwise than before: its owner is told, with the reasons that
        validators gave."""
        root, units, progress = work.commitment.file_root, work.commitment.units, self._context.progress
        reasons: list[str] = []
        if accepted:
            price = self._context.price
            worth = f", worth {tokens(units * price)} tokens" if price else ""
            progress.contributed("accepted", f"{work.title} was accepted: {units:,} units{worth}")
        else:
            votes = self._context.state.vote_set.rejecting(work.id).values()
            reasons = sorted({reason_name(vote.verdict.reason) for vote in votes} or {"disputed"})
            details = sorted({vote.detail for vote in votes if vote.detail})
            why = ", ".join(reasons) + (f" ({details[0]})" if details else "")
            progress.tell("refused", f"{work.title}: {why}")
            log.warning("work.refused", root=root.hex(), reasons=reasons, details=details[:3])

        def note() -> WorkDone:
            if reasons:
                self._journal.files.note_reasons(root, ", ".join(reasons))
            self._journal.files.judge_file(root, "accepted" if accepted else "rejected")
            return self._read()

        self.done = await self._journal.do(note)
