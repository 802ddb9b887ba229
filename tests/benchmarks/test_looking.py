"""A busy bench by the product's rule, and by rules that it does not have: what stops a pool and what does not."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from benchmarks.simulation import looking
from benchmarks.simulation.evidence import Looks
from benchmarks.simulation.looking import KNOWN, MANY, Bench, Member
from benchmarks.simulation.pool import FALSE, RUN
from protocol.audit import needed_share, share_of_file

WAITS = "looked at in the middle and at most after, s"
LEFT = "waiting in the end, files"
LEARNT = "policies, of those that there is time for"


@pytest.fixture(scope="module")
def looks() -> Looks:
    return Looks(RUN)


def members(verified: int, many: int = MANY) -> list[Member]:
    return [Member().anew(verified) for _ in range(many)]


def whole_however_late(pledged: float, load: Any, verified: int, suspect: bool, spec: Any) -> float:
    """Newcomers and suspects before everything else."""
    return 1.0 if suspect or verified < spec.probation else share_of_file(pledged, load, verified, suspect, spec)


def test_a_thousand_newcomers_in_an_hour_keep_nobody_waiting(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    def minutes() -> dict[str, Any]:
        came = [Member(joined=at * 3.6).anew() for at in range(333)]
        return Bench(members(KNOWN) + came, looks, seed=1, power=0.8).run(1 / 3).told()

    told = minutes()
    assert told[WAITS][1] < 60 and told[LEARNT] > 0.3 and told[LEFT] < 100
    monkeypatch.setattr(looking, "share_of_file", whole_however_late)
    told = minutes()
    assert told[WAITS][1] > 300 and told[LEFT] > 200


def test_everybody_refused_by_a_bad_calibration_is_looked_at_in_time_once_it_is_over(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def behind() -> dict[str, Any]:
        bench = Bench(members(KNOWN), looks, seed=1, power=0.5)
        bench.false = 1.0
        bench.run(0.5)
        bench.false = FALSE
        return bench.run(0.7).told(0.7)

    told = behind()
    assert told[WAITS][1] < 60 and told[LEARNT] > 0.4 and told[LEFT] < 20
    monkeypatch.setattr(looking, "share_of_file", whole_however_late)
    assert behind()[LEFT] > 200


def test_a_bench_that_promised_what_it_cannot_do_learns_nothing_for_hours(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started() -> dict[str, Any]:
        return Bench(members(0), looks, seed=1, power=0.2).run(0.7).told()

    assert started()[WAITS][1] < 120
    monkeypatch.setattr(looking, "pledged_share", lambda load, groups, spec: needed_share(groups, spec))
    assert started()[WAITS][1] > 1_200


@pytest.mark.parametrize(("rule", "paid"), [(share_of_file, 0.05), (lambda pledged, *_: pledged, 0.6)])
def test_a_cheat_that_comes_back_with_new_names_is_not_paid(
    looks: Looks, monkeypatch: pytest.MonkeyPatch, rule: Callable[..., float], paid: float
) -> None:
    """It is where nobody looks at a newcomer more closely: a control."""
    monkeypatch.setattr(looking, "share_of_file", rule)
    crowd: Iterable[Member] = [Member(True).anew() for _ in range(10)]
    bench = Bench([*members(KNOWN, 90), *crowd], looks, seed=1, power=0.5, groups=1).run(1.0)
    found = bench.told(0.5)["cheated files that are paid"]
    assert found <= paid if rule is share_of_file else found > 0.2
