"""Random disputes over the product's counting: validators of which some lie, are away or come late, and one work.

Each node counts for itself, and hears in an order of its own. What must hold at every honest node, whatever the liars
say: nobody honest is disbelieved, a bad work is not accepted, a good one not rejected; and where most of the office
looked again, whoever denied what it saw is disbelieved.
"""

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import numpy as np

from node.swarm.disputes import Disputes
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState, VoteSet
from protocol.audit import AuditSpec
from protocol.checks import Reason
from protocol.identity import NodeKey
from protocol.lots import pack_groups
from protocol.messages import RolloutCommitted, Signed, VerdictIssued, VerdictRechecked
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.statements import Rechecked, Verdict, VerdictOutcome, WorkCommitment, work_id
from protocol.values import mean_logprobs, reward_tags

GROUPS, SIZE = 2, 2
KEYS = [NodeKey(bytes([n]) * 32).address for n in range(1, 9)]
WORKER = NodeKey(b"\x63" * 32).address
RUN = RunSpec(
    name="t",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(group_size=SIZE, prompts_per_step=GROUPS, prompts_per_file=GROUPS),
    recipe=Recipe(max_staleness=2),
    audit=AuditSpec(window=4, verdict_seconds=30.0, delivery_seconds=20.0),
)
COMMITMENT = WorkCommitment(1, WORKER, b"\1" * 32, 0, b"\2" * 32, 5)
WORK = work_id(COMMITMENT)
Liar = Literal["denies", "denies once", "looks otherwise", "says nothing again", "only heard"]
LIARS: tuple[Liar, ...] = ("denies", "denies once", "looks otherwise", "says nothing again", "only heard")


class Sides(msgspec.Struct, frozen=True):
    """office: how many validators; liars, away: how many of them; what the liars do; good: whether the work is;
    served: whether honest validators get its file."""

    office: int
    liars: int
    away: int
    liar: Liar
    good: bool
    served: bool
    quorum: int


class Books:
    """Stands for the register of one node. age: policies that came since."""

    def __init__(self) -> None:
        signed = Signed(WORKER, RolloutCommitted(pool=1, commitment=COMMITMENT, signature=b"", size=9), b"raw")
        self.work = RegisteredWork(WORK, signed, 0, 0.0, 0, False, GROUPS, delivered=True)

    def follow_closed(self, listener: Callable[[RegisteredWork], None]) -> None:
        """Nothing is closed here."""

    def get(self, id: bytes) -> RegisteredWork:
        return self.work

    def announcement(self, work: RegisteredWork) -> None:
        return None


def word(kind: type, *, accept: bool, heard: bool = False) -> Any:
    """What a validator finds: that the work is good, that it is not, or (heard) that it could not have it."""
    reason = Reason.NONE if accept else Reason.UNAVAILABLE if heard else Reason.WRONG_DRAW
    outcome = VerdictOutcome.ACCEPT if accept else VerdictOutcome.REJECT if heard else VerdictOutcome.SLASH
    said = Rechecked if kind is VerdictRechecked else Verdict
    place = {name: getattr(COMMITMENT, name) for name in COMMITMENT.__struct_fields__}
    values: dict[str, Any] = {"checked": pack_groups(range(GROUPS), GROUPS)} if accept else {}
    if accept:
        values["rewards"] = reward_tags([1.0, 0.0] * GROUPS, SIZE, ())
        values["logprobs"] = mean_logprobs({g: [np.full(3, -1.0, dtype=np.float32)] for g in range(GROUPS)})
    return kind(pool=1, verdict=said(**place, outcome=outcome, reason=reason), signature=b"", **values)


class Node:
    def __init__(self, sides: Sides, now: Callable[[], float], live: Callable[[], list[Any]]) -> None:
        bench = SimpleNamespace(validators=KEYS[: sides.office], quorum=sides.quorum, live_validators=live)
        self.books = Books()
        books: Any = self.books
        self.vote_set = VoteSet(RUN, books, bench, now, Disputes(RUN, books, bench, now))

    def hear(self, signed: Signed[Any]) -> None:
        (self.vote_set.recheck if isinstance(signed.message, VerdictRechecked) else self.vote_set.add)(signed)


def play(sides: Sides, seed: int, vote_set: Mapping[str, Any] | None = None) -> list[str]:
    """What went wrong at honest nodes, in words; nothing if all is as it must be. ballots: methods of theirs that are
    replaced, to plant a fault."""
    chance = random.Random(seed)
    time = [100.0]
    bench = KEYS[: sides.office]
    lying, away = bench[: sides.liars], bench[sides.office - sides.away :]
    honest = [one for one in bench[sides.liars :] if one not in away]
    nodes = {one: Node(sides, lambda: time[0], lambda: [*lying, *honest]) for one in [*honest, WORKER]}
    for node in nodes.values():
        for name, instead in (vote_set or {}).items():
            owner = node.vote_set if hasattr(node.vote_set, name) else node.vote_set.disputes
            setattr(owner, name, instead.__get__(owner))
    words: list[tuple[float, Any, Signed[Any]]] = []

    def say(author: Any, message: Any, at: float) -> None:
        for node in nodes:
            delay = 0.0 if node == author else chance.choice((0.1, 0.5, 3.0, 12.0))
            words.append((at + delay, node, Signed(author, message, repr((author, message)).encode())))

    truth = sides.good
    served = [one for one in honest if chance.random() < 0.85] or honest if sides.served else []
    for author in honest:
        say(
            author,
            word(VerdictIssued, accept=truth and author in served, heard=author not in served),
            time[0] + chance.random(),
        )
    for author in lying:
        heard = sides.liar == "only heard"
        first = truth if sides.liar == "looks otherwise" else not truth
        say(author, word(VerdictIssued, accept=first and not heard, heard=heard), time[0] + 8 * chance.random())
        if sides.liar != "says nothing again" and not heard:
            again = truth if sides.liar == "denies once" else not truth
            say(author, word(VerdictRechecked, accept=again), time[0] + 15 + 10 * chance.random())
    asked: set[Any] = set()
    found: list[str] = []
    waited = RUN.audit.verdict_seconds
    ticks = [time[0] + waited * share for share in (1.01, 2.5, 4)]
    while ticks or words:
        # From one event to the next: a word, or what only time decides.
        next_word = min(words, key=lambda one: one[0], default=None)
        if next_word is None or (ticks and ticks[0] < next_word[0]):
            time[0] = ticks.pop(0)
        else:
            words.remove(next_word)
            time[0] = max(time[0], next_word[0])
            nodes[next_word[1]].hear(next_word[2])
        for one in honest:
            # Whoever sees a dispute looks again, at all of it, and nobody else tells it to.
            if one in served and nodes[one].vote_set.disputes.open() and one not in asked:
                asked.add(one)
                say(one, word(VerdictRechecked, accept=truth), time[0] + 1.0)
        for name, node in nodes.items():
            found += _wrong(sides, name, node, honest)
    for name, node in nodes.items():
        disputed = node.vote_set.disputes.raised > 0
        most = (
            2 * len(asked) > sides.office
            and len(asked) >= 2
            and sides.liar in ("denies", "denies once", "says nothing again")
        )
        if disputed and most and not set(lying) <= node.vote_set.disputes.quarantined.keys():
            found.append(f"{name}: believes who denied what most of the office saw")
    return sorted(set(found))


def _wrong(sides: Sides, name: Any, node: Node, honest: list[Any]) -> list[str]:
    state = node.vote_set.state(WORK)
    found = [f"{name}: {one} is honest and disbelieved" for one in honest if one in node.vote_set.disputes.quarantined]
    if state is FileState.ACCEPTED and not sides.good:
        found.append(f"{name}: a bad work is accepted")
    if state is FileState.REJECTED and sides.good and not node.vote_set.rejecting(WORK).keys() & set(honest):
        found.append(f"{name}: a good work is rejected")
    return found


def cells() -> list[Sides]:
    """Three to seven validators; fewer than a quorum lie, and as many may be away as leave one."""
    found = []
    for office in range(3, 8):
        quorum = office // 2 + 1
        for liars in range(1, quorum):
            for away in range(0, office - liars):
                for liar in LIARS:
                    for good, served in ((True, True), (False, True), (False, False)):
                        found.append(Sides(office, liars, away, liar, good, served, quorum))
    return found
