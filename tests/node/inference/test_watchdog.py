"""What a hang is, and what is long work, second by second."""

import pytest

from node.inference.watchdog import LOADING, Watchdog

STANDING = 30.0
STANDING_AT_WORK = 600.0

SILENT, SILENT_AT_WORK = 5.0, 60.0


def until_it_barks(dog: Watchdog, *, cpu: float, hears: bool, busy: str = "", start: float = 0.0) -> float:
    """Seconds until it calls the child hung. cpu: processors that the child uses; hears: whether pongs come, all with
    the same beats."""
    for second in range(1, 2000):
        now = start + second
        if hears:
            dog.heard(now)
            dog.pong(now, 7, busy)
        if dog.look(now, cpu * second if dog.doubts(now) else None):
            return second
    return float("inf")


def spoken() -> Watchdog:
    dog = Watchdog(0.0)
    dog.heard(0.0)
    return dog


NEVER = float("inf")


@pytest.mark.parametrize(
    ("child", "least", "most"),
    [
        ({"cpu": 0.0, "hears": False}, SILENT, SILENT + 2),  # stopped
        ({"cpu": 0.5, "hears": False}, SILENT_AT_WORK, SILENT_AT_WORK + 2),  # something holds the interpreter
        ({"cpu": 0.0, "hears": True}, NEVER, NEVER),  # nothing to do
        ({"cpu": 0.0, "hears": True, "busy": "sampling"}, STANDING, STANDING + 3),  # threads wait for each other
        ({"cpu": 1.0, "hears": True, "busy": "prefilling"}, STANDING_AT_WORK, STANDING_AT_WORK + 3),  # a long prompt
        ({"cpu": 0.0, "hears": True, "busy": LOADING}, STANDING_AT_WORK, STANDING_AT_WORK + 3),  # a slow disk
    ],
)
def test_a_hang_is_told_from_long_work(child: dict, least: float, most: float) -> None:
    assert least <= until_it_barks(spoken(), **child) <= most


def test_imports_may_take_long_but_not_without_work() -> None:
    assert STANDING_AT_WORK < until_it_barks(Watchdog(0.0), cpu=0.5, hears=False)
    assert STANDING < until_it_barks(Watchdog(0.0), cpu=0.0, hears=False) < STANDING + 3


def test_beats_are_what_counts_as_progress() -> None:
    dog = spoken()
    for second in range(1, 2000):
        dog.heard(second)
        dog.pong(second, second // 20, "sampling")
        assert not dog.look(second, 0.0 if dog.doubts(second) else None)


def test_a_daemon_that_slept_blames_nobody() -> None:
    dog = spoken()
    dog.look(1.0, 0.0)
    assert not dog.look(500.0, 0.0)
    assert until_it_barks(dog, cpu=0.0, hears=False, start=500.0) <= SILENT + 2
