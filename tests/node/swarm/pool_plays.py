"""Random plays over a pool's state, by seed: each says what came out otherwise than it must; nothing where it holds."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import msgspec

from node.swarm import policies, seals
from node.swarm.checkpoints import OfferedCheckpoints
from node.swarm.counts import COUNTS, Office
from node.swarm.policies import PolicyIndex
from node.swarm.pool_state import PoolState
from node.swarm.terms import LeaderTerms
from protocol.messages import Message, PolicyAnnounced, RolloutCommitted
from tests.attacks.matrix import words
from tests.attacks.matrix.expected import row_of
from tests.node.swarm.pools import (
    ADDRESS,
    NAME,
    PACE,
    STEPS,
    TAKEN_AT,
    UNTIL,
    VALIDATORS,
    Input,
    Pool,
    Said,
    Stands,
    Told,
    alone,
    bound,
    delayed,
    differing,
    history,
    policy_root,
    root,
    sizes,
    stands,
    stated,
    take_over,
    template,
)

LIARS = ("leader", "standby", "dismissed", "validator 4", "former", "coming", "worker 2", "member")
MOMENTS = (0.9, 1.02, 1.6, 4.2)
"""Seconds after a policy's turn began: just before the honest word, just after it, among the verdicts, apart."""
Differing = Mapping[str, frozenset[Any]]


def of(seed: int) -> random.Random:
    return random.Random(seed)


@cache
def honest() -> Stands:
    return stands(Pool().play(history()))


def lies(chance: random.Random, author: str, kind: type[Message]) -> list[Said]:
    """One deviation of one message: once, every policy, or every second one, at one moment."""
    name, moment, period = chance.choice(words.deviations(kind)), chance.choice(MOMENTS), chance.choice((1, 2, STEPS))
    return said_so(author, kind, name, moment, range(chance.randrange(TAKEN_AT + 1, 6), STEPS + 1, period))


def said_so(author: str, kind: type[Message], name: str, moment: float, steps: range) -> list[Said]:
    found: list[Said] = []
    for step in steps:
        for word in words.deviated(template(kind, step), name, step):
            found.append(Said(step * PACE + moment, author, own(bound(word), author)))
    return found


def own(word: Any, author: str) -> Any:
    """A commitment is its author's, or every board refuses it."""
    if not isinstance(word, RolloutCommitted):
        return word
    return msgspec.structs.replace(word, commitment=msgspec.structs.replace(word.commitment, node=ADDRESS[author]))


def everything(seed: int) -> list[Input]:
    """An honest run with three liars in it, in an order that no network makes."""
    chance = of(seed)
    kinds = list(COUNTS)
    beside = [one for _ in range(3) for one in lies(chance, chance.choice(LIARS), chance.choice(kinds))]
    return delayed([*history(), *beside], chance, chance.choice((0.5, 8.0, 50.0)))


def reordered(seed: int, most: float = 50.0) -> Differing:
    return differing(honest(), stands(Pool().play(delayed(history(), of(seed), most))))


def phantom(seed: int) -> Differing:
    """A standby takes the chair in a block that is replaced, and speaks meanwhile."""
    chance = of(seed)
    at, back = chance.uniform(TAKEN_AT * PACE + 2, STEPS * PACE), chance.choice((0.1, 1, 3, 12))
    first = chance.randrange(4, 9)
    inputs: list[Input] = [Told(at, "take", (3, ADDRESS["standby"], first, policy_root(first - 1), UNTIL))]
    for number in range(chance.randrange(4)):
        step = first + number
        parent = root(f"other {step - 1}") if number else policy_root(first - 1)
        word = stated(step, 3, parent=parent, policy_root=root(f"other {step}"))
        inputs.append(Said(at + 0.2 + 0.5 * number, "standby", word))
    inputs.append(Told(at + back, "undo"))
    return differing(honest(), stands(Pool().play([*history(), *inputs])))


def told_again(seed: int) -> Differing:
    """The leader's term, and hours of what it held since, is taken back and told again."""
    chance = of(seed)
    at, gap = chance.uniform(TAKEN_AT * PACE + 2, STEPS * PACE), chance.choice((0.1, 2.0, 20.0))
    holds = chance.randrange(200)
    kept = [Told(at + 0.001 * number, "hold", (2, UNTIL + number, TAKEN_AT)) for number in range(holds)]
    # What stands there before it is what `take_over` told, without those who took office.
    taken = [one for one in take_over(0.0) if isinstance(one, Told) and one.what != "appoint"]
    undone = [Told(at + 0.5 + 0.001 * number, "undo") for number in range(holds + len(taken))]
    again = [Told(at + 1.0 + gap + 0.001 * number, one.what, one.given) for number, one in enumerate([*taken, *kept])]
    before = stands(Pool().play([*history(), *kept]))
    return differing(before, stands(Pool().play([*history(), *kept, *undone, *again])))


def without_right(seed: int) -> Differing:
    """Others' facts that changed because of one author's words, which it has no right to change."""
    chance = of(seed)
    author, kind = chance.choice(LIARS), chance.choice(list(COUNTS))
    return moved(author, kind, lies(chance, author, kind))


def each_policy(author: str, seed: int) -> Differing:
    """The same of announcements, one deviation a seed."""
    names = words.deviations(PolicyAnnounced)
    beside = said_so(author, PolicyAnnounced, names[seed % len(names)], MOMENTS[0], range(4, STEPS + 1))
    return moved(author, PolicyAnnounced, beside)


def moved(author: str, kind: type[Message], beside: list[Said]) -> Differing:
    row = row_of(kind)
    pool = Pool().play([*history(), *beside])
    found = differing(honest(), stands(pool))
    own = author in row.by
    # Who may say it may change what is about itself, and who convicts itself ends its own term.
    convicted = own and row.evidence and pool.state.policies.equivocations
    kept = {
        name: frozenset(one for one in facts if not (author in one and (own or name == "forks")))
        for name, facts in found.items()
        if not (convicted and name != "disbelieved") and not (own and name in row.adds)
    }
    return {name: facts for name, facts in kept.items() if facts}


def unrightful(seed: int) -> list[str]:
    """What stands by words of those who had no right to them."""
    chance = of(seed)
    liars = chance.sample(LIARS, 2)
    beside = [one for author in liars for _ in range(3) for one in lies(chance, author, chance.choice(list(COUNTS)))]
    pool = Pool().play([*history(), *beside])
    terms, state, found = pool.membership.terms, pool.state, list[str]()
    for step in state.policies.steps:
        one = state.policies.of_step(step)
        if one is not None and not terms.counts(one.author, one.message.term, step, one.message.parent):
            found.append(f"policy {step} by {NAME[one.author]}")
    for term in state.policies.equivocations:
        holder = next((NAME[one.holder] for one in terms.all() if one.number == term), "")
        if holder not in liars:
            found.append(f"{holder} is not believed")
    found += [f"{NAME[who]} is not believed" for who in state.disputes.quarantined if NAME[who] not in liars]
    found += [f"a file of {NAME[state.register._works[id].node]} by one voice" for id in alone(pool)]
    for (_, step), offers in state.checkpoints._offered.items():
        found += [f"checkpoint {step} by {NAME[who]}" for who in offers if not pool.membership.is_trainer(who)]
    for task in state.tasks.tasks():
        if task.open and not any(pool.membership.in_office(who) for who in task.offers):
            found.append(f"a task of {NAME[task.owner]} is open")
    for one in state.steps._judged.values():
        found += [f"a step is judged by {NAME[who]}" for who in one.by if NAME[who] not in (*VALIDATORS, "former")]
    return found


# bounds

SPEAKERS = {
    Office.MEMBER: "worker 2",
    Office.LEADER: "standby",
    Office.TRAINER: "standby",
    Office.VALIDATOR: "validator 4",
    Office.TRAINER_OR_VALIDATOR: "validator 4",
}
SMALL = {(seals, "SEALS"): 256, (seals, "WITHHELD"): 256, (policies, "KNOWN"): 256, (policies, "COMPARED"): 128}
"""Tables that are smaller here than in the product, so that filling them takes no ten thousand words."""
FLOOD = 400


def growth(kind: type[Message], many: int = FLOOD) -> int:
    """Entries by which all tables together grow between so many words of one author, each another one, and twice as
    many."""
    with ExitStack() as small:
        for (module, constant), value in SMALL.items():
            small.enter_context(patch.object(module, constant, value))
        name, pool = SPEAKERS[COUNTS[kind].by], Pool().play(history(), drains=5.0)
        before, first = 0, template(kind, STEPS)
        for number in range(2 * many):
            if number == many:
                before = sizes(pool.state)
            made = bound(words.numbered(words.refreshed(first, number), number))
            pool.hear(name, own(made, name))
        return sizes(pool.state) - before


# faults

Planted = Callable[[], AbstractContextManager[Any]]


@contextmanager
def what_a_replaced_term_said_stays() -> Iterator[None]:
    begin = PolicyIndex.begin_term

    def began(clock: PolicyIndex) -> Any:
        kept = {step: one for step, one in clock._by_step.items() if one.message.term > clock._terms.now.number}
        gone = begin(clock)
        clock._by_step.update(kept)
        for one in kept.values():
            clock._known[one.root] = msgspec.structs.replace(clock._known[one.root], orphaned_at=None)
        return [one for one in gone if one not in kept.values()]

    with patch.object(PolicyIndex, "begin_term", began):
        yield


@contextmanager
def what_was_taken_back_is_never_followed_again() -> Iterator[None]:
    with patch.object(PolicyIndex, "follow_again", lambda clock: []):
        yield


@contextmanager
def checkpoints_of_a_policy_that_was_taken_back_are_gone_for_good() -> Iterator[None]:
    with patch.object(OfferedCheckpoints, "again", lambda *_: None):
        yield


@contextmanager
def an_unknown_policy_is_none_for_good() -> Iterator[None]:
    real = PoolState.is_followed

    def followed(state: PoolState, term: int, step: int) -> bool | None:
        return False if step <= state.newest and real(state, term, step) is None else real(state, term, step)

    with patch.object(PoolState, "is_followed", followed):
        yield


@contextmanager
def whoever_led_leads_on() -> Iterator[None]:
    with patch.object(LeaderTerms, "counts", lambda terms, author, *_: terms.is_trainer(author)):
        yield


@contextmanager
def one_announcement_moves_the_clock() -> Iterator[None]:
    with patch.object(PolicyIndex, "_is_reached", lambda *_: True):
        yield


FAULTS: dict[Planted, Callable[[int], Any]] = {
    what_a_replaced_term_said_stays: phantom,
    what_was_taken_back_is_never_followed_again: phantom,
    checkpoints_of_a_policy_that_was_taken_back_are_gone_for_good: phantom,
    an_unknown_policy_is_none_for_good: reordered,
    whoever_led_leads_on: partial(each_policy, "dismissed"),
    one_announcement_moves_the_clock: partial(each_policy, "leader"),
}
"""Faults of before, and the play that finds each in one of its first seeds."""
