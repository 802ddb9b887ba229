"""Whose the next policy is: which a trainer may make, what it could lead from, and what a later term takes back."""

from pathlib import Path

import msgspec
import structlog
import trio

from node.errors import StateError
from node.services.context import Context
from node.services.leader_lease import LeaderLease, LeadFrom, OnChain
from node.services.training.groups import Groups
from node.services.training.record import Record
from node.services.training.returning import REPEATED, Returning
from node.services.training.stage_timings import StageTimings
from node.services.training.standing_by import StandingBy
from node.state.files import read_if_there, write_whole
from node.swarm.facts import TermBegan, Undone
from node.training.evaluations import Evaluations
from node.training.spool import Spool
from node.training.watch import SpoolWatch

log = structlog.get_logger()


class Leading:
    """The candidate of one chair. chain: None at a desk, where nobody else leads; chair: None then.

    A leader and a standby are the same program: what differs is where batches come from (`StandingBy`: the leader's
    manifests; else this trainer's own pool), and who may publish. So a take-over hands nothing over. The former leader
    cuts its spool back to what the new term begins with and stands by, in the same way as after a restart (ADR 031).
    What it knows here is asked before each policy and never kept: terms come and are taken back with the chain."""

    def __init__(
        self,
        context: Context,
        spool: Spool,
        groups: Groups,
        record: Record,
        others: StandingBy,
        chain: OnChain | None,
    ) -> None:
        self._context, self._spool, self._groups = context, spool, groups
        self._record, self._others = record, others
        self._policies, self._terms = context.state.policies, context.membership.terms
        self._term = 0
        self.returning = Returning(context, spool)
        self.chair = LeaderLease(context, chain, self) if chain is not None else None

    def leads(self, step: int) -> bool:
        """Whether policy `step` is this trainer's to make and publish."""
        return (self.chair is None or self.chair.leads(step)) and not self.returning.covers(step)

    def holds(self) -> bool:
        """Whether its term is to go on."""
        return not self.returning.gives_up

    def nothing_leads_on(self) -> bool:
        """From the newest step here: nothing can be replayed, and no checkpoint is offered."""
        newest = self._spool.newest_step()
        unknown = self._policies.of_step(newest + 1) is None
        return (self._others.is_stuck or unknown) and not self._others.is_offered(newest)

    def leads_next(self) -> bool:
        """Whether the next policy is."""
        return self.leads(self._record.step + 1)

    # what it could lead from

    def ready(self) -> LeadFrom | None:
        """What this trainer could lead from now: everything announced is replayed here, and came out equal. Who cannot
        replay it leads from the checkpoint that it has taken over, where that is not too far back. Who came to another
        state in the very step that a quorum found bad leads from the policy before."""
        if self._record.ends:
            return None
        if self._others.apart is not None:
            return self._ready_before(self._others.apart.step)
        newest = self._spool.newest_step()
        # In the middle of a step there is no whole state to lead from.
        if newest < 0 or self._spool.next_batch() != newest:
            return None
        policies = self._policies
        behind = policies.newest_step - newest
        # Otherwise a standby that has just started would lead from policy 0 and undo the run.
        if policies.newest_step < 0 and self._terms.reached > 0:
            return None  # nothing was heard of the run yet
        if self.returning.gives_up:
            return self._ready_after(newest) if behind <= REPEATED else None
        # Policies that a standby may take back, which could not replay them. Who is further behind does not lead: its
        # turn would cost more than waiting for another trainer. Those beyond what a quorum's words say are lost
        # whoever leads: nobody saw what they were made of.
        said = self.chair.said_reached() if self.chair is not None else None
        lost = behind if said is None else min(behind, said - newest)
        if lost > 32 or (behind > 0 and self._others.gets_beyond(newest)):
            return None
        return self._ready_after(newest)

    def _ready_after(self, newest: int) -> LeadFrom | None:
        policies = self._policies
        if policies.of_step(newest) is None:
            before = policies.of_step(newest - 1)
            return (
                LeadFrom(newest, before.message.policy_root if before else bytes(32)) if before or not newest else None
            )
        announced = policies.of_step(newest)
        return (
            LeadFrom(newest + 1, announced.message.policy_root) if announced and self._record.step >= newest else None
        )

    def _ready_before(self, step: int) -> LeadFrom | None:
        """Where the holder of the term was convicted of this step: whatever it made after it does not count."""
        said = self._context.jury.step_verdicts(self._context.domain, self._terms.now.number).values()
        before = self._policies.of_step(step - 1)
        if before is None or not any(one.statement.step == step for one in said):
            return None
        return LeadFrom(step, before.message.policy_root)

    def at(self) -> tuple[int, bytes]:
        announced = self._policies.of_step(self._record.step)
        return max(self._record.step, 0), announced.message.policy_root if announced else bytes(32)

    # what a later term takes back

    def lost_from(self) -> int | None:
        """The first policy here that somebody else's later term decides, or that a term of this trainer decides anew,
        since its leader was convicted of it; None where there is none. Policy 0 follows from the start model, whoever
        says it."""
        apart = self._others.apart
        first = self._terms.taken_back(self._context.key.address, self._term, apart.step if apart else -1)
        # Policies that no batch here has reached yet are not lost: there is nothing to take back.
        return max(first, 1) if first is not None and self._spool.next_batch() >= max(first, 1) else None

    async def handle(self) -> None:
        """Drop what this trainer made or replayed beyond the start of a term, as if it had never been. Its learner must
        not run."""
        self._term = await trio.to_thread.run_sync(self._known)
        first = self.lost_from()
        if first is not None:
            now = self._terms.now
            log.warning("trainer.cut_back", step=first, term=now.number)
            who = "this" if now.holder == self._context.key.address else "another"
            text = f"{who} trainer leads: policies from {first} on that were made here before are dropped"
            self._context.progress.tell("chair", text)
            # Metrics go first (`Spool._beyond`): what a crash leaves behind is no complete step.
            await trio.to_thread.run_sync(self._spool.cut, first)
            if not self._spool.goes_on:  # what it had taken over lies beyond the cut
                await trio.to_thread.run_sync(self._spool.cut, 0)
            # Followers go by it; what was announced beyond is no policy any more.
            self._record.cut_back(first)
            self._others.cut_back(first)
            self._groups.forget_orphans()
        await self._remember()

    async def until_lost(self) -> None:
        """Return once a later term takes something back."""
        # Whichever term it is about: what counts is the one that stands by now.
        async for _ in self._context.facts.subscribe(TermBegan, Undone):
            if self._record.done or self._term == self._terms.now.number:
                continue
            self._groups.forget_orphans()
            if self.lost_from() is not None:
                return
            await self._remember()

    @property
    def _path(self) -> Path:
        return self._spool.root / "term"

    def _known(self) -> int:
        """The newest term whose first policy this spool has heeded. Raises StateError, OSError: taken for none, what a
        later term decided long ago would be cut once more."""
        data = read_if_there(self._path)
        try:
            return int(data.decode("ascii")) if data is not None else 0
        except ValueError as error:
            raise StateError(
                "which term this trainer has followed cannot be read",
                f"{self._path} is damaged: {str(error)[:100]}",
                "put it back from a copy of the state directory; without one, write the present term's number into it "
                "(intellect-node contract chair show)",
            ) from error

    async def _remember(self) -> None:
        self._term = self._terms.now.number
        await trio.to_thread.run_sync(write_whole, self._path, f"{self._term}\n".encode())


class Shared(msgspec.Struct, frozen=True):
    """What the way in (feeding) and the way out (publishing) of one trainer both work with."""

    context: Context
    spool: Spool
    watch: SpoolWatch
    record: Record
    evaluations: Evaluations
    timings: StageTimings
    others: StandingBy
    leading: Leading
