"""Nobody judges its own activity: for each message of those who judge, its author is whom it is about.

What a message is about is found in it: an address, a work, a term. So one that is added tomorrow is tried tomorrow.
Two of five validators speak, so that one voice more decides.
"""

from collections.abc import Callable
from functools import cache
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from node.swarm.counts import COUNTS, Office
from node.swarm.hands import Hands
from node.swarm.seals import Seals
from node.swarm.works import Works
from protocol.messages import AcceptedList, LeaderSilent, Message, StepVerdict, ValidatorBatch
from protocol.statements import VerdictOutcome, work_id
from tests.node.swarm.pools import (
    ADDRESS,
    PACE,
    QUORUM,
    STEPS,
    TAKEN_AT,
    VALIDATORS,
    Input,
    Pool,
    Said,
    Told,
    beat,
    bound,
    commitment,
    differing,
    history,
    root,
    stands,
    stated,
    template,
    term_of,
)

JUDGES = [kind for kind, row in COUNTS.items() if row.by in (Office.VALIDATOR, Office.TRAINER_OR_VALIDATOR)]
SUBJECTS = ("leader", "worker 1")
AWAY = ("validator 3", "validator 4")
ELSEWHERE = {LeaderSilent: "who is silent gives up what it could give up itself", AcceptedList: "`BatchUsage` asks"}
"""Words about their author that a pool's state tells as they are."""


def seated(subject: str) -> list[Input]:
    """An honest run in which the subject has a seat on the bench, and two do not speak."""
    bench = (tuple(ADDRESS[one] for one in (*VALIDATORS, subject)), QUORUM)
    kept = [one for one in history() if isinstance(one, Told) or one.name not in AWAY]
    return [
        msgspec.structs.replace(one, given=bench) if isinstance(one, Told) and one.what == "appoint" else one
        for one in kept
    ]


def names_in(word: Any) -> set[Any]:
    """All that stands in a word."""
    if isinstance(word, msgspec.Struct):
        return {one for name in word.__struct_fields__ for one in names_in(getattr(word, name))}
    if isinstance(word, tuple):
        return {one for each in word for one in names_in(each)}
    return {word}


def is_about(word: Any, subject: str, step: int) -> bool:
    works = {work_id(commitment(of, subject)) for of in (step - 1, step)}
    holds = isinstance(word, LeaderSilent) and term_of(step)[1] == subject
    return holds or bool(names_in(word) & {ADDRESS[subject], *works})


def opposite(word: Any) -> Any:
    of = word if isinstance(word, StepVerdict) else word.verdict
    said = msgspec.structs.replace(of, outcome=int(VerdictOutcome.REJECT), reason=9)
    return said if of is word else bound(msgspec.structs.replace(word, verdict=said))


def words(kind: type[Message], author: str, subject: str) -> list[Input]:
    """What it says of the subject at each policy of the leader's term, if this message can be about it."""
    found: list[Input] = []
    for step in range(TAKEN_AT + 1, STEPS + 1):
        word = template(kind, step)
        if is_about(word, subject, step):
            found.append(Said(step * PACE + 1.65, author, word))
            if hasattr(word, "verdict"):
                found.append(Said(step * PACE + 1.66, author, opposite(word)))
    return found


def comes_to(subject: str, beside: list[Input]) -> dict[str, frozenset[Any]]:
    """What stands right after the last of these words, before seals are too old."""
    inputs = [one for one in [*seated(subject), *beside] if one.at < STEPS * PACE + 3.0]
    pool = Pool().play(inputs, drains=0.0)
    state = pool.state
    sealing = frozenset((who, id) for id in state.register._works for who in state.seals.sealing(id))
    return {**stands(pool), "sealing": sealing}


@cache
def honest(subject: str) -> dict[str, frozenset[Any]]:
    return comes_to(subject, [])


def test_every_message_of_those_who_judge_is_tried() -> None:
    about = {kind for kind in JUDGES for subject in SUBJECTS if words(kind, subject, subject)}
    assert len(about) > 5 and ELSEWHERE.keys() < about
    assert {kind for kind, row in COUNTS.items() if row.about(template(kind, STEPS)) is not None} <= about


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("kind", JUDGES, ids=lambda one: one.__name__)
def test_what_is_said_of_oneself_moves_nothing(kind: type[Message], subject: str) -> None:
    assert differing(honest(subject), comes_to(subject, words(kind, subject, subject))) == {}


FAULTS: dict[type[Any], tuple[str, Any, type[Message], str]] = {
    Hands: ("is_party", lambda *_: False, StepVerdict, "leader"),
    Works: ("_is_of_its_own", lambda *_: False, JUDGES[1], "worker 1"),
    Seals: ("_owner", lambda *_: set(), ValidatorBatch, "worker 1"),
}


@pytest.mark.parametrize("owner", FAULTS, ids=lambda one: one.__name__)
def test_a_rule_that_is_taken_out_is_missed(owner: type[Any]) -> None:
    name, without, kind, subject = FAULTS[owner]
    honest(subject)  # with the rule
    with patch.object(owner, name, without):
        assert differing(honest(subject), comes_to(subject, words(kind, subject, subject)))


def of_one_provider(*names: str) -> Callable[[Pool], None]:
    def join(pool: Pool) -> None:
        for name in names:
            pool.membership.hands.joined(ADDRESS[name], ADDRESS["observer"])

    return join


@pytest.mark.parametrize(
    ("hand", "counts"),
    [
        (("leader", "validator 3"), False),
        (("worker 1", "validator 3"), True),
        (("leader", *VALIDATORS[1:]), True),
    ],
    ids=["the leader's provider", "somebody else's", "of a pool that is in one hand but for one"],
)
def test_a_step_is_judged_by_those_who_are_not_in_one_hand_with_its_trainer(
    hand: tuple[str, ...], counts: bool
) -> None:
    pool = Pool()
    of_one_provider(*hand)(pool)
    pool.play([*history(), *words(StepVerdict, "validator 3", "leader")])
    statement = template(StepVerdict, STEPS).statement.struct_hash
    assert (ADDRESS["validator 3"] in pool.state.steps.judged_by(statement)) == counts
    assert bool(pool.state.refused["StepVerdict.own"]) != counts
    owing = {one for judged in pool.state.steps._judged.values() for one in judged.owing}
    assert not owing, "who may not judge owes nothing"


@pytest.mark.parametrize("third", ["leader", "validator 3"], ids=["its trainer", "somebody else"])
def test_a_trainers_own_seat_says_of_no_far_policy_that_it_is_there(third: str) -> None:
    """Two that lie for it, and a third voice."""
    far, at = STEPS + 40, STEPS * PACE + 2.0
    said: list[Input] = [
        Said(at, name, msgspec.structs.replace(beat(name, far, 500), lots=())) for name in (*VALIDATORS[:2], third)
    ]
    said.append(Said(at + 1.0, "leader", stated(far, 2, parent=root("what lies between"))))
    pool = Pool().play([*seated("leader"), *said], drains=3.0)
    assert pool.state.newest == (far if third != "leader" else STEPS)
