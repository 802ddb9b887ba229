"""Verdicts out: journaled, sealed, and shown once others cannot copy them. The last third of a verdict.

What this node says of a work is said once: the journal holds it before anybody hears it. A seal is told first; the
verdict behind it follows when every living validator has sealed its own, or SEAL_SECONDS after the quorum has. Before
that nothing could be decided, and a slow validator would lose its pay to whoever is fast. One that has sealed none of
the last files in that time is not waited for until it does: its silence would cost each file those seconds.
"""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
import trio
from blake3 import blake3

from node.changes import Bell
from node.inference.wire import Inspected
from node.services.context import Context
from node.services.judging.lots import Lot
from node.swarm.facts import WorkSealed, WorkTouched
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.seals import SEAL_SECONDS
from protocol.checks import Fault
from protocol.identity import Address
from protocol.lots import pack_groups
from protocol.messages import (
    MAX_DETAIL,
    SALT_BYTES,
    Seal,
    VerdictIssued,
    VerdictRechecked,
    seal_of,
    signed,
)
from protocol.statements import Rechecked, Verdict, VerdictOutcome

log = structlog.get_logger()


class VerdictPublisher:
    """Says what was found, until cancelled. is_calm: whether files hardly wait here."""

    def __init__(self, context: Context, is_calm: Callable[[], bool] = lambda: True) -> None:
        self._context = context
        self._own = context.key.address
        self._is_calm = is_calm
        self._unshown: dict[WorkId, Bell] = {}
        """Rung when somebody else has its verdict on a work, too."""
        waiting = 1024
        self._send, self._receive = trio.open_memory_channel[tuple[WorkId, VerdictIssued]](waiting)

    async def run(self) -> None:
        """Seal and show what `say` was given."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_others)
            async for id, message in self._receive:
                # Each waits for others' seals by itself; one slow file must not hold up the rest.
                nursery.start_soon(self._seal_and_show, id, message)

    async def _hear_others(self) -> None:
        async for said in self._context.facts.subscribe(WorkSealed, WorkTouched):
            if said.work in self._unshown:
                self._unshown[said.work].ring()

    async def _seal_and_show(self, id: WorkId, message: VerdictIssued) -> None:
        """Say a verdict as soon as nobody can copy it any more, or has had the time to seal its own. Whoever is the
        last of those that are awaited needs no seal: its verdict is the first to be shown."""
        board, state, audit = self._context.board, self._context.state, self._context.run.spec.audit
        seal, another = Seal(id, seal_of(message, self._own)), Bell()
        self._unshown[id] = another
        # Seconds that a seal waits for other words of this node; the second where files wait longer than that anyway.
        board.say([seal], within=0.3 if self._is_calm() else 2.0)
        with trio.move_on_after(audit.opening_seconds) as patience:
            while True:
                # Of its own it counts for others once they can have heard it: else this verdict would seem hurried.
                sealed = (heard := state.seals.sealing(id)) | {self._own}
                if len(heard) >= self._context.quorum:
                    patience.deadline = min(patience.deadline, trio.current_time() + SEAL_SECONDS)
                if self._enough_sealed(id, sealed):
                    break
                # Seconds after which it is looked again for whom to wait: no fact tells who has fallen silent.
                await another.wait(1.0)
        del self._unshown[id]
        awaited = board.withdraw(seal) or self._is_needed(id)
        # Likewise a verdict that may be shown; the second where a quorum of others decides the file without it.
        board.say([message], within=0.05 if awaited else 1.0)

    def _is_needed(self, id: WorkId) -> bool:
        """Whether this verdict is among the quorum that decides a work: of those who sealed it the first, in an order
        of the work's own. The verdicts of the others change nothing that anybody waits for."""
        state = self._context.state
        shown = state.vote_set.has_spoken(id)
        lacking = self._context.quorum - len(shown)
        order = sorted(
            {self._own, *state.seals.sealing(id)} - shown, key=lambda one: blake3(id + one.encode()).digest()
        )
        # By a hash with the work: speaking early is shared out over all validators.
        return self._own in order[: max(lacking, 0)]

    def _enough_sealed(self, id: WorkId, sealed: set[Address]) -> bool:
        """Whether all sealed who are awaited: everybody, or, where files are shared out, one more than the quorum; of
        those who have been late for some files in a row nobody, once the quorum has. sealed: who is counted on."""
        state, quorum = self._context.state, self._context.quorum
        if len(sealed) < quorum:
            return not set(state.vote_set.active_validators()) - sealed - state.seals.has_sealed(id)
        return len(sealed) > quorum or not state.seals.awaited(id) - sealed

    async def say(self, work: RegisteredWork, message: VerdictIssued | VerdictRechecked) -> None:
        """Journal, then seal and show; what was found in a dispute is shown at once."""
        journal, recheck = self._context.journal, isinstance(message, VerdictRechecked)
        # The journal has the signed bytes before anybody hears them: after a restart the same word is said again.
        raw = self._context.board.sealed(message)
        kind = "recheck" if recheck else "verdict"
        step, task = work.place
        await journal.promise(journal.say, kind, work.id, raw, self._context.time.now(), step=step, task=task)
        # In a dispute everybody knows the first words already, and with one validator there is nobody who could copy.
        if isinstance(message, VerdictRechecked) or len(self._context.membership.validators) == 1:
            await self._context.board.post_raw(raw)
        else:
            await self._send.send((work.id, message))

    async def message(
        self,
        work: RegisteredWork,
        found: Inspected | Fault,
        sentence: tuple[int, int, str],
        lot: Lot | None,
        standing: int,
        verifier: str,
        *,
        recheck: bool,
    ) -> VerdictIssued | VerdictRechecked:
        """What is to be said, signed; the report of an accepted file becomes a blob. sentence: (outcome, reason,
        detail). Raises StoreFull."""
        outcome, reason, detail = sentence
        commitment = work.commitment
        fields = {name: getattr(commitment, name) for name in commitment.__struct_fields__}
        said: dict[str, Any] = {"pool": commitment.pool, "detail": detail[:MAX_DETAIL], "group": found.group}
        said |= {"standing": standing, "signature": b""}
        if isinstance(found, Inspected):
            said |= await self._values(work, found, outcome, lot, verifier)
        if recheck:
            draft = VerdictRechecked(verdict=Rechecked(**fields, outcome=outcome, reason=reason), **said)
        else:
            verdict = Verdict(**fields, outcome=outcome, reason=reason)
            # The salt keeps others from guessing a verdict out of its seal: there are few verdicts to try.
            draft = VerdictIssued(verdict=verdict, salt=secrets.token_bytes(SALT_BYTES), **said)
        return signed(draft, self._context.key, self._context.domain)

    async def _values(
        self, work: RegisteredWork, found: Inspected, outcome: int, lot: Lot | None, verifier: str
    ) -> dict[str, object]:
        """What was recomputed, and the report as a blob if the file is accepted."""
        said: dict[str, object] = {
            "window": lot.window if lot else -1,
            "rate": lot.rate if lot else 0,
            "checked": pack_groups(found.checked, work.groups),
            "rewards": found.rewards,
            "logprobs": found.logprobs,
            "verifier": verifier[:64],
            "prompts": found.prompts,
        }
        if not found.report_path:
            return said
        report = Path(found.report_path)
        try:
            # A rejection needs no values: nobody trains on them.
            if outcome == VerdictOutcome.ACCEPT:
                info = await self._context.blobs.add(report)
                said |= {"report_root": info.root, "report_size": info.size}
        finally:
            report.unlink(missing_ok=True)  # noqa: ASYNC240 - one small local file
        return said
