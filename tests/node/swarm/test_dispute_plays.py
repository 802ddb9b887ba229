"""Disputes among liars, sleepers and honest validators, played at random over the product's counting."""

from typing import Any

import pytest

from node.swarm.disputes import Disputes
from node.swarm.vote_set import VoteSet
from protocol.disputes import resolve
from tests.node.swarm.disputes import Sides, cells, play


def test_nobody_honest_is_disbelieved_and_no_bad_work_accepted_whoever_waits_or_denies() -> None:
    for number, sides in list(enumerate(cells()))[::7]:  # `python -m benchmarks.disputes` plays all, and goes on
        assert play(sides, number) == [], (sides, number)


def _time_decides(self: Disputes, case: Any) -> None:
    """As it was: once its time is over a dispute is decided by those who looked again alone."""
    if not case.disputed or case.ruled is not None:
        return
    votes = {author: one.message for author, one in case.votes.items()}
    rechecks = {a: one.message for a, one in case.rechecks.items() if a not in self.quarantined}
    active_validators = len(rechecks) if self.is_over(case) else len(votes.keys() | rechecks.keys())
    result = resolve(votes, rechecks, active_validators, case.work.groups, 0.05)
    if result is not None:
        case.ruled, case.winner = result.ruling, result.winner
        self._open.pop(case.work.id, None)
        for validator, finding in result.wrong.items():
            self.punish(case, validator, finding)


def _one_decides(self: VoteSet, case: Any, rejecting: Any) -> int:
    """As it was: as many as are left, and one at least."""
    waited, quorum = self._clock() - case.heard >= self._audit.verdict_seconds, self._bench.quorum
    return max(1, min(quorum, len(set(self.active_validators()) - rejecting.keys()))) if waited else quorum


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ({"settle": _time_decides}, "honest and disbelieved"),
        ({"_needed": _one_decides}, "a bad work is accepted"),
    ],
)
def test_faults_of_before_are_found_when_they_are_put_back(fault: dict[str, Any], what: str) -> None:
    found = (text for number, sides in enumerate(cells()) for text in play(sides, number, fault))
    assert any(what in text for text in found)


def test_two_liars_of_five_do_not_have_the_honest_three_disbelieved_by_waiting() -> None:
    """H2: a dispute, and an honest validator that is away when the others look again."""
    for away in (0, 1):
        sides = Sides(5, 2, away, "denies", True, True, 3)
        assert all(play(sides, seed) == [] for seed in range(10))
