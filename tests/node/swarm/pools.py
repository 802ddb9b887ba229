"""A pool's state that is fed words without a network: an honest history, what liars say beside it, any order.

Inputs are data, so that a history can be replayed, shuffled, doubled, and played with and without a liar's words. The
board's part is done here: a word that is in no form, or that its author may not say now, does not come through.
"""

import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from node.swarm.counts import COUNTS, may_say
from node.swarm.facts import News
from node.swarm.membership import Membership
from node.swarm.pool_state import Passed, PoolState, TermsChanged, WordHeard
from node.swarm.vote_set import FileState
from protocol.audit import AuditSpec, window_of
from protocol.checks import Reason
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey
from protocol.lots import RATE_ONE, LotPledge, pack_groups, secret_hash
from protocol.manifest import PolicyStatement
from protocol.messages import (
    AcceptedList,
    CheckpointOffered,
    DisputeRaised,
    EarningsVote,
    EnvironmentPublished,
    EpochRootSigned,
    Heartbeat,
    Judgement,
    LeaderSilent,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    RoundVote,
    Seal,
    Signed,
    StepObjected,
    StepVerdict,
    TaskClaimed,
    TaskOffered,
    ValidatorBatch,
    VerdictIssued,
    VerdictRechecked,
    VerdictRequested,
    seal_of,
    values_hash,
    with_carried,
)
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.statements import Earnings, EpochRoot, Rechecked, Verdict, VerdictOutcome, WorkCommitment, work_id
from protocol.tasks import TaskSpec, encode_task, task_id
from protocol.values import mean_logprobs, reward_tags

POOL, GROUPS, SIZE, QUORUM = 1, 2, 2, 3
PACE, STEPS, DRAIN = 5.0, 8, 90.0
"""Seconds of a policy; policies after the first; seconds after the last word, by which all that waits is forgotten."""
TAKEN_AT, UNTIL = 3, 2**39
VALIDATORS = tuple(f"validator {number}" for number in range(1, 5))
NAMES = (
    "dismissed", "leader", "standby", *VALIDATORS, "former", "coming", "worker 1", "worker 2", "member", "observer",
)  # fmt: skip
ADDRESS: dict[str, Address] = {name: NodeKey(blake3(name.encode()).digest()).address for name in NAMES}
NAME = {address: name for name, address in ADDRESS.items()}
RUN = RunSpec(
    name="pools",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(group_size=SIZE, prompts_per_step=2 * GROUPS, prompts_per_file=GROUPS),
    recipe=Recipe(max_staleness=2),
    audit=AuditSpec(window=2, verdict_seconds=30.0, delivery_seconds=20.0),
)
TASK = encode_task(TaskSpec(kind="filter", policy="ab" * 32, last=8, shard_size=2))


class Said(msgspec.Struct, frozen=True):
    """name says a word."""

    at: float
    name: str
    word: Any


class Told(msgspec.Struct, frozen=True):
    """The chain tells something: a method of `Terms`, or of `Membership`, and what it is given."""

    at: float
    what: str
    given: tuple[Any, ...] = ()


Input = Said | Told


class Wire:
    """A network that nobody listens to."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Pool:
    """One node's state of a pool, and what it told. news: all facts, in their order; shut: words that did not come
    through, by why."""

    def __init__(self) -> None:
        self.now = 0.0
        wire: Any = Wire()
        own = ADDRESS["observer"]
        self.membership = Membership(own, wire, ADDRESS["dismissed"], (), lambda: self.now, quorum=QUORUM)
        self.state = PoolState(self.membership, RUN, POOL, self._opened, lambda: self.now)
        self.news: list[News] = []
        self.shut: Counter[str] = Counter()
        self._carried: dict[bytes, Signed[Any]] = {}
        for name in NAMES:
            self.membership.joined(ADDRESS[name], "")
        self.membership.terms.seat(_addresses("dismissed", "leader", "standby"), 10**6, 10)
        self.membership.appoint(_addresses(*VALIDATORS, "former"), QUORUM)
        self.membership.terms.follow(lambda: self._apply(TermsChanged()))
        # As after a while: what is heard right after a start is held against nobody.
        self.now = 100.0

    def play(self, inputs: Iterable[Input], *, drains: float = DRAIN) -> "Pool":
        for one in sorted(inputs, key=lambda one: one.at):
            self._tick_until(100.0 + one.at)
            self.take(one)
        self._tick_until(self.now + drains)
        return self

    def take(self, one: Input) -> None:
        if isinstance(one, Told):
            owner = self.membership.terms if hasattr(self.membership.terms, one.what) else self.membership
            getattr(owner, one.what)(*one.given)
        else:
            self.hear(one.name, one.word)

    def hear(self, name: str, word: Message) -> None:
        author = ADDRESS[name]
        if why := self._why_not(author, word):
            self.shut[why] += 1
            return
        if isinstance(word, Heartbeat):
            self.membership.table.beat(author, word, self.now)
        for one in with_carried(envelope(name, word)):
            self._apply(WordHeard(one))

    def _why_not(self, author: Address, word: Message) -> str:
        if not may_say(self.membership, author, type(word)):
            return "office"
        if faulty(word):
            return "form"
        try:
            for raw in (word.first, word.second) if isinstance(word, DisputeRaised) else ():
                self._opened(raw, VerdictIssued)
            if isinstance(word, VerdictRequested):
                self._opened(word.commitment, RolloutCommitted)
        except ProtocolError:
            return "carried"
        return ""

    def _apply(self, given: Any) -> None:
        self.news += self.state.apply(given)

    def _opened(self, raw: bytes, kind: type[Any]) -> Signed[Any]:
        try:
            name, word = msgspec.msgpack.decode(raw, type=tuple[str, bytes])
            made = msgspec.msgpack.decode(word, type=kind)
        except msgspec.MsgspecError as error:
            raise ProtocolError("message refused", "it cannot be read") from error
        if self._why_not(ADDRESS[name], made):
            raise ProtocolError("message refused", "its author may not say it")
        return Signed(ADDRESS[name], made, raw)

    def _tick_until(self, at: float) -> None:
        while self.now + 1.0 <= at:
            self.now += 1.0
            self._apply(Passed())
        self.now = max(self.now, at)


def _addresses(*names: str) -> tuple[Address, ...]:
    return tuple(ADDRESS[name] for name in names)


def envelope(name: str, word: Any) -> Signed[Any]:
    """As if it was signed; its bytes say who said what."""
    return Signed(ADDRESS[name], word, msgspec.msgpack.encode((name, msgspec.msgpack.encode(word))))


def faulty(word: Any) -> bool:
    """Whether every board refuses it by its form."""
    try:
        return word.fault() is not None
    except (ProtocolError, OverflowError, ValueError):
        return True


# what honest people say


def root(what: str) -> bytes:
    return blake3(what.encode()).digest()


def policy_root(step: int) -> bytes:
    return root(f"policy {step}")


def term_of(step: int) -> tuple[int, str]:
    return (2, "leader") if step >= TAKEN_AT else (0, "dismissed")


def stated(step: int, term: int, **changes: Any) -> PolicyAnnounced:
    parent = policy_root(step - 1) if step else bytes(32)
    of = PolicyStatement(POOL, term, step, 0, parent, policy_root(step), root(f"batch {step}"), root(f"state {step}"))
    of = msgspec.structs.replace(of, **changes)
    return PolicyAnnounced(pool=POOL, statement=of, signature=bytes(65), manifest_root=root("m"), manifest_size=1)


def commitment(step: int, name: str, index: int = 0) -> WorkCommitment:
    return WorkCommitment(POOL, ADDRESS[name], policy_root(step), index, root(f"file {step} {name} {index}"), 5)


def committed(step: int, name: str, index: int = 0) -> RolloutCommitted:
    return RolloutCommitted(pool=POOL, commitment=commitment(step, name, index), signature=bytes(65), size=9)


def verdict(kind: type[Any], of: WorkCommitment, step: int, *, accept: bool = True) -> Any:
    """What an honest validator says of a file, or (not accept) what a liar says of it."""
    said = Rechecked if kind is VerdictRechecked else Verdict
    outcome, reason = (VerdictOutcome.ACCEPT, Reason.NONE) if accept else (VerdictOutcome.SLASH, Reason.WRONG_DRAW)
    values: dict[str, Any] = {}
    if accept:
        values = {"checked": pack_groups(range(GROUPS), GROUPS), "rewards": reward_tags([1.0, 0.0] * GROUPS, SIZE, ())}
        values["logprobs"] = mean_logprobs({g: [np.full(3, -1.0, dtype=np.float32)] for g in range(GROUPS)})
        values |= {"window": window_of(step, RUN.audit), "rate": RATE_ONE}
    verdict = said(**msgspec.structs.asdict(of), outcome=int(outcome), reason=int(reason))
    return bound(kind(pool=POOL, verdict=verdict, signature=bytes(65), **values))


def bound(word: Any) -> Any:
    """A judgement whose verdict signs what it says beside it."""
    if not isinstance(word, Judgement):
        return word
    of = msgspec.structs.replace(word.verdict, values=values_hash(word))
    return msgspec.structs.replace(word, verdict=of)


def beat(name: str, step: int, count: int) -> Heartbeat:
    lots: tuple[LotPledge, ...] = ()
    if name in VALIDATORS:
        windows = range(window_of(max(step, 0), RUN.audit), window_of(max(step, 0), RUN.audit) + 2)
        lots = tuple(
            LotPledge(w, secret_hash(secret(name, w), ADDRESS[name], POOL, w), RATE_ONE, RATE_ONE) for w in windows
        )
    role = name.split()[0]
    role = "trainer" if role in ("leader", "standby", "dismissed") else role if role != "member" else "worker"
    role = role if role in ("trainer", "validator", "worker") else "validator"
    return Heartbeat(
        pool=POOL, boot=1, count=count, at=1000 * count, role=role, state="working", contact="", policy_step=step,
        interval=5.0, lots=lots,
    )  # fmt: skip


def secret(name: str, window: int) -> bytes:
    return root(f"secret {name} {window}")


def history() -> list[Input]:
    """An honest run: policies, files, verdicts, pledges, audits, tasks; one term that follows another."""
    found: list[Input] = []
    for step in range(STEPS + 1):
        found += _policy(step)
    for number in range(int(((STEPS + 1) * PACE + DRAIN) / 4)):
        for name in (*VALIDATORS, "leader", "standby", "worker 1", "worker 2"):
            at = 4.0 * number + 0.3
            found.append(Said(at, name, beat(name, min(int(at / PACE), STEPS), number + 1)))
    return sorted(found, key=lambda one: one.at)


def _policy(step: int) -> Iterator[Input]:
    at, (term, holder) = step * PACE + 1.0, term_of(step)
    if step == TAKEN_AT:
        yield from take_over(at - 0.9)
    yield Said(at, holder, stated(step, term))
    for number, name in enumerate(("worker 1", "worker 2")):
        made, when = commitment(step, name), at + 0.2 + 0.1 * number
        yield Said(when, name, committed(step, name))
        for place, judge in enumerate(VALIDATORS):
            word = verdict(VerdictIssued, made, step)
            seal = Seal(work_id(made), seal_of(word, ADDRESS[judge]))
            yield Said(when + 0.3 + 0.05 * place, judge, ValidatorBatch(pool=POOL, seals=(seal,)))
            carried = place % 2 == 0
            yield Said(
                when + 0.8 + 0.05 * place, judge, ValidatorBatch(pool=POOL, carried=(word,)) if carried else word
            )
    if step >= TAKEN_AT:
        offered = TaskOffered(pool=POOL, sequence=1000 + step, spec=TASK)
        yield Said(at + 0.05, "leader", offered)
        yield Said(
            at + 0.1, "leader", CheckpointOffered(pool=POOL, term=2, step=step, root=root(f"card {step}"), size=9)
        )
    if step == TAKEN_AT + 1:
        yield Said(at + 0.3, "worker 1", TaskClaimed(pool=POOL, task=task_id(TASK), shard=0, sequence=9))
    if step:
        for place, judge in enumerate(VALIDATORS):
            yield Said(at + 1.5 + 0.05 * place, judge, judged(step))
            works = tuple(sorted(work_id(commitment(step - 1, name)) for name in ("worker 1", "worker 2")))
            yield Said(at + 0.4 + 0.05 * place, judge, AcceptedList(pool=POOL, step=step, works=works))
            window = window_of(step, RUN.audit) - 3
            if window >= 0 and step % RUN.audit.window == 0:
                yield Said(at + 2.0, judge, LotsRevealed(pool=POOL, window=window, secret=secret(judge, window)))


def take_over(at: float) -> Iterator[Input]:
    """The chain tells of a term that nobody used, of the leader's, and of who has left office."""
    yield Told(at, "take", (2, ADDRESS["leader"], TAKEN_AT, policy_root(TAKEN_AT - 1), UNTIL))
    yield Told(at + 0.01, "seat", (_addresses("leader", "standby"), 10**6, 10))
    yield Told(at + 0.02, "appoint", (_addresses(*VALIDATORS), QUORUM))


def judged(step: int) -> StepVerdict:
    term, holder = term_of(step)
    of = stated(step, term).statement
    given: dict[str, Any] = {"outcome": int(VerdictOutcome.ACCEPT), "reason": 0, "signature": bytes(65)}
    return StepVerdict(pool=POOL, statement=of, trainer=ADDRESS[holder], word=bytes(65), **given)


def template(kind: type[Message], step: int) -> Any:
    """A word of a kind as somebody honest says it, or would, when policy `step` is the newest."""
    made, before = commitment(step, "worker 1"), commitment(max(step - 1, 0), "worker 1")
    first = verdict(VerdictIssued, before, max(step - 1, 0))
    term, holder = term_of(step)
    words: dict[type[Message], Callable[[], Any]] = {
        Heartbeat: lambda: beat("validator 1", step, 900 + step),
        PolicyAnnounced: lambda: stated(step, term),
        CheckpointOffered: lambda: CheckpointOffered(pool=POOL, term=term, step=max(step, 1), root=root("c"), size=9),
        StepObjected: lambda: StepObjected(pool=POOL, term=term, step=max(step, 1)),
        RolloutCommitted: lambda: committed(step, "worker 1"),
        ValidatorBatch: lambda: ValidatorBatch(pool=POOL, seals=(Seal(work_id(made), root("seal")),), carried=(first,)),
        VerdictIssued: lambda: first,
        VerdictRechecked: lambda: verdict(VerdictRechecked, before, max(step - 1, 0)),
        AcceptedList: lambda: AcceptedList(pool=POOL, step=step, works=(work_id(made),)),
        StepVerdict: lambda: judged(max(step, 1)),
        LotsRevealed: lambda: LotsRevealed(pool=POOL, window=max(window_of(step, RUN.audit) - 1, 0), secret=root("s")),
        DisputeRaised: lambda: DisputeRaised(
            pool=POOL, first=envelope("validator 1", first).raw, second=envelope("validator 2", first).raw
        ),
        VerdictRequested: lambda: VerdictRequested(
            pool=POOL, commitment=envelope("worker 1", committed(step, "worker 1")).raw
        ),
        EpochRootSigned: lambda: EpochRootSigned(
            pool=POOL, statement=EpochRoot(POOL, 0, 1, root("leaves"), 9, root("blob")), signature=bytes(65)
        ),
        EarningsVote: lambda: EarningsVote(
            pool=POOL,
            earnings=Earnings(POOL, 0, 7, root("earnings"), 9, root("lines")),
            table=root("table"), size=9, signature=bytes(65),
        ),
        RoundVote: lambda: RoundVote(
            pool=POOL, round=step, ballot=0, closed=False, outer=root("outer"), state=root("cut"), size=9, files=()
        ),
        LeaderSilent: lambda: LeaderSilent(pool=POOL, term=term, until=UNTIL, step=step, signature=bytes(65)),
        TaskOffered: lambda: TaskOffered(pool=POOL, sequence=5000 + step, spec=TASK),
        TaskClaimed: lambda: TaskClaimed(pool=POOL, task=task_id(TASK), shard=1, sequence=5000 + step),
        EnvironmentPublished: lambda: EnvironmentPublished(
            pool=POOL, name="words", root=root("package"), size=9, determinism="exact", turns=1, about="", sequence=5
        ),
    }  # fmt: skip
    assert words.keys() == COUNTS.keys(), "a message that nobody says here"
    return words[kind]()


# what it comes to

Stands = Mapping[str, frozenset[Any]]


def stands(pool: Pool) -> Stands:
    """What is so for services: one set a book. (whom it is about, what)"""
    state, works = pool.state, pool.state.register._works
    policies = state.policies
    holders = {one.number: one.holder for one in pool.membership.terms.all()}
    followed = [one for step in policies.steps if (one := policies.of_step(step)) is not None]
    return {
        "policies": frozenset((NAME[one.author], one.step, one.root) for one in followed),
        "newest": frozenset({("", policies.newest_step)}),
        "forks": frozenset((NAME[holders.get(term, ADDRESS["observer"])], term) for term in policies.equivocations),
        "known": frozenset(("", root_, one.step) for root_, one in policies._known.items() if one.orphaned_at is None),
        "works": frozenset((NAME[one.node], id, one.rival, one.step) for id, one in works.items()),
        "states": frozenset(
            (NAME[one.node], id, state.vote_set.state(id)) for id, one in works.items() if not one.rival
        ),
        "checkpoints": frozenset(
            (NAME[author], *place, one.message.root)
            for place, offers in state.checkpoints._offered.items()
            for author, one in offers.items()
        ),
        "verdicts": frozenset(
            (NAME[who], statement) for statement, one in state.steps._judged.items() for who in one.by
        ),
        "pledges": frozenset(
            (NAME[who], window, one.pledge.hash) for (who, window), one in state.lots._pledged.items()
        ),
        "tasks": frozenset(("", one.id, one.open) for one in state.tasks.tasks()),
        "disbelieved": frozenset((NAME[who],) for who in state.disputes.quarantined),
    }


def differing(one: Stands, other: Stands) -> dict[str, frozenset[Any]]:
    return {name: one[name] ^ other[name] for name in one if one[name] != other[name]}


def alone(pool: Pool) -> list[bytes]:
    """Works that fewer than two accepted."""
    vote_set, works = pool.state.vote_set, pool.state.register._works
    return [id for id in works if vote_set.state(id) is FileState.ACCEPTED and len(vote_set.accepting(id)) < 2]


def sizes(thing: Any, seen: set[int] | None = None) -> int:
    """Entries of all tables that hang on something of ours."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)) or callable(thing):
        return 0
    seen.add(id(thing))
    if isinstance(thing, Mapping):
        return len(thing) + sum(sizes(one, seen) for one in thing.values())
    if isinstance(thing, (list, tuple, set, frozenset)) or type(thing).__name__ == "deque":
        return len(thing) + sum(sizes(one, seen) for one in thing)
    if isinstance(thing, msgspec.Struct):
        return sum(sizes(getattr(thing, name), seen) for name in thing.__struct_fields__)
    return sum(sizes(one, seen) for one in vars(thing).values()) if hasattr(thing, "__dict__") else 0


def weight(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes that something of ours holds, what it shares with others once; no functions, classes and members."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (type, Enum, Membership)) or callable(thing):
        return 0
    seen.add(id(thing))
    held: list[Any] = []
    if isinstance(thing, Mapping):
        held = [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        held = list(thing)
    elif isinstance(thing, msgspec.Struct):
        held = [getattr(thing, name) for name in thing.__struct_fields__]
    elif hasattr(thing, "__dict__"):
        held = [vars(thing)]
    return sys.getsizeof(thing) + sum(weight(one, seen) for one in held)


def delayed(inputs: Sequence[Input], chance: random.Random, most: float, doubled: float = 0.1) -> list[Input]:
    """The same in another order of arrival: each word late by up to so many seconds, some of them twice. The chain
    tells in its order."""
    found: list[Input] = []
    for one in inputs:
        if isinstance(one, Told):
            found.append(one)
            continue
        for _ in range(1 + (chance.random() < doubled)):
            found.append(msgspec.structs.replace(one, at=one.at + chance.random() * most))
    return found
