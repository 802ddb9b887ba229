"""When a node that makes work must know that nobody hears it."""

import pytest

from node.swarm.membership import is_cut_off

SHORTEST_SILENCE = 5.0


def test_one_voice_that_was_heard_lately_is_enough() -> None:
    assert not is_cut_off([(0.0, 1.0), (98.0, 1.0)], now=100.0)


def test_who_never_heard_anybody_is_cut_off() -> None:
    assert is_cut_off([], now=0.0)


@pytest.mark.parametrize(("interval", "patience"), [(0.0, SHORTEST_SILENCE), (1.0, SHORTEST_SILENCE), (20.0, 60.0)])
def test_a_voice_counts_for_three_of_its_own_intervals_and_five_seconds_at_least(
    interval: float, patience: float
) -> None:
    assert not is_cut_off([(100.0, interval)], now=100.0 + patience)
    assert is_cut_off([(100.0, interval)], now=100.1 + patience)
