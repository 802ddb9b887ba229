"""Rollouts come first on a worker's engine."""

from node.tasks.sharing import EngineShare


def test_tasks_take_the_gaps_and_a_share_where_there_are_none() -> None:
    now = [0.0]
    turns = EngineShare(0.25, lambda: now[0])
    turns.task_took(100.0)
    assert turns.is_tasks_turn  # nobody wants rollouts
    turns.rollouts_wanted = True
    assert not turns.is_tasks_turn
    turns.rollout_took(299.0)
    assert not turns.is_tasks_turn
    turns.rollout_took(2.0)
    assert turns.is_tasks_turn


def test_what_is_long_past_counts_less() -> None:
    now = [0.0]
    turns = EngineShare(0.25, lambda: now[0])
    turns.rollouts_wanted = True
    turns.task_took(100.0)
    turns.rollout_took(10.0)
    now[0] = 600.0
    turns.rollout_took(1.0)
    assert turns.is_tasks_turn
