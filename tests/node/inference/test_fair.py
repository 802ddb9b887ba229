"""Weighted clocks: shares of time, and who gets the next place."""

from collections import Counter

import pytest

from node.inference.scheduler import WEIGHTS, FairClock, Share, emptiest


def shared(clock: FairClock, wanting: list[Share], turns: int, seconds: float = 1.0) -> Counter[Share]:
    used: Counter[Share] = Counter()
    for _ in range(turns):
        share = clock.order(wanting)[0]
        clock.charge(share, seconds)
        used[share] += 1
    return used


def test_all_that_want_the_engine_get_it_by_weight() -> None:
    used = shared(FairClock(), list(WEIGHTS), 125)
    assert used == {"rollout": 60, "verdict": 40, "task": 20, "answer": 5}


def test_answers_to_others_have_what_is_left_over() -> None:
    assert shared(FairClock(), ["rollout", "answer"], 130)["answer"] == 10
    assert shared(FairClock(), ["answer"], 10) == {"answer": 10}


def test_tasks_get_a_quarter_of_what_rollouts_leave() -> None:
    assert shared(FairClock(), ["rollout", "task"], 100)["task"] == 25


def test_nobody_saves_up_while_idle() -> None:
    clock = FairClock()
    shared(clock, ["task"], 1000)
    assert shared(clock, ["task", "verdict"], 60)["task"] == pytest.approx(20, abs=1)
    shared(clock, ["verdict"], 1000)
    assert shared(clock, ["task", "verdict"], 60)["task"] == pytest.approx(20, abs=1)


def test_whoever_is_alone_gets_everything() -> None:
    assert shared(FairClock(), ["task"], 10) == {"task": 10}


@pytest.mark.parametrize(
    ("holding", "next_one"), [({}, "rollout"), ({"rollout": 3}, "task"), ({"rollout": 5, "task": 1}, "rollout")]
)
def test_places_are_given_to_who_has_fewest_for_its_weight(holding: dict[Share, int], next_one: Share) -> None:
    assert emptiest(holding, ["rollout", "task"]) == next_one
