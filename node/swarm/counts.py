"""What a word counts for, and how many an author may say: one row per message. The bounds of a message's own fields
stand with it (`protocol.messages`), the signatures that it carries in `board.py`.

A signature says who spoke, and no more. A row says whether its author may speak of this *now*, how far ahead of what is
known it may speak, what makes two words of one author the same, what a second and different one is, and what it may
move. The board asks a row for the office, so that nothing is kept or handed on which nobody may say; `PoolState` asks
for the rest before a book hears of it.

Three things hold for every row, so none has a column for them. No single author moves a pool's clock. A second word is
evidence or ignored, and replaces the first only where its author numbers what it says. Absence is never a fact: who did
not speak is on no side, is never at fault for it, and does not lower the number that decides.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import msgspec

from node.network.budget import Budgets
from protocol.identity import Address
from protocol.messages import (
    AcceptedList,
    CheckpointOffered,
    DisputeRaised,
    EarningsVote,
    EnvironmentPublished,
    EpochRootSigned,
    Heartbeat,
    LeaderSilent,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    RoundVote,
    Seal,
    StepObjected,
    StepVerdict,
    TaskClaimed,
    TaskOffered,
    ValidatorBatch,
    VerdictIssued,
    VerdictRechecked,
    VerdictRequested,
)


class Office(Enum):
    """Who may say a message."""

    MEMBER = "every member"
    LEADER = "who leads, led or stands by: its term says whether it counts"
    TRAINER = "a trainer in office: seated, or leading"
    VALIDATOR = "a validator in office"
    TRAINER_OR_VALIDATOR = "a trainer or a validator in office"


class Authority(Protocol):
    """Who holds which office, by the chain."""

    def is_member(self, address: Address) -> bool: ...
    def is_validator(self, address: Address) -> bool: ...
    def is_trainer(self, address: Address) -> bool: ...
    def in_office(self, address: Address) -> bool: ...


def may_say(authority: Authority, author: Address, kind: type[Message]) -> bool:
    """Whether an author holds an office now that a message asks for."""
    match COUNTS[kind].by:
        case Office.MEMBER:
            return authority.is_member(author)
        case Office.LEADER:
            return authority.is_trainer(author)
        case Office.TRAINER:
            return authority.in_office(author)
        case Office.VALIDATOR:
            return authority.is_validator(author)
        case Office.TRAINER_OR_VALIDATOR:
            return authority.in_office(author) or authority.is_validator(author)


class Admission(Enum):
    """Whether a word counts by now."""

    COUNTS = "it counts"
    HELD = "it may count later: it speaks of what is not known here yet"
    REFUSED = "it never will"
    CLOSED = "what it speaks of is over"


class Second(Enum):
    """What a second word of one author about the same thing is, if it differs."""

    EVIDENCE = "both stay: they convict their author"
    IGNORED = "the first one stands"
    NUMBERED = "the one with the higher number stands, which its author gave it"


class Moves(Enum):
    """What an author's words can change for others, however many it says."""

    OWN = "what is its author's own: its place, its work, its tasks, what it holds"
    STEP = "the newest step, by one"
    LOOK = "one look of those in office, within its author's budget"
    QUORUM = "together with a quorum of the office"
    MAJORITY = "together with more than half of the office, and two at least"


class HorizonView(Protocol):
    """The part of a pool's state by which a horizon is measured."""

    def admits_policy(self, author: Address, message: PolicyAnnounced) -> Admission: ...
    def is_followed(self, term: int, step: int) -> bool | None:
        """None: not yet."""
        ...

    def is_stated(self, message: StepVerdict) -> bool | None: ...
    def is_running(self, term: int, until: int) -> bool | None: ...
    def is_closed(self, root: bytes) -> bool:
        """Whether what hangs on a policy is over."""
        ...

    @property
    def newest(self) -> int: ...


Horizon = Callable[[HorizonView, Address, Any], Admission]
About = Callable[[Any], Address | None]
CHECKPOINTS = 64
"""Steps back for which a checkpoint is kept in mind."""


def _always(known: HorizonView, author: Address, message: Message) -> Admission:
    """It speaks of nothing that others number, or the book that hears it has the bound (register, leases, votes)."""
    return Admission.COUNTS


class Count(msgspec.Struct, frozen=True):
    """by: who may say it; identity: the fields that make two words of one author the same; second, moves: see there;
    kept: messages of one author that the shelf keeps; per_second, burst: what one member may say by itself; horizon:
    how far its author may speak; about: whose doing it judges, who has no voice in that, nor has who is in one hand
    with it. Whose a work is `Works`, `Seals` and `BatchUsage` know."""

    by: Office
    identity: tuple[str, ...]
    second: Second
    moves: Moves
    kept: int
    per_second: float
    burst: float
    horizon: Horizon = _always
    about: About = lambda message: None


def _told(so: bool | None) -> Admission:
    """None: it is not known yet."""
    return Admission.HELD if so is None else Admission.COUNTS if so else Admission.REFUSED


def _policy(known: HorizonView, author: Address, message: PolicyAnnounced) -> Admission:
    """The policy before it is followed, or the chain or a quorum of the validators reach it."""
    return known.admits_policy(author, message)


def _checkpoint(known: HorizonView, author: Address, message: CheckpointOffered) -> Admission:
    if message.step <= known.newest - CHECKPOINTS:
        return Admission.REFUSED
    return _told(known.is_followed(message.term, message.step))


def _objection(known: HorizonView, author: Address, message: StepObjected) -> Admission:
    return _told(known.is_followed(message.term, message.step))


def _due(known: HorizonView, author: Address, message: AcceptedList) -> Admission:
    """Of the newest policy or the one before it: what is named later was not due then."""
    if message.step > known.newest:
        return Admission.HELD
    # Steps by which a word may overtake the announcement of what it speaks of.
    return Admission.COUNTS if message.step >= known.newest - 1 else Admission.REFUSED


def _step(known: HorizonView, author: Address, message: StepVerdict) -> Admission:
    return _told(known.is_stated(message))


def _silence(known: HorizonView, author: Address, message: LeaderSilent) -> Admission:
    return _told(known.is_running(message.term, message.until))


def _work(known: HorizonView, author: Address, said: RolloutCommitted | VerdictIssued | VerdictRechecked) -> Admission:
    work = said.commitment if isinstance(said, RolloutCommitted) else said.verdict
    return Admission.CLOSED if known.is_closed(work.policy_root) else Admission.COUNTS


COUNTS: Mapping[type[Message], Count] = {
    # one in two seconds, fewer in a large pool; the newest is kept
    Heartbeat: Count(Office.MEMBER, ("boot", "count"), Second.NUMBERED, Moves.OWN, 1, 4.0, 40.0),
    # one a step; a restart says the newest again
    PolicyAnnounced: Count(Office.LEADER, ("statement",), Second.EVIDENCE, Moves.STEP, 64, 1.0, 64.0, _policy),
    # one a checkpoint; a restart offers those kept again; all are tried, the leader's first
    CheckpointOffered: Count(
        Office.TRAINER, ("term", "step", "root"), Second.IGNORED, Moves.OWN, 64, 1.0, 64.0, _checkpoint
    ),
    # one in a term: who objects follows no further
    StepObjected: Count(Office.TRAINER, ("term", "step"), Second.IGNORED, Moves.LOOK, 16, 0.5, 16.0, _objection),
    # a few dozen in 240 s; a restart says the last 16 again; by slot: `Register`
    RolloutCommitted: Count(Office.MEMBER, ("commitment",), Second.EVIDENCE, Moves.OWN, 256, 2.0, 128.0, _work),
    # four a second of a busy one; seals: the first binds
    ValidatorBatch: Count(Office.VALIDATOR, ("work",), Second.IGNORED, Moves.QUORUM, 1024, 15.0, 512.0),
    # everybody's files: of a hundred workers twelve a second
    VerdictIssued: Count(Office.VALIDATOR, ("work",), Second.EVIDENCE, Moves.QUORUM, 1024, 15.0, 512.0, _work),
    # one a dispute
    VerdictRechecked: Count(Office.VALIDATOR, ("work",), Second.EVIDENCE, Moves.MAJORITY, 64, 1.0, 64.0, _work),
    # one a step, of 256 accepted works each
    AcceptedList: Count(Office.VALIDATOR, ("work",), Second.IGNORED, Moves.QUORUM, 64, 2.0, 64.0, _due),
    # one a step that it drew or that another accused
    StepVerdict: Count(
        Office.VALIDATOR, ("statement",), Second.IGNORED, Moves.QUORUM, 128, 1.0, 64.0, _step, lambda one: one.trainer
    ),
    # one a window; a restart may tell a few at once; against its pledge
    LotsRevealed: Count(Office.VALIDATOR, ("window",), Second.EVIDENCE, Moves.OWN, 16, 0.5, 16.0),
    # one per file that a liar judged; six signatures
    DisputeRaised: Count(Office.TRAINER_OR_VALIDATOR, ("work",), Second.IGNORED, Moves.LOOK, 64, 0.5, 32.0),
    # one per file that waits; all at once where a validator fell
    VerdictRequested: Count(Office.TRAINER, ("work",), Second.IGNORED, Moves.LOOK, 256, 4.0, 256.0),
    # one an epoch, more for what comes late, again until it is tabled; of who was in office then: the table asks the
    # ledger
    EpochRootSigned: Count(Office.MEMBER, ("epoch", "number"), Second.EVIDENCE, Moves.QUORUM, 64, 1.0, 64.0),
    # one an epoch, and again now and then until it is posted
    EarningsVote: Count(Office.VALIDATOR, ("earnings",), Second.IGNORED, Moves.QUORUM, 16, 0.5, 16.0),
    # two a round, more where validators differ
    RoundVote: Count(Office.VALIDATOR, ("round", "ballot", "closed"), Second.EVIDENCE, Moves.QUORUM, 128, 4.0, 64.0),
    # one a lease that nobody holds any more
    LeaderSilent: Count(Office.VALIDATOR, ("term", "until"), Second.IGNORED, Moves.QUORUM, 4, 0.5, 8.0, _silence),
    # MOST_TASKS of the task table, each said again and again
    TaskOffered: Count(Office.TRAINER, ("spec",), Second.NUMBERED, Moves.OWN, 64, 2.0, 64.0),
    # one a shard, of seconds at least
    TaskClaimed: Count(Office.MEMBER, ("task", "shard"), Second.IGNORED, Moves.OWN, 64, 2.0, 64.0),
    # MOST_OWN of a catalogue, each once a minute
    EnvironmentPublished: Count(Office.MEMBER, ("root",), Second.IGNORED, Moves.OWN, 16, 0.5, 16.0),
}


ENTRIES: Mapping[type, tuple[float, float]] = {
    Seal: (15.0, 512.0),  # one a verdict
}
"""Per second, and in a burst, of what stands in one message beside others of its kind. A message within another one
costs what it costs alone."""
ELSE = (2.0, 128.0)
"""Of what is not its own news. A follower says the newest policies again when it starts: a few."""
HANDED = (50.0, 4096.0)
"""What one peer may hand over when we ask what we missed: a whole board at once, then what a loud pool says."""
PATIENCE = (1.0, 256.0)
"""Messages beyond these budgets that are only dropped. Whoever uses it up is not heard for MUTED seconds."""
MUTED = 60.0


def own_budgets() -> dict[type, Budgets]:
    """What each member may say of each kind of its own, and of the entries of one. Everything else is what others
    wrote, what was said before, and what is not worth reading: charged to who published it, never to who wrote it."""
    rates = {kind: (row.per_second, row.burst) for kind, row in COUNTS.items()}
    return {kind: Budgets(*rate) for kind, rate in {**rates, **ENTRIES}.items()}
