"""The state of a pool: signed words and time in, typed facts out.

The one place where policies, commitments, verdicts and terms meet. A word counts by its row of `counts.py`; a book
hears it then, and what follows from it is told as facts (`facts.py`). Nothing else reads what people said. All books
have a fact before anybody is told of it. Pure: no task, no disk, no network; the clock is an argument.

Each service could read the messages it needs, and did: 41 places derived their own truth, and nine readers of one
message had nine ideas of what counts. Attacks lived in the gaps. A database that services query would have one truth,
and nobody would be told. So words go in at one place, and facts come out of it by subscription (ADR 100).
"""

from collections import Counter
from collections.abc import Callable, Container, Iterator
from typing import Any, cast

import msgspec
import structlog

from node.bounded_dict import BoundedDict
from node.clock import Seconds
from node.swarm.audit_lots import AuditLots
from node.swarm.checkpoints import OfferedCheckpoints
from node.swarm.counts import COUNTS, Admission, may_say
from node.swarm.facts import (
    Equivocation,
    LeaderDisbelieved,
    News,
    PeerTold,
    PolicyFollowed,
    RunTold,
    ShardClaimed,
    TermBegan,
    TermMoved,
    Undone,
)
from node.swarm.membership import Membership
from node.swarm.policies import PolicyIndex
from node.swarm.register import Register
from node.swarm.step_votes import StepVotes
from node.swarm.task_table import TaskTable
from node.swarm.terms import Term
from node.swarm.works import Works
from protocol.checks import reason_name
from protocol.identity import Address
from protocol.messages import (
    CheckpointOffered,
    Heartbeat,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    Signed,
    StepVerdict,
    TaskClaimed,
    TaskOffered,
)
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome

log = structlog.get_logger()
HELD_SECONDS = 60.0
"""For so long a word waits for what it speaks of."""


class WordHeard(msgspec.Struct, frozen=True):
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


Input = WordHeard | TermsChanged | Learnt | Passed


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
        self._clock = clock
        self.policies = PolicyIndex(
            clock,
            membership.terms,
            self.reached,
            membership.own,
            lacks=lambda who, step, since: lacks(membership, self.disputes.quarantined, who, step, since),
        )
        self.tasks = TaskTable(lambda node: membership.table.is_inactive(node, clock()), clock, membership.in_office)
        self.register = Register(run, self.policies, clock, self.tasks)
        self.lots = AuditLots(run, pool, self.policies)
        self.steps = StepVotes(self.lots, membership.hands.is_party)
        self.refused: Counter[str] = Counter()
        """Words that count for nothing, by message and why."""
        books = (self.register, self.tasks, self.lots)
        self.works = Works(membership, run, *books, opened, self._tell, self.refused, clock)
        self.vote_set, self.disputes, self.seals = self.works.vote_set, self.works.disputes, self.works.seals
        self.checkpoints = OfferedCheckpoints()
        self._news: list[News] = []
        self._term = membership.terms.now
        self._held: dict[Address, BoundedDict[Signed[Any], float]] = {}
        """Words of what is not known yet, with when each came."""
        # Of a run with rounds nobody announces a policy: one of a step far ahead would make all works stale.
        self._announces = run.diloco is None
        self._acts: dict[type[Message], Callable[[Any], object]] = {
            **self.works.acts,
            Heartbeat: self._on_heartbeat,
            PolicyAnnounced: self._on_policy,
            CheckpointOffered: self._on_checkpoint,
            StepVerdict: self._on_step,
            LotsRevealed: self._on_reveal,
            TaskOffered: self._on_offer,
            TaskClaimed: self._on_claim,
        }

    # what is asked

    @property
    def distrust(self) -> bool:
        """Whether who leads is not believed any more (`policies.equivocation` says why) and nobody stands by to
        lead."""
        return self.policies.equivocation is not None and len(self._membership.terms.trainers) < 2

    @property
    def newest(self) -> int:
        """The newest step that is followed, -1 before the first."""
        return self.policies.newest_step

    def validators(self) -> list[Address]:
        """The validators that are alive at this moment."""
        return self._membership.live_validators()

    def reached(self, trainer: Address) -> int:
        """The newest step that a quorum of the believed validators hold, as they say themselves; -1 for none."""
        quorum, told = self._membership.quorum, _held(self._membership, self.disputes.quarantined, trainer)
        steps = sorted((step for step, _ in told), reverse=True)
        return steps[quorum - 1] if 0 < quorum <= len(steps) else -1

    def admits_policy(self, author: Address, message: PolicyAnnounced) -> Admission:
        return self.policies.admits(author, message) if self._announces else Admission.REFUSED

    def is_followed(self, term: int, step: int) -> bool | None:
        """Whether a term's policy of a step is followed here. None where it is not: it may be yet, also of a term that
        is over, since its end stands in a block."""
        found = self.policies.of_step(step)
        return (found is not None and found.message.term == term) or None

    def is_stated(self, message: StepVerdict) -> bool | None:
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

    def is_closed(self, root: bytes) -> bool:
        return self.register.is_closed(root)

    # what comes in

    def apply(self, given: Input) -> list[News]:
        """What follows from a word, from the chain, or from the time that passed."""
        match given:
            case WordHeard(signed=signed):
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
        author, message = signed.author, cast("Message", signed.message)
        kind, row = type(message), COUNTS[type(message)]
        judged = row.about(message)
        if judged is not None and self._membership.hands.is_party(author, judged):
            self.refused[f"{kind.__name__}.own"] += 1
            return
        held = 64  # words of one author that wait for what they speak of
        match row.horizon(self, author, message):
            case Admission.COUNTS:
                self._acts.get(kind, self._tell)(signed)
            case Admission.HELD:
                self._held.setdefault(author, BoundedDict(held)).setdefault(signed, at)
            case Admission.REFUSED:
                self.refused[f"{kind.__name__}.horizon"] += 1
            case Admission.CLOSED:
                self.refused[f"{kind.__name__}.closed"] += 1

    def _look_again(self) -> None:
        """At held words: what they speak of may be known now."""
        for author, words in list(self._held.items()):
            for signed, at in list(words.items()):
                if signed not in words:
                    continue  # looked at meanwhile: one word that counts may free others
                kind = type(cast("Message", signed.message))
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
        self.works.look_again()
        self._look_again()
        self.register.close()
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
        elif now != self._term:
            self._tell(TermMoved(now.holder, now))
        if _place_of(now) != _place_of(self._term):
            for again in self.policies.follow_again():
                self._follow(again)
        self._term = now
        self.tasks.look_again()
        self._look_again()

    # policies and steps

    def _on_heartbeat(self, signed: Signed[Heartbeat]) -> None:
        beat, author = signed.message, signed.author
        if author == self._membership.trainer:
            self._tell(RunTold(author, beat.finished, beat.policy_step, beat.reward))
        if beat.replica_id >= 0 or beat.outer:
            self._tell(PeerTold(author, beat.replica_id, beat.policy_step, beat.outer))
        if self._membership.is_validator(author):
            self.works.punish(self.lots.beat(signed))
            if self._held:
                self._look_again()  # a quorum may hold a policy now that goes on from one unknown here

    def _on_policy(self, signed: Signed[PolicyAnnounced], *, anchored: bool = False) -> None:
        found = self.policies.announce(signed, anchored=anchored)
        if isinstance(found, Equivocation):
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
            self._tell(signed)

    def _believe_no_more(self, trainer: Address, term: int, equivocation: Equivocation) -> None:
        log.error("trainer.distrusted", trainer=trainer, what=equivocation.what)
        self._tell(LeaderDisbelieved(trainer, term, equivocation))

    def _on_step(self, signed: Signed[StepVerdict]) -> None:
        """A quorum that found a step bad ends the trust in who stated it, for as long as that one leads."""
        first, of = signed.message, signed.message.statement
        if signed.author in self.disputes.quarantined or not self.steps.add(signed):
            return
        if first.outcome == VerdictOutcome.ACCEPT:
            return
        self._tell(signed)
        against = self.steps.against(of.struct_hash, self.disputes.quarantined)
        if len(against) >= self._membership.quorum and of.term not in self.policies.equivocations:
            what = f"a quorum found step {of.step - 1} bad: {first.detail or reason_name(first.reason)}"
            equivocation = self.policies.equivocations[of.term] = Equivocation(what, tuple(one.raw for one in against))
            self._believe_no_more(first.trainer, of.term, equivocation)

    # work

    def _on_offer(self, signed: Signed[TaskOffered]) -> None:
        if self.tasks.offered(signed) is not None:
            self.register.look_again()

    def _on_claim(self, signed: Signed[TaskClaimed]) -> None:
        self.tasks.claimed(signed)
        self._tell(ShardClaimed(signed.author, signed.message.task, signed.message.shard))

    def _on_reveal(self, signed: Signed[LotsRevealed]) -> None:
        self.works.punish(self.lots.reveal(signed))
        self.steps.revealed(signed)


def _place_of(term: Term) -> tuple[object, ...]:
    """All of it that says which policies it is about."""
    return term.number, term.holder, term.from_step, term.parent


def _held(members: Membership, disbelieved: Container[Address], trainer: Address) -> Iterator[tuple[int, float]]:
    """The newest step that each believed validator says it holds, and when it said so. Of them none is a party to what
    this trainer does."""
    asked = [one for one in members.validators if not members.hands.is_party(one, trainer)]
    for member in (members.table.get(one) for one in asked if one not in disbelieved):
        if member is not None and member.beat is not None and member.seen_at is not None:
            yield member.beat.policy_step, member.seen_at


def lacks(members: Membership, disbelieved: Container[Address], trainer: Address, step: int, since: float) -> bool:
    """Whether a quorum of the believed validators has said since then that it holds nothing as new as this step. Who
    said nothing is on no side."""
    told = sum(held < step and at > since for held, at in _held(members, disbelieved, trainer))
    return told >= members.quorum > 0
