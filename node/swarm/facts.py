"""What is so in a pool, as this node sees it: typed facts with their whole identity, and who is told of them.

`PoolState` makes facts from words; services read facts and post words. A fact stands until `Undone` takes it back: a
later term does, or a replaced block. Who comes late gets what stands.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, TypeVar, cast

import msgspec
import structlog
import trio

from node.clock import Seconds
from node.recent import Recent
from node.swarm.readers import Reader
from node.swarm.terms import Term
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS
from protocol.manifest import PolicyStatement
from protocol.messages import (
    Certificate,
    CheckpointOffered,
    CutSigned,
    DueSigned,
    EarningsSigned,
    EpochShown,
    PolicyAnnounced,
    SilenceSigned,
    StepJudged,
    StepObjected,
    VerdictIssued,
    VerdictRechecked,
)

log = structlog.get_logger()
KEPT_SECONDS = 240.0
"""For so long what is not a policy or a checkpoint is told to who comes late, as the board keeps messages."""


WorkId = bytes
"""Of a commitment (`protocol.statements.work_id`), 32 bytes."""


class Fork(msgspec.Struct, frozen=True):
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


class LeaderDisbelieved(Fact, frozen=True):
    """The holder of a term said what cannot be true together, or a quorum found a step of it bad."""

    term: int
    fork: Fork
    lasting: ClassVar[bool] = True


class CheckpointOf(Fact, frozen=True):
    """Its author says that it has the state of a followed policy. All are tried: the bytes say whether it is so."""

    message: CheckpointOffered
    lasting: ClassVar[bool] = True


class ObjectionRaised(Fact, frozen=True):
    """A standby came to another state than the followed policy's."""

    message: StepObjected


class StepAccused(Fact, frozen=True):
    """A validator found a stated step bad."""

    message: StepJudged


class VerdictKnown(Fact, frozen=True):
    """A validator's verdict, whether its work is known here or not."""

    message: VerdictIssued
    keep: ClassVar[int] = 1024


class RecheckKnown(Fact, frozen=True):
    """A second look."""

    message: VerdictRechecked


class WorkTouched(Fact, frozen=True):
    """Something was said about a work: ask what the pool thinks of it. author: who spoke."""

    work: WorkId
    keep: ClassVar[int] = 0


class VerdictWanted(Fact, frozen=True):
    """A trainer waits for a verdict on a known work."""

    work: WorkId
    keep: ClassVar[int] = 0


class Certified(Fact, frozen=True):
    """What a validator certified in one message. The signatures are checked by whom they concern."""

    certificates: tuple[Certificate, ...]
    keep: ClassVar[int] = 1024


class EpochsShown(Fact, frozen=True):
    """A node shows the certificates that it holds."""

    shown: tuple[EpochShown, ...]
    keep: ClassVar[int] = 16


class TableSigned(Fact, frozen=True):
    """A validator signed a table of earnings."""

    message: EarningsSigned
    keep: ClassVar[int] = 16


class DueTold(Fact, frozen=True):
    """Which works a validator held accepted when it heard of a policy."""

    message: DueSigned


class SilenceTold(Fact, frozen=True):
    """A validator does not hear the leader in its running lease."""

    message: SilenceSigned
    keep: ClassVar[int] = 1


class RunTold(Fact, frozen=True):
    """How the run goes, by the word of its leader. reward: mean held-back reward; None before the first."""

    over: bool
    step: int
    reward: float | None
    keep: ClassVar[int] = 1
    lasting: ClassVar[bool] = True


class PeerTold(Fact, frozen=True):
    """Of a run with rounds: which rows a peer learns from, and with which outer state its round begins."""

    seat: int
    round: int
    outer: bytes
    keep: ClassVar[int] = 1


class RoundVoted(Fact, frozen=True):
    """A validator's word on a round's list. raw: the envelope, as evidence."""

    message: CutSigned
    raw: bytes
    keep: ClassVar[int] = 128


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


News = Fact | Undone
F = TypeVar("F", bound=News)


class _Told(msgspec.Struct, frozen=True):
    number: int
    at: float
    fact: Fact


_NONE: Mapping[Address, "Recent[int, _Told]"] = {}


class Facts:
    """One per node: tells facts to who subscribed, and keeps what who comes late must know. clock: monotonic
    seconds."""

    def __init__(self, clock: Seconds = trio.current_time) -> None:
        self._clock = clock
        self._number = 0
        self._kept: dict[type[Fact], Recent[Address, Recent[int, _Told]]] = {}
        self._readers: dict[type[News], list[Reader[News]]] = {}
        self.lost = 0

    def subscribe(self, *kinds: type[F], by: Callable[[Address], bool] | None = None) -> trio.MemoryReceiveChannel[F]:
        """News of some kinds in their order, what stands first. by: whose; None: everybody's.

        Who subscribes to policies names `Undone`, too, or says why what is taken back does not matter to it.
        """
        reader = Reader[F](by)
        for one in self.standing(*kinds):
            self.lost += not reader.offer(one.author, one)  # type: ignore[arg-type]
        for kind in kinds:
            self._readers.setdefault(kind, []).append(reader)  # type: ignore[arg-type]
        return reader.channel

    def standing(self, *kinds: type[F]) -> list[F]:
        """Of some kinds, oldest first."""
        now = self._clock()
        rows = (row for kind in kinds if issubclass(kind, Fact) for row in self._kept.get(kind, _NONE).values())
        kept = [one for row in rows for one in row.values() if one.fact.lasting or now - one.at <= KEPT_SECONDS]
        return cast(list[F], [one.fact for one in sorted(kept, key=lambda one: one.number)])

    def tell(self, news: Iterable[News]) -> None:
        for one in news:
            self._keep(one)
            # A copy: readers that have gone are taken out on the way.
            for reader in list(self._readers.get(type(one), ())):
                try:
                    self.lost += not reader.offer(one.author, one)
                except trio.BrokenResourceError:
                    self._readers[type(one)].remove(reader)

    def _keep(self, news: News) -> None:
        if isinstance(news, Undone):
            row = self._kept.get(type(news.fact), _NONE).get(news.author)
            for number in [number for number, told in (row or {}).items() if told.fact == news.fact]:
                del row[number]  # type: ignore[index]
        elif news.keep:
            self._number += 1
            rows = self._kept.setdefault(type(news), Recent(MAX_MEMBERS))
            row = rows.setdefault(news.author, Recent(news.keep))
            row[self._number] = _Told(self._number, self._clock(), news)
