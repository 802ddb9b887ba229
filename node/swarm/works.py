"""Words about works: commitments, verdicts, seals, second looks and disputes, and what becomes of results of tasks.

Verdicts overtake commitments, so who speaks of a work that is not known yet is heard once it is. Part of `PoolState`,
which asks before whether a word counts.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from node.bounded_dict import BoundedDict
from node.clock import Seconds
from node.swarm.audit_lots import AuditLots, BrokenPromise
from node.swarm.counts import may_say
from node.swarm.disputes import Dispute, Disputes
from node.swarm.facts import (
    JudgeContradicted,
    JudgeDisbelieved,
    News,
    VerdictWanted,
    WorkId,
    WorkKnown,
    WorkSealed,
    WorkTouched,
)
from node.swarm.membership import Membership
from node.swarm.register import Register, RegisteredWork
from node.swarm.seals import Seals
from node.swarm.task_table import TaskTable
from node.swarm.vote_set import FileState, VoteSet
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.messages import (
    DisputeRaised,
    Message,
    RolloutCommitted,
    Signed,
    ValidatorBatch,
    VerdictIssued,
    VerdictRechecked,
    VerdictRequested,
    lean,
)
from protocol.run import RunSpec
from protocol.statements import work_id

log = structlog.get_logger()


class Works:
    """One per node. opened: reads a message that another one carries, as the board checks it; tell: takes what is so;
    refused: counts words that count for nothing; clock: monotonic seconds."""

    def __init__(
        self,
        membership: Membership,
        run: RunSpec,
        register: Register,
        tasks: TaskTable,
        lots: AuditLots,
        opened: Callable[..., Signed[Any]],
        tell: Callable[[News], None],
        refused: Counter[str],
        clock: Seconds,
    ) -> None:
        self._refused = refused
        self._membership = membership
        self._opened = opened
        self._tell = tell
        self._register, self._tasks, self._lots = register, tasks, lots
        self.disputes = Disputes(run, register, membership, clock, self._on_judge)
        self.vote_set = VoteSet(run, register, membership, clock, self.disputes)
        self.seals = Seals(register, self.vote_set, membership, run.audit.opening_seconds, lots, clock)
        self.to_raise: deque[Dispute] = deque(maxlen=64)
        """Conflicts that this node has seen and may tell others of."""
        self.prompts_differ = 0
        """Works whose prompts two validators computed differently."""
        self._results: dict[WorkId, RegisteredWork] = {}
        """Of tasks, that the pool has not decided about."""
        self._early: dict[Address, BoundedDict[WorkId, list[Callable[[RegisteredWork], object]]]] = {}
        """What is to be done with words on works that are not known yet, by who spoke."""
        register.follow_closed(lambda work: self._results.pop(work.id, None))
        register.follow(self._on_work)
        # A rival is no work, but verdicts on it may come, and its author may be asked about it.
        register.follow_rivals(lambda _, rival: self._on_work(rival))
        self.acts: Mapping[type[Message], Callable[[Any], object]] = {
            RolloutCommitted: register.commit,
            ValidatorBatch: self._on_said,
            VerdictIssued: self._on_verdict,
            VerdictRechecked: self._on_recheck,
            DisputeRaised: self._on_dispute,
            VerdictRequested: self._on_request,
        }

    def look_again(self) -> None:
        """Some states change without a message: a silent validator is gone without after a while."""
        for work in list(self._results.values()):
            self._look_at_result(work)
        self.disputes.open()

    # a work

    def _is_of_its_own(self, work: RegisteredWork, signed: Signed[VerdictIssued] | Signed[VerdictRechecked]) -> bool:
        """Whether somebody in two offices judges its own work, in which nobody has a word."""
        if signed.author != work.node:
            return False
        self._refused[f"{type(signed.message).__name__}.own"] += 1
        return True

    def _on_work(self, work: RegisteredWork) -> None:
        """A commitment is work now: what was said of it before counts."""
        self._tell(WorkKnown(work.node, work.id))
        self._lots.committed(work)
        if work.task is not None and not work.rival:
            self._results[work.id] = work
        for early in list(self._early.values()):
            for act in early.pop(work.id, ()):
                act(work)

    def _look_at_result(self, work: RegisteredWork) -> None:
        """Tell the leases of a task what the pool thinks of a result by now: some of it only time decides."""
        state = self.vote_set.state(work.id)
        if work.task is not None and state in (FileState.ACCEPTED, FileState.REJECTED, FileState.UNDECIDED):
            del self._results[work.id]
            accepted = state is FileState.ACCEPTED
            self._tasks.decided(work.task, work.commitment.index, work.id, accepted=accepted)

    def _when_known(self, author: Address, id: WorkId, act: Callable[[RegisteredWork], object]) -> None:
        """Now, or once this node has heard of the work: verdicts overtake commitments. Whoever speaks of what nobody
        committed to fills a small table of its own."""
        work = self._register.get(id)
        if work is not None:
            act(work)
            return
        # By speaker: one that makes up works crowds out its own words only.
        early = 64  # works of which one validator may speak before this node has heard of them
        waiting = self._early.setdefault(author, BoundedDict(early)).setdefault(id, [])
        if len(waiting) < early:
            waiting.append(act)

    def _on_request(self, signed: Signed[VerdictRequested]) -> None:
        try:
            wanted = self._opened(signed.message.commitment, RolloutCommitted)
        except ProtocolError as error:
            log.debug("request.refused", why=error.why)
            return
        self._register.commit(wanted)  # gossip may have lost it
        id = work_id(wanted.message.commitment)
        if self._register.get(id) is not None:
            self._tell(VerdictWanted(signed.author, id))

    # verdicts and disputes

    def _on_said(self, signed: Signed[ValidatorBatch]) -> None:
        for one in signed.message.seals:
            if self._register.get(one.work) is not None:
                self.vote_set.note(one.work)
            self.seals.sealed(signed.author, one)
            self._tell(WorkSealed(signed.author, one.work))

    def _on_verdict(self, signed: Signed[VerdictIssued]) -> None:
        self.seals.shown(signed)
        self._tell(signed)
        self._when_known(signed.author, work_id(signed.message.verdict), lambda work: self._count(work, signed))

    def _count(self, work: RegisteredWork, signed: Signed[VerdictIssued]) -> None:
        if self._is_of_its_own(work, signed):
            return
        if not self._lots.is_of_its_window(work, signed.message):
            log.info("verdict.of_another_window", validator=signed.author, window=signed.message.window)
            return
        signed = lean(signed, self.vote_set.note(work.id).first)
        known = self.vote_set.prompts_differ(work.id)
        disputes = self.vote_set.add(signed)
        if not known and self.vote_set.prompts_differ(work.id):
            self.prompts_differ += 1
            log.warning("validators.prompts_differ", node=work.node, work=work.id.hex()[:16])
        self.seals.note_turn(work, signed.author)
        self.punish(self._lots.verdict(work, signed))
        if work.id in self._results:
            self._look_at_result(work)
        self._tell(WorkTouched(signed.author, work.id))
        # One pair is enough: everybody who reads it looks again at the whole work.
        for dispute in disputes[:1]:
            log.warning("validators.disagree", work=work.id.hex()[:16], what=dispute.finding.what)
            # Others see it by themselves as soon as they have both verdicts, and may not say it.
            if may_say(self._membership, self._membership.own, DisputeRaised):
                self.to_raise.append(dispute)

    def _on_recheck(self, signed: Signed[VerdictRechecked]) -> None:
        self._tell(signed)
        self._when_known(signed.author, work_id(signed.message.verdict), lambda work: self._look(work, signed))

    def _look(self, work: RegisteredWork, signed: Signed[VerdictRechecked]) -> None:
        if self._is_of_its_own(work, signed):
            return
        self.vote_set.recheck(signed)
        self.seals.note_turn(work, signed.author)
        self._lots.covered(work, signed.message)
        self._tell(WorkTouched(signed.author, work.id))

    def _on_dispute(self, signed: Signed[DisputeRaised]) -> None:
        try:
            first = self._opened(signed.message.first, VerdictIssued)
            second = self._opened(signed.message.second, VerdictIssued)
        except ProtocolError as error:  # the board checked it; a validator may have left since
            log.debug("dispute.refused", why=error.why)
            return
        if self._register.is_closed(first.message.verdict.policy_root):
            self._refused["DisputeRaised.closed"] += 1
            return
        id = work_id(first.message.verdict)
        self._when_known(signed.author, id, lambda work: self._handle(signed.author, work, (first, second)))

    def _handle(
        self, author: Address, work: RegisteredWork, pair: tuple[Signed[VerdictIssued], Signed[VerdictIssued]]
    ) -> None:
        if any(self._is_of_its_own(work, one) for one in pair):
            return
        if all(self._lots.is_of_its_window(work, one.message) for one in pair) and self.vote_set.handle(pair):
            self._tell(WorkTouched(author, work.id))

    def punish(self, broken: BrokenPromise | None) -> None:
        if broken is not None:
            self.disputes.quarantine(broken.validator, broken.why, broken.evidence)

    def _on_judge(self, one: JudgeDisbelieved | JudgeContradicted) -> None:
        if isinstance(one, JudgeDisbelieved):
            log.warning("validator.quarantined", validator=one.author, why=one.why.why)
        self._tell(one)
