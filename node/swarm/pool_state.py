"""The state of a pool: signed words and time in, typed facts out.

The one place where policies, commitments, verdicts and terms meet. A word counts by its row of `counts.py`; a book
hears it then, and what follows from it is told as facts (`facts.py`). Nothing else reads what people said. All books
have a fact before anybody is told of it. Pure: no task, no disk, no network; the clock is an argument.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from node.clock import Seconds
from node.recent import Recent
from node.swarm.ballots import Ballots, Dispute, FileState
from node.swarm.checkpoints import Checkpoints
from node.swarm.counts import COUNTS, Admission, may_say
from node.swarm.facts import (
    Certified,
    CheckpointOf,
    DueTold,
    EpochsShown,
    Fork,
    JudgeContradicted,
    JudgeDisbelieved,
    LeaderDisbelieved,
    News,
    ObjectionRaised,
    PeerTold,
    PolicyFollowed,
    RecheckKnown,
    RoundVoted,
    RunTold,
    SilenceTold,
    StepAccused,
    TableSigned,
    TermBegan,
    Undone,
    VerdictKnown,
    VerdictWanted,
    WorkId,
    WorkTouched,
)
from node.swarm.lotbook import BrokenPromise, LotBook
from node.swarm.membership import Membership
from node.swarm.policies import PolicyClock
from node.swarm.register import Register, Work
from node.swarm.seals import Seals
from node.swarm.stepbook import StepBook
from node.swarm.taskbook import TaskBook
from node.swarm.terms import Term
from protocol.checks import reason_name
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.messages import (
    CertificatesShown,
    CheckpointOffered,
    CheckRequested,
    CutSigned,
    DisputeRaised,
    DueSigned,
    EarningsSigned,
    EnvironmentPublished,
    Heartbeat,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Signed,
    SilenceSigned,
    StepJudged,
    StepObjected,
    TaskClaimed,
    TaskOffered,
    ValidatorSaid,
    VerdictIssued,
    VerdictRechecked,
)
from protocol.run import RunSpec
from protocol.statements import Outcome, work_id

log = structlog.get_logger()
RESULTS = 512
"""Undecided results of one member."""
EARLY = 64
"""Works of which one validator may speak before this node has heard of them."""
TO_RAISE = 64
HELD, HELD_SECONDS = 64, 60.0
"""Words of one author that wait for what they speak of, and for how long."""


class Heard(msgspec.Struct, frozen=True):
    """A signed word came."""

    signed: Signed[Any]


class TermsChanged(msgspec.Struct, frozen=True):
    """The chain told of a term, or took one back."""


class Learnt(msgspec.Struct, frozen=True):
    """This node came to a policy by itself: the outer state of a round, or its image."""

    step: int
    root: bytes
    outer: bool


class Passed(msgspec.Struct, frozen=True):
    """Time passed."""


Input = Heard | TermsChanged | Learnt | Passed


class PoolState:
    """One per node. opened: reads a message that another one carries, as the board checks it; clock: monotonic
    seconds."""

    def __init__(
        self,
        membership: Membership,
        run: RunSpec,
        pool: int,
        opened: Callable[..., Signed[Any]],
        clock: Seconds,
    ) -> None:
        self._membership = membership
        self._pool = pool
        self._opened = opened
        self._clock = clock
        quorum = lambda: membership.quorum  # noqa: E731 - benches change
        self.policies = PolicyClock(clock, membership.terms, self._reached, membership.own)
        self.tasks = TaskBook(lambda node: membership.is_silent(node, clock()), clock, membership.in_office)
        self.register = Register(run, self.policies, clock, self.tasks)
        bench = lambda: membership.validators  # noqa: E731
        self.ballots = Ballots(run, quorum, self.register, self.validators, clock, bench, self._on_judge)
        self.lots = LotBook(run, pool, self.policies)
        self.steps = StepBook(self.lots)
        windows, is_one, patience = self.lots, lambda: membership.has_one_validator, run.audit.opening_seconds
        self.seals = Seals(self.register, self.ballots, quorum, is_one, patience, windows, clock)
        self.checkpoints = Checkpoints()
        self.refused: Counter[str] = Counter()
        """Words that count for nothing, by message and why."""
        self.to_raise: deque[Dispute] = deque(maxlen=TO_RAISE)
        """Conflicts that this node has seen and may tell others of."""
        self.prompts_differ = 0
        """Works whose prompts two validators computed differently."""
        self._news: list[News] = []
        self._term = membership.terms.now
        self._held: dict[Address, Recent[Signed[Any], float]] = {}
        """Words of what is not known yet, with when each came."""
        self._results: dict[Address, Recent[WorkId, Work]] = {}
        """Of tasks, that the pool has not decided about; by member."""
        self._early: dict[Address, Recent[WorkId, list[Callable[[Work], object]]]] = {}
        """What is to be done with words on works that are not known yet, by who spoke."""
        self.register.follow(self._on_work)
        # A rival is no work, but verdicts on it may come, and its author may be asked about it.
        self.register.follow_rivals(lambda _, rival: self._on_work(rival))
        # Of a run with rounds nobody announces a policy: one of a step far ahead would make all works stale.
        self._announces = run.diloco is None
        self._acts: dict[type[Message], Callable[[Any], object]] = {
            Heartbeat: self._on_heartbeat,
            PolicyAnnounced: self._on_policy,
            CheckpointOffered: self._on_checkpoint,
            StepObjected: lambda signed: self._tell(ObjectionRaised(signed.author, signed.message)),
            RolloutCommitted: self.register.commit,
            ValidatorSaid: self._on_said,
            VerdictIssued: self._on_verdict,
            VerdictRechecked: self._on_recheck,
            DueSigned: lambda signed: self._tell(DueTold(signed.author, signed.message)),
            StepJudged: self._on_step,
            LotsRevealed: self._on_reveal,
            DisputeRaised: self._on_dispute,
            CheckRequested: self._on_request,
            CertificatesShown: lambda signed: self._tell(EpochsShown(signed.author, signed.message.shown)),
            EarningsSigned: lambda signed: self._tell(TableSigned(signed.author, signed.message)),
            CutSigned: lambda signed: self._tell(RoundVoted(signed.author, signed.message, signed.raw)),
            SilenceSigned: lambda signed: self._tell(SilenceTold(signed.author, signed.message)),
            TaskOffered: self._on_offer,
            TaskClaimed: self.tasks.claimed,
            EnvironmentPublished: lambda signed: None,  # a view of the board (`catalogue.py`)
        }

    # what is asked

    @property
    def distrust(self) -> bool:
        """Whether who leads is not believed any more (`policies.fork` says why) and nobody stands by to lead."""
        return self.policies.fork is not None and len(self._membership.terms.trainers) < 2

    @property
    def newest(self) -> int:
        """The newest step that is followed, -1 before the first."""
        return self.policies.newest_step

    def validators(self) -> list[Address]:
        """The validators that are alive at this moment."""
        return self._membership.live_validators(self._clock())

    def _reached(self) -> int:
        return self._membership.reached(self.ballots.quarantined)

    def admits_policy(self, author: Address, message: PolicyAnnounced) -> Admission:
        return self.policies.admits(author, message) if self._announces else Admission.REFUSED

    def is_followed(self, term: int, step: int) -> bool | None:
        """Whether a term's policy of a step is followed here. None where it is not: it may be yet, also of a term that
        is over, since its end stands in a block."""
        found = self.policies.of_step(step)
        return (found is not None and found.message.term == term) or None

    def is_stated(self, message: StepJudged) -> bool | None:
        """Whether a statement is the followed policy's. One that is older than all that is followed here counts by its
        trainer's signature, which stands in the verdict."""
        of, found = message.statement, self.policies.of_step(message.statement.step)
        if found is not None and found.message.term == of.term:
            return found.author == message.trainer and found.statement == of
        if of.step > self.newest or of.term > self._membership.terms.now.number:
            return None
        return self._membership.terms.counts(message.trainer, of.term, of.step, of.parent) or None

    def is_running(self, term: int, until: int) -> bool | None:
        """Whether this is the lease that runs, as far as the chain has told."""
        now = self._membership.terms.now
        return None if (term, until) > (now.number, now.until) else (term, until) == (now.number, now.until)

    # what comes in

    def apply(self, given: Input) -> list[News]:
        """What follows from a word, from the chain, or from the time that passed."""
        match given:
            case Heard(signed=signed):
                self._hear(signed, self._clock())
            case TermsChanged():
                self._on_terms()
            case Learnt(step=step, root=root, outer=outer):
                self.policies.learn(step, root, outer=outer)
                self.register.look_again()
            case Passed():
                self._on_time()
        news, self._news = self._news, []
        return news

    def _tell(self, news: News) -> None:
        self._news.append(news)

    def _hear(self, signed: Signed[Any], at: float) -> None:
        """at: when it came."""
        message, author = signed.message, signed.author
        kind = type(message)
        match COUNTS[kind].horizon(self, author, message):
            case Admission.COUNTS:
                self._acts[kind](signed)
            case Admission.HELD:
                self._held.setdefault(author, Recent(HELD)).setdefault(signed, at)
            case Admission.REFUSED:
                self.refused[f"{kind.__name__}.horizon"] += 1

    def _look_again(self) -> None:
        """At held words: what they speak of may be known now."""
        for author, words in list(self._held.items()):
            for signed, at in list(words.items()):
                if signed not in words:
                    continue  # looked at meanwhile: one word that counts may free others
                kind = type(signed.message)
                if self._clock() - at > HELD_SECONDS:
                    del words[signed]
                    self.refused[f"{kind.__name__}.unknown"] += 1
                # The board asked for the office when the word came; it may have ended while it waited here.
                elif not may_say(self._membership, author, kind):
                    del words[signed]
                    self.refused[f"{kind.__name__}.office"] += 1
                elif COUNTS[kind].horizon(self, author, signed.message) is not Admission.HELD:
                    del words[signed]
                    self._hear(signed, at)
            if not words:
                self._held.pop(author, None)

    def _on_time(self) -> None:
        """Some states change without a message: a silent validator is gone without after a while."""
        for results in self._results.values():
            for work in list(results.values()):
                self._look_at_result(work)
        self.ballots.open_disputes()
        self._look_again()
        self.register.forget_old()
        if self.newest >= 0:
            return
        held = [(at, one) for words in self._held.values() for one, at in words.items()]
        policies = [(at, one) for at, one in held if isinstance(one.message, PolicyAnnounced)]
        first = self.policies.anchor([(at, one.author, one.message) for at, one in policies])
        if first is not None:
            log.info("policies.anchored", step=first, why="no quorum of validators said how far the run is")
            for _, signed in sorted(policies, key=lambda each: each[1].message.step):
                if signed.message.step == first and may_say(self._membership, signed.author, PolicyAnnounced):
                    self._on_policy(signed, anchored=True)

    def _on_terms(self) -> None:
        """The chain told of a term: what was said before that may count now, or count no more."""
        for gone in self.policies.begin_term():
            self.checkpoints.forget(gone.message.term, gone.step)
            self._tell(Undone(gone))
        now = self._membership.terms.now
        if now.number != self._term.number or now.holder != self._term.holder:
            if now.number < self._term.number:
                self._tell(Undone(TermBegan(self._term.holder, self._term)))
            self._tell(TermBegan(now.holder, now))
        if _place_of(now) != _place_of(self._term):
            for again in self.policies.follow_again():
                self._follow(again)
        self._term = now
        self.tasks.look_again()
        self._look_again()

    # policies and steps

    def _on_heartbeat(self, signed: Signed[Heartbeat]) -> None:
        beat, author = signed.message, signed.author
        if self._membership.leads(author):
            self._tell(RunTold(author, beat.finished, beat.policy_step, beat.reward))
        if beat.seat >= 0 or beat.outer:
            self._tell(PeerTold(author, beat.seat, beat.policy_step, beat.outer))
        if self._membership.is_validator(author):
            self._punish(self.lots.beat(signed))
            if self._held:
                self._look_again()  # a quorum may hold a policy now that goes on from one unknown here

    def _on_policy(self, signed: Signed[PolicyAnnounced], *, anchored: bool = False) -> None:
        found = self.policies.announce(signed, anchored=anchored)
        if isinstance(found, Fork):
            self._believe_no_more(signed.author, signed.message.term, found)
        elif found is not None:
            self._follow(found)
            self._look_again()

    def _follow(self, found: PolicyFollowed) -> None:
        self.steps.stated(found)
        self.checkpoints.again(found.message.term, found.step)
        self._tell(found)
        self.register.look_again()

    def _on_checkpoint(self, signed: Signed[CheckpointOffered]) -> None:
        if self.checkpoints.offered(signed):
            self._tell(CheckpointOf(signed.author, signed.message))

    def _believe_no_more(self, trainer: Address, term: int, fork: Fork) -> None:
        log.error("trainer.distrusted", trainer=trainer, what=fork.what)
        self._tell(LeaderDisbelieved(trainer, term, fork))

    def _on_step(self, signed: Signed[StepJudged]) -> None:
        """A quorum that found a step bad ends the trust in who stated it, for as long as that one leads."""
        first, of = signed.message, signed.message.statement
        if signed.author in self.ballots.quarantined or not self.steps.add(signed):
            return
        if first.outcome == Outcome.ACCEPT:
            return
        self._tell(StepAccused(signed.author, first))
        against = self.steps.against(of.struct_hash, self.ballots.quarantined)
        if len(against) >= self._membership.quorum and of.term not in self.policies.forks:
            what = f"a quorum found step {of.step - 1} bad: {first.detail or reason_name(first.reason)}"
            fork = self.policies.forks[of.term] = Fork(what, tuple(one.raw for one in against))
            self._believe_no_more(first.trainer, of.term, fork)

    # work

    def _on_offer(self, signed: Signed[TaskOffered]) -> None:
        if self.tasks.offered(signed) is not None:
            self.register.look_again()

    def _on_work(self, work: Work) -> None:
        """A commitment is work now: what was said of it before counts."""
        self.lots.committed(work)
        if work.task is not None and not work.rival:
            self._results.setdefault(work.node, Recent(RESULTS))[work.id] = work
        for early in list(self._early.values()):
            for act in early.pop(work.id, ()):
                act(work)

    def _look_at_result(self, work: Work) -> None:
        """Tell the leases of a task what the pool thinks of a result by now: some of it only time decides."""
        state = self.ballots.state(work.id)
        if work.task is not None and state in (FileState.ACCEPTED, FileState.REJECTED, FileState.UNDECIDED):
            del self._results[work.node][work.id]
            accepted = state is FileState.ACCEPTED
            self.tasks.decided(work.task, work.commitment.index, work.id, accepted=accepted)

    def _when_known(self, author: Address, id: WorkId, act: Callable[[Work], object]) -> None:
        """Now, or once this node has heard of the work: verdicts overtake commitments. Whoever speaks of what nobody
        committed to fills a small table of its own."""
        work = self.register.get(id)
        if work is not None:
            act(work)
            return
        # By speaker: one that makes up works crowds out its own words only.
        waiting = self._early.setdefault(author, Recent(EARLY)).setdefault(id, [])
        if len(waiting) < EARLY:
            waiting.append(act)

    def _on_request(self, signed: Signed[CheckRequested]) -> None:
        try:
            wanted = self._opened(signed.message.commitment, RolloutCommitted)
        except ProtocolError as error:
            log.debug("request.refused", why=error.why)
            return
        self.register.commit(wanted)  # gossip may have lost it
        id = work_id(wanted.message.commitment)
        if self.register.get(id) is not None:
            self._tell(VerdictWanted(signed.author, id))

    # verdicts and disputes

    def _on_said(self, signed: Signed[ValidatorSaid]) -> None:
        for one in signed.message.seals:
            if self.register.get(one.work) is not None:
                self.ballots.note(one.work)
            self.seals.sealed(signed.author, one)
        if signed.message.certificates:
            self._tell(Certified(signed.author, signed.message.certificates))

    def _on_verdict(self, signed: Signed[VerdictIssued]) -> None:
        self.seals.shown(signed)
        self._tell(VerdictKnown(signed.author, signed.message))
        self._when_known(signed.author, work_id(signed.message.verdict), lambda work: self._count(work, signed))

    def _is_of_its_own(self, work: Work, signed: Signed[VerdictIssued] | Signed[VerdictRechecked]) -> bool:
        """Whether somebody in two offices judges its own work, in which nobody has a word."""
        if signed.author != work.node:
            return False
        self.refused[f"{type(signed.message).__name__}.own"] += 1
        return True

    def _count(self, work: Work, signed: Signed[VerdictIssued]) -> None:
        if self._is_of_its_own(work, signed):
            return
        if not self.lots.is_of_its_window(work, signed.message):
            log.info("verdict.of_another_window", validator=signed.author, window=signed.message.window)
            return
        known = self.ballots.prompts_differ(work.id)
        disputes = self.ballots.add(signed)
        if not known and self.ballots.prompts_differ(work.id):
            self.prompts_differ += 1
            log.warning("validators.prompts_differ", node=work.node, work=work.id.hex()[:16])
        self.seals.note_turn(work, signed.author)
        self._punish(self.lots.verdict(work, signed))
        if work.id in self._results.get(work.node, ()):
            self._look_at_result(work)
        self._tell(WorkTouched(signed.author, work.id))
        # One pair is enough: everybody who reads it looks again at the whole work.
        for dispute in disputes[:1]:
            log.warning("validators.disagree", work=work.id.hex()[:16], what=dispute.finding.what)
            # Others see it by themselves as soon as they have both verdicts, and may not say it.
            if may_say(self._membership, self._membership.own, DisputeRaised):
                self.to_raise.append(dispute)

    def _on_recheck(self, signed: Signed[VerdictRechecked]) -> None:
        self._tell(RecheckKnown(signed.author, signed.message))
        self._when_known(signed.author, work_id(signed.message.verdict), lambda work: self._look(work, signed))

    def _look(self, work: Work, signed: Signed[VerdictRechecked]) -> None:
        if self._is_of_its_own(work, signed):
            return
        self.ballots.recheck(signed)
        self.seals.note_turn(work, signed.author)
        self.lots.covered(work, signed.message)
        self._tell(WorkTouched(signed.author, work.id))

    def _on_dispute(self, signed: Signed[DisputeRaised]) -> None:
        try:
            first = self._opened(signed.message.first, VerdictIssued)
            second = self._opened(signed.message.second, VerdictIssued)
        except ProtocolError as error:  # the board checked it; a validator may have left since
            log.debug("dispute.refused", why=error.why)
            return
        id = work_id(first.message.verdict)
        self._when_known(signed.author, id, lambda work: self._heed(signed.author, work, (first, second)))

    def _heed(self, author: Address, work: Work, pair: tuple[Signed[VerdictIssued], Signed[VerdictIssued]]) -> None:
        if any(self._is_of_its_own(work, one) for one in pair):
            return
        if all(self.lots.is_of_its_window(work, one.message) for one in pair) and self.ballots.heed(pair):
            self._tell(WorkTouched(author, work.id))

    # lots

    def _on_reveal(self, signed: Signed[LotsRevealed]) -> None:
        self._punish(self.lots.reveal(signed))
        self.steps.revealed(signed)

    def _punish(self, broken: BrokenPromise | None) -> None:
        if broken is not None:
            self.ballots.quarantine(broken.validator, broken.why, broken.evidence)

    def _on_judge(self, one: JudgeDisbelieved | JudgeContradicted) -> None:
        if isinstance(one, JudgeDisbelieved):
            log.warning("validator.quarantined", validator=one.author, why=one.why.why)
        self._tell(one)


def _place_of(term: Term) -> tuple[object, ...]:
    """All of it that says which policies it is about."""
    return term.number, term.holder, term.from_step, term.parent
