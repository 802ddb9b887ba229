import pytest

from node.metrics.alarms import AlarmBook
from protocol.sections import Alarms

SETTINGS = Alarms(window=3, no_signal=3)


def rung(records: list[dict], settings: Alarms = SETTINGS) -> list[tuple[str, int]]:
    """(name, step) of every alarm that began to ring."""
    book = AlarmBook(settings)
    return [(alarm.name, alarm.step) for step, r in enumerate(records) for alarm in book.feed({"step": step, **r})]


def series(name: str, *values: float) -> list[dict]:
    return [{name: value} for value in values]


def test_a_calm_run_rings_nothing() -> None:
    calm = {"entropy": 0.5, "mismatch_kl": 0.001, "grad_norm": 1.0, "reward_mean": 0.5, "informative_share": 0.7}
    assert rung([calm] * 40) == []


def test_entropy_that_falls_and_then_rises_rings_once() -> None:
    assert rung(series("entropy", 1, 0.5, 0.2, 0.2, 0.2, 0.3, 0.6, 0.6, 0.7)) == [("entropy_rise", 7)]


def test_a_mismatch_between_sampler_and_trainer_rings() -> None:
    assert rung(series("mismatch_kl", 0.01, 0.01, 0.01, 0.5, 0.5)) == [("mismatch", 4)]


def test_a_gross_mismatch_rings_at_once() -> None:
    """Four steps at a toy's learning rate lost a real model, and no mean of ten was there yet."""
    book = AlarmBook(Alarms())
    (alarm,) = book.feed({"step": 1, "mismatch_kl": 4.7})
    assert (alarm.name, alarm.step, alarm.limit) == ("mismatch", 1, 1.0) and "learning rate" in alarm.text
    assert book.feed({"step": 2, "mismatch_kl": 0.147}) == [] and not book.active
    assert rung(series("mismatch_kl", 0.9, 0.1, 0.02)) == [("mismatch", 2)]  # the mean's, as ever


def test_gradients_far_above_the_usual_ring() -> None:
    assert rung(series("grad_norm", *[1.0] * 8, 50, 50)) == [("grad_norm", 8)]
    assert rung(series("grad_norm", 50, 50, 50, 50)) == []  # nothing usual is known yet


def test_a_reward_that_is_lost_rings_and_one_that_never_was_does_not() -> None:
    assert rung(series("reward_mean", 0.6, 0.6, 0.6, 0.3, 0.1, 0.1)) == [("reward_collapse", 5)]
    assert rung(series("reward_mean", 0.02, 0.02, 0.02, 0, 0, 0)) == []


def test_steps_without_signal_ring_after_a_while() -> None:
    assert rung(series("informative_share", 0, 0, 0.1, 0, 0, 0, 0)) == [("no_signal", 5)]


def test_an_alarm_ends_and_can_ring_again() -> None:
    book = AlarmBook(Alarms(window=1))
    active = []
    for step, value in enumerate((0.5, 0.0, 0.5)):
        book.feed({"step": step, "mismatch_kl": value})
        active.append(sorted(book.active))
    assert active == [["mismatch"], [], ["mismatch"]]
    assert book.active["mismatch"].step == 2


@pytest.mark.parametrize("name", ["entropy_rise", "mismatch", "grad_norm", "reward_drop", "no_signal"])
def test_each_alarm_can_be_switched_off(name: str) -> None:
    wild = [
        {"entropy": e, "mismatch_kl": 9.0, "grad_norm": g, "reward_mean": r, "informative_share": 0.0}
        for e, g, r in [(0.1, 1.0, 0.9)] * 8 + [(5.0, 99.0, 0.0)] * 6
    ]
    names = {"reward_drop": "reward_collapse"}
    everything = {alarm for alarm, _ in rung(wild)}
    assert everything == {"entropy_rise", "mismatch", "grad_norm", "reward_collapse", "no_signal"}
    off = Alarms(**{"window": 3, "no_signal": 3, name: 0})
    assert {alarm for alarm, _ in rung(wild, off)} == everything - {names.get(name, name)}


def test_a_number_that_is_missing_is_no_alarm() -> None:
    assert rung([{"entropy": None, "grad_norm": None}] * 20) == []
