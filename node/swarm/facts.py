"""What is so in a pool, as this node sees it: typed facts with their whole identity, and who is told of them.

`PoolState` makes facts from words; services read facts and post words. A word that counts and says no more than its
author meant is told as it was signed (`subscribe(AcceptedList)`). A fact stands until `Undone` takes it back: a later
term does, or a replaced block. Who comes late gets what stands.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, TypeVar, overload

import msgspec
import structlog
import trio

from node.bounded_dict import BoundedDict
from node.clock import Seconds
from node.swarm.author_queue import Readers
from node.swarm.terms import Term
from protocol.earnings import Leaf
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS
from protocol.manifest import PolicyStatement
from protocol.messages import (
    CheckpointOffered,
    EarningsVote,
    EnvironmentPublished,
    EpochRootSigned,
    LeaderSilent,
    M,
    Message,
    PolicyAnnounced,
    RoundVote,
    Signed,
    VerdictIssued,
)
from protocol.tasks import TaskId

log = structlog.get_logger()


WorkId = bytes
"""Of a commitment (`protocol.statements.work_id`), 32 bytes."""


class Equivocation(msgspec.Struct, frozen=True):
    """Why a trainer is not believed: two announcements of it that cannot both be true, or a quorum that found a step
    bad. evidence: the envelopes."""

    what: str
    evidence: tuple[bytes, ...]


class Quarantined(msgspec.Struct, frozen=True):
    """Why a validator is not believed. evidence: envelopes of contradicting or broken promises, signed by their
    authors; enough for anybody to come to the same result."""

    validator: Address
    why: str
    at: float
    evidence: tuple[bytes, ...]


class Fact(msgspec.Struct, frozen=True):
    """author: whose word or doing it is; keep: of one author, told to who comes late."""

    author: Address
    keep: ClassVar[int] = 64
    lasting: ClassVar[bool] = False
    """Whether it is told to who comes late however old it is."""


class PolicyFollowed(Fact, frozen=True):
    """The policy of a step. raw: the envelope in which its trainer announced it."""

    message: PolicyAnnounced
    raw: bytes
    keep: ClassVar[int] = 512
    lasting: ClassVar[bool] = True

    @property
    def step(self) -> int:
        return self.message.step

    @property
    def root(self) -> bytes:
        return self.message.policy_root

    @property
    def statement(self) -> PolicyStatement:
        return self.message.statement


class TermBegan(Fact, frozen=True):
    """author: its holder."""

    term: Term
    keep: ClassVar[int] = 1
    lasting: ClassVar[bool] = True


class TermMoved(Fact, frozen=True):
    """The lease of the running term was renewed, or it ended. author: its holder."""

    term: Term
    keep: ClassVar[int] = 0


class LeaderDisbelieved(Fact, frozen=True):
    """The holder of a term said what cannot be true together, or a quorum found a step of it bad."""

    term: int
    equivocation: Equivocation
    lasting: ClassVar[bool] = True


class OfWork(Fact, frozen=True):
    """What is told of one work, to who listens at that moment."""

    work: WorkId
    keep: ClassVar[int] = 0


class WorkKnown(OfWork, frozen=True):
    """A commitment is work now. author: whose."""


class ShardClaimed(Fact, frozen=True):
    """A member says that it does a shard of a task."""

    task: TaskId
    shard: int
    keep: ClassVar[int] = 0


class WorkSealed(OfWork, frozen=True):
    """A validator has its verdict on a work."""


class WorkTouched(OfWork, frozen=True):
    """Something was said about a work: ask what the pool thinks of it. author: who spoke."""


class VerdictWanted(OfWork, frozen=True):
    """A trainer waits for a verdict on a known work."""


class LeavesRead(Fact, frozen=True):
    """All leaves of a validator's root of an epoch, by somebody who read them."""

    said: EpochRootSigned
    leaves: tuple[Leaf, ...]
    keep: ClassVar[int] = 0


class RunTold(Fact, frozen=True):
    """How the run goes, by the word of its leader. reward: mean held-back reward; None before the first."""

    over: bool
    step: int
    reward: float | None
    keep: ClassVar[int] = 1
    lasting: ClassVar[bool] = True


class PeerTold(Fact, frozen=True):
    """Of a run with rounds: which rows a peer learns from, and with which outer state its round begins."""

    replica_id: int
    round: int
    outer: bytes
    keep: ClassVar[int] = 1


class JudgeDisbelieved(Fact, frozen=True):
    """A validator is not believed any more. author: the validator."""

    why: Quarantined
    lasting: ClassVar[bool] = True


class JudgeContradicted(Fact, frozen=True):
    """A validator signed two different verdicts on one work: evidence that a contract can be shown."""

    first: VerdictIssued
    second: VerdictIssued
    lasting: ClassVar[bool] = True


class Undone(msgspec.Struct, frozen=True):
    """A fact that stood is none any more."""

    fact: Fact

    @property
    def author(self) -> Address:
        return self.fact.author


News = Fact | Undone | Signed[Any]
F = TypeVar("F", bound=Fact | Undone)
KEEP: Mapping[type[Message], int] = {
    LeaderSilent: 1,
    EpochRootSigned: 64,
    EarningsVote: 16,
    EnvironmentPublished: 16,
    RoundVote: 128,
}
"""Words of one author that are told to who comes late; of other messages as many as of most facts."""
LASTING = (LeaderSilent, CheckpointOffered)


class _Told(msgspec.Struct, frozen=True):
    number: int
    at: float
    fact: Fact | Signed[Any]
    lasting: bool


_NONE: Mapping[Address, "BoundedDict[int, _Told]"] = {}


class Facts:
    """One per node: tells facts to who subscribed, and keeps what who comes late must know. clock: monotonic
    seconds."""

    def __init__(self, clock: Seconds = trio.current_time) -> None:
        self._clock = clock
        self._number = 0
        self._kept: dict[type, BoundedDict[Address, BoundedDict[int, _Told]]] = {}
        self._readers: Readers[News] = Readers()

    @overload
    def subscribe(self, *kinds: type[F]) -> trio.MemoryReceiveChannel[F]: ...
    @overload
    def subscribe(self, *kinds: type[M]) -> trio.MemoryReceiveChannel[Signed[M]]: ...
    @overload
    def subscribe(self, *kinds: type[F] | type[M]) -> trio.MemoryReceiveChannel[F | Signed[M]]: ...
    def subscribe(self, *kinds: type[Any]) -> trio.MemoryReceiveChannel[Any]:
        """News of some kinds in their order, what stands first.

        Who subscribes to policies names `Undone`, too, or says why what is taken back does not matter to it.
        """
        return self._readers.subscribe(kinds, self.standing(*kinds))

    def standing(self, *kinds: type[Any]) -> list[Any]:
        """Of some kinds, oldest first."""
        now = self._clock()
        rows = (row for kind in kinds for row in self._kept.get(kind, _NONE).values())
        # For so long what is not a policy or a checkpoint is told to who comes late, as the board keeps messages.
        kept = [one for row in rows for one in row.values() if one.lasting or now - one.at <= 240.0]
        return [one.fact for one in sorted(kept, key=lambda one: one.number)]

    def tell(self, news: Iterable[News]) -> None:
        for one in news:
            self._keep(one)
            self._readers.tell(_kind(one), one)

    def _keep(self, news: News) -> None:
        if isinstance(news, Undone):
            row = self._kept.get(type(news.fact), _NONE).get(news.author)
            for number in [number for number, told in (row or {}).items() if told.fact == news.fact]:
                del row[number]  # type: ignore[index]
            return
        kind = _kind(news)
        word = isinstance(news, Signed)
        keep, lasting = (KEEP.get(kind, Fact.keep), kind in LASTING) if word else (news.keep, news.lasting)
        if keep:
            self._number += 1
            row = self._kept.setdefault(kind, BoundedDict(MAX_MEMBERS)).setdefault(news.author, BoundedDict(keep))
            row[self._number] = _Told(self._number, self._clock(), news, lasting)


def _kind(news: News) -> type:
    said: object = news.message if isinstance(news, Signed) else news
    return type(said)
