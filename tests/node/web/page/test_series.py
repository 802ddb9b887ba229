"""Curves that stay short, cover the whole past evenly, and lose nothing that is new."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from node.web.page.series import FRESH, MOST, Curves, Point, Series, thin
from tests.swarms import status, typed

THINNED = 650


def points(count: int, start: int = 0) -> list[Point]:
    return [Point(x, (float(x), None)) for x in range(start, start + count)]


@given(st.sets(st.integers(0, 20_000), max_size=300), st.integers(20, 60), st.integers(1, 19))
def test_a_thinned_series_is_short_ascending_and_keeps_its_newest(steps: set[int], most: int, recent: int) -> None:
    whole = [Point(x, (1.0,)) for x in sorted(steps)]
    kept = thin(whole, most, recent)
    assert len(kept) <= max(most, min(len(whole), recent + 1))
    assert [p.x for p in kept] == sorted({p.x for p in kept})
    assert kept[-recent:] == whole[-recent:]
    assert all(p.values == (1.0,) for p in kept)


def test_the_past_is_merged_evenly_however_often_that_happens() -> None:
    """One by one, as a run writes them: the far past must not melt away before the near one."""
    kept: list[Point] = []
    for x in range(6000):
        kept = thin([*kept, Point(x, (float(x), None))], 100, 40)
    old = [p.x for p in kept[:-40]]
    gaps = [b - a for a, b in zip(old, old[1:], strict=False)]
    assert len(kept) <= 100 and old[0] < 300
    assert max(gaps) <= 2 * 256 and max(gaps) <= 4 * sorted(gaps)[len(gaps) // 2]


def test_merged_points_are_means_of_what_is_known() -> None:
    kept = thin([Point(0, (1.0, None)), Point(1, (3.0, 5.0)), Point(2, (9.0, None)), Point(3, (0.0, 0.0))], 3, 1)
    assert kept == [Point(1, (2.0, 5.0)), Point(2, (9.0, None)), Point(3, (0.0, 0.0))]


def run(curves: Curves, steps: range, role: str = "trainer", **changes: Any) -> None:
    for step in steps:
        told = status(step=step, total=9000, role=role, at=float(step))
        curves.feed(typed({**told, **changes}), 1.79e9 + step)


def test_a_trainers_curve_has_every_reward_and_each_step_once() -> None:
    curves = Curves()
    run(curves, range(30, 31))
    run(curves, range(35, 36))
    rows = curves.steps.rows
    assert sorted(rows) == list(range(36))
    assert all(row[2] is not None and row[3] is not None for row in rows.values())
    assert rows[30][6] is not None and rows[31][6] is None  # details only of steps that were seen


def test_a_long_series_stays_short_is_seldom_merged_and_takes_nothing_up_again_that_was() -> None:
    series, merged = Series(("step", "eval")), 0
    for step in range(4000):
        series.put(step, eval=step / 4000)
        merged += series.whole
        series.take()
    xs = [point.x for point in series.points]
    assert THINNED / 2 < len(xs) <= MOST and xs[-FRESH:] == list(range(4000 - FRESH, 4000))
    assert merged < 30, "viewers get all of it then"
    gone = next(x for x in range(4000) if x not in series)
    series.put(gone, eval=1.0)
    assert gone not in series
    series.put(xs[0], eval=None)
    assert not series.changed


def test_who_does_not_train_keeps_the_trainers_word_and_its_own_estimate() -> None:
    curves = Curves()
    for step in (3, 4):
        told = status(step=step, role="worker")
        told["work"]["last_reward_estimate"] = 0.25
        curves.feed(typed(told), 1.79e9)
    assert [(row[0], row[4], row[5]) for row in curves.steps.rows.values()] == [(3, 0.386, 0.25), (4, 0.3943, 0.25)]


def test_throughput_is_that_of_living_workers() -> None:
    curves = Curves()
    told = status(members=7, step=9)
    curves.feed(typed(told), 1.79e9)
    alive = [row for row in told["swarm"] if row["role"] == "worker" and row["state"] == "healthy"]
    (point,) = curves.load.points
    assert point.values == (6, sum(row["tokens_per_second"] for row in alive), 9)
