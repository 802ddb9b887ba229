"""Words that no honest node says: refused by form, or counted by why they count for nothing, and nobody else pays."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from node.swarm.counts import COUNTS
from node.swarm.facts import JudgeDisbelieved
from node.swarm.pool_state import HELD_SECONDS
from node.swarm.register import CLOSED_AFTER
from node.swarm.vote_set import FileState
from protocol.errors import ProtocolError
from protocol.messages import (
    DisputeRaised,
    Envelope,
    Message,
    RolloutCommitted,
    VerdictIssued,
    VerdictRechecked,
    parse_envelope,
)
from protocol.statements import work_id
from tests.attacks.matrix import words
from tests.node.swarm import pool_plays as plays
from tests.node.swarm.pools import (
    ADDRESS,
    PACE,
    POOL,
    STEPS,
    UNTIL,
    VALIDATORS,
    Pool,
    Said,
    Told,
    commitment,
    committed,
    differing,
    envelope,
    history,
    policy_root,
    root,
    sizes,
    stands,
    stated,
    template,
    verdict,
)

CLOSED_SECONDS = 300.0

FAR = (2**63, 2**64 - 1, -1, -(2**63))


def far(kind: type[Message]) -> Iterator[Any]:
    """A word of a kind with one of its numbers out of all bounds, each in turn."""
    word = template(kind, STEPS)
    for path, type_ in words.fields_of(kind):
        for number in FAR if type_ is int else ():
            yield path, number, words.put(word, path.split("."), number)


@pytest.mark.parametrize("kind", COUNTS, ids=lambda one: one.__name__)
def test_a_number_beyond_63_bits_is_refused_by_form_or_moves_nothing(kind: type[Message]) -> None:
    pool = Pool().play(history(), drains=5.0)
    before, name = stands(pool), plays.SPEAKERS[COUNTS[kind].by]
    for path, number, word in far(kind):
        payload = msgspec.msgpack.encode(word)
        try:
            parse_envelope(POOL, msgspec.msgpack.encode(Envelope(payload, b"")))
        except ProtocolError:
            continue
        pool.hear(name, plays.own(word, name))
        moved = differing(before, stands(pool))
        assert not {one for facts in moved.values() for one in facts if name not in one}, f"{path}={number}"


def test_a_term_that_the_chain_has_not_told_yet_waits_for_it_a_while() -> None:
    word = stated(STEPS + 1, 3, parent=policy_root(STEPS), policy_root=root("next"))
    take = Told(60.0, "take", (3, ADDRESS["standby"], STEPS + 1, policy_root(STEPS), UNTIL))
    told = Pool().play([*history(), Said(50.0, "standby", word), take])
    followed = told.state.policies.of_step(STEPS + 1)
    assert followed is not None and followed.author == ADDRESS["standby"]
    untold = Pool().play([*history(), Said(50.0, "standby", word)], drains=HELD_SECONDS + 5)
    assert untold.state.policies.of_step(STEPS + 1) is None
    assert untold.state.refused == {"PolicyAnnounced.unknown": 1}, "counted by why"


def test_a_policy_again_with_another_epoch_is_evidence_and_no_second_policy() -> None:
    again = Said(STEPS * PACE + 4.0, "leader", stated(STEPS, 2, epoch=1))
    pool = Pool().play([*history(), again])
    assert pool.state.policies.equivocations.keys() == {2} and len(pool.state.policies.steps) == STEPS + 1
    assert not pool.state.disputes.quarantined


@pytest.mark.parametrize("kind", [VerdictIssued, VerdictRechecked], ids=lambda one: one.__name__)
def test_who_holds_two_offices_has_no_word_about_its_own_work(kind: type[Any]) -> None:
    """With its own it would have been two of three."""
    judge, own, at = "validator 4", commitment(STEPS, "validator 4"), STEPS * PACE + 1.5
    said = [Said(at, judge, committed(STEPS, judge))]
    said += [Said(at + 1, name, verdict(kind, own, STEPS)) for name in (VALIDATORS[0], VALIDATORS[1], judge)]
    pool = Pool().play([*history(), *said], drains=3.0)
    id = work_id(own)
    assert pool.state.register.get(id) is not None
    assert pool.state.vote_set.state(id) is FileState.OPEN and judge not in pool.state.vote_set.accepting(id)
    assert pool.state.refused == {f"{kind.__name__}.own": 1}
    pool.hear(VALIDATORS[2], verdict(VerdictIssued, own, STEPS))
    assert kind is VerdictRechecked or pool.state.vote_set.state(id) is FileState.ACCEPTED, "the control"


def test_words_about_what_is_closed_count_for_nothing_are_counted_by_that_and_take_no_place() -> None:
    pool = Pool().play(history(), drains=5.0)
    ids = list(pool.state.register._works)
    for step in range(STEPS + 1, STEPS + CLOSED_AFTER + 1):
        pool.hear("leader", stated(step, 2))
    pool.now += CLOSED_SECONDS + 1
    pool.play([])
    assert not any(pool.state.register.get(id) for id in ids)
    before = sizes(pool.state)
    for step in range(STEPS):
        old = commitment(step, "worker 1")
        pool.hear("worker 1", committed(step, "worker 1"))
        for name in VALIDATORS:
            pool.hear(name, verdict(VerdictIssued, old, step, accept=False))
            pool.hear(name, verdict(VerdictRechecked, old, step, accept=False))
        first, second = (envelope(name, verdict(VerdictIssued, old, step)).raw for name in VALIDATORS[:2])
        pool.hear("validator 1", DisputeRaised(pool=POOL, first=first, second=second))
    assert not pool.state.disputes.quarantined and not pool.state.disputes.open()
    assert pool.state.register.get(work_id(commitment(0, "worker 1"))) is None
    refused = {name: count for name, count in pool.state.refused.items() if name.endswith(".closed")}
    each = STEPS * len(VALIDATORS)
    told = {"RolloutCommitted.closed": STEPS, "DisputeRaised.closed": STEPS}
    assert refused == {**told, "VerdictIssued.closed": each, "VerdictRechecked.closed": each}
    assert sizes(pool.state) - before <= len(refused), "the names of the reasons"


def test_what_a_term_takes_back_opens_what_was_closed_by_it() -> None:
    """Policy STEPS is the newest again, its files may train: who was to lead from there on has nothing else."""
    pool = Pool().play(history(), drains=5.0)
    id, step = work_id(commitment(STEPS, "worker 1")), STEPS + CLOSED_AFTER
    for later in range(STEPS + 1, step + 1):
        pool.hear("leader", stated(later, 2))
    pool.now += CLOSED_SECONDS + 1
    pool.play([], drains=2.0)
    assert pool.state.is_closed(policy_root(STEPS)) and pool.state.register.get(id) is None
    before = Counter(pool.state.refused)
    pool.take(Told(0.0, "take", (3, ADDRESS["standby"], STEPS + 1, policy_root(STEPS), UNTIL)))
    assert pool.state.policies.newest_step == STEPS and not pool.state.is_closed(policy_root(STEPS))
    pool.hear("worker 1", committed(STEPS, "worker 1"))
    for name in VALIDATORS:
        pool.hear(name, verdict(VerdictIssued, commitment(STEPS, "worker 1"), STEPS))
    assert pool.state.vote_set.state(id) is FileState.ACCEPTED and pool.state.refused == before


def test_a_thousand_works_that_one_validator_accuses_at_once_cost_it_its_voice_and_nobody_else_anything() -> None:
    pool = Pool().play(history(), drains=5.0)
    works = [commitment(STEPS, name, index) for name in ("worker 1", "worker 2") for index in range(40)]
    many = [one for one in works if one.index]
    for step in range(STEPS + 1, STEPS + 8):
        pool.hear("leader", stated(step, 2))
        for name in ("worker 1", "worker 2"):
            many += [commitment(step, name, index) for index in range(40)]
    for one in many:
        pool.hear("worker 1" if one.node == ADDRESS["worker 1"] else "worker 2", _as_said(one))
    liar, honest = VALIDATORS[3], VALIDATORS[:3]
    for one in many:
        for name in honest:
            pool.hear(name, _accepting(one, VerdictIssued))
    known = [one for one in many if pool.state.register.get(work_id(one)) is not None]
    assert len(known) > 500
    for one in known:
        pool.hear(liar, verdict(VerdictIssued, one, STEPS, accept=False))
    states = {pool.state.vote_set.state(work_id(one)) for one in known}
    assert states == {FileState.DISPUTED}
    for name in honest:  # who sees a dispute looks again: at the first of them
        pool.hear(name, _accepting(known[0], VerdictRechecked))
    assert pool.state.disputes.quarantined.keys() == {ADDRESS[liar]}
    assert {pool.state.vote_set.state(work_id(one)) for one in known} == {FileState.ACCEPTED}
    assert not pool.state.disputes.open(), "nobody looks at the others"
    assert [one.author for one in pool.news if isinstance(one, JudgeDisbelieved)] == [ADDRESS[liar]]


def _as_said(one: Any) -> RolloutCommitted:
    return RolloutCommitted(pool=POOL, commitment=one, signature=bytes(65), size=9)


def _accepting(one: Any, kind: type[Any]) -> Any:
    """By the lot of its own window."""
    step = next(step for step in range(STEPS + 8) if policy_root(step) == one.policy_root)
    return verdict(kind, one, step)
