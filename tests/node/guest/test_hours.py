"""Hours by the owner's clock: over midnight, over the end of a week, and over the nights on which it is changed."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from node.guest.hours import Hours

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600.0


def at(text: str, fold: int = 0) -> float:
    """Of a clock in Berlin, the second of two times it shows it with fold=1."""
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold).timestamp()


def hours(*texts: str) -> Hours:
    return Hours.parse(texts, BERLIN)


def change(text: str, after: float) -> float:
    found = hours(text).next_change(after)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("texts", "open_", "shut"),
    [
        (("09:00-17:00",), ("2026-01-07T09:00", "2026-01-07T16:59"), ("2026-01-07T08:59", "2026-01-07T17:00")),
        (("22:00-07:00",), ("2026-01-07T22:00", "2026-01-08T06:59"), ("2026-01-08T07:00", "2026-01-07T21:59")),
        # 9 January 2026 is a Friday: its night is open, the one before it is not.
        (("fri 22:00-07:00",), ("2026-01-09T23:00", "2026-01-10T06:59"), ("2026-01-09T06:59", "2026-01-10T22:00")),
        (("sun 22:00-07:00",), ("2026-01-12T06:00",), ("2026-01-11T06:00",)),  # over the end of the week
        (("fri-mon 10:00-24:00",), ("2026-01-11T23:59", "2026-01-12T10:00"), ("2026-01-13T12:00",)),
        (("mon,wed 10:00-11:00", "12:00-13:00"), ("2026-01-07T10:30", "2026-01-08T12:30"), ("2026-01-08T10:30",)),
        (("00:00-24:00",), ("2026-01-07T00:00", "2026-01-07T23:59"), ()),
        ((), ("2026-01-07T03:00",), ()),
    ],
)
def test_a_moment_lies_in_them_or_not(texts: tuple[str, ...], open_: tuple[str, ...], shut: tuple[str, ...]) -> None:
    assert all(hours(*texts).open(at(one)) for one in open_)
    assert not any(hours(*texts).open(at(one)) for one in shut)


@pytest.mark.parametrize(
    ("text", "from_", "changes"),
    [
        ("22:00-07:00", "2026-01-07T12:00", ["2026-01-07T22:00", "2026-01-08T07:00"]),
        # The clock goes from 02:00 to 03:00 on 29 March and from 03:00 back to 02:00 on 25 October.
        ("22:00-07:00", "2026-03-28T12:00", ["2026-03-28T22:00", "2026-03-29T07:00"]),
        ("22:00-07:00", "2026-10-24T12:00", ["2026-10-24T22:00", "2026-10-25T07:00"]),
        ("02:30-05:00", "2026-03-29T00:00", ["2026-03-29T03:00", "2026-03-29T05:00"]),  # 02:30 never comes
        ("01:00-02:30", "2026-03-29T00:00", ["2026-03-29T01:00", "2026-03-29T03:00"]),
        ("02:10-02:50", "2026-03-28T12:00", ["2026-03-30T02:10", "2026-03-30T02:50"]),  # left out that night
        ("fri 22:00-07:00", "2026-01-10T08:00", ["2026-01-16T22:00", "2026-01-17T07:00"]),
        ("00:00-24:00", "2026-01-07T12:00", []),
    ],
)
def test_the_next_change_is_when_the_wall_clock_shows_it(text: str, from_: str, changes: list[str]) -> None:
    now = at(from_)
    for one in changes:
        now = change(text, now)
        assert now == at(one)
    if not changes:
        assert hours(text).next_change(now) is None


def test_an_hour_that_comes_twice_belongs_to_them_both_times() -> None:
    """02:15 to 02:45 in the night in which the clock shows it twice: two spans, an hour apart."""
    found, now = [], at("2026-10-25T00:00")
    for _ in range(4):
        now = change("02:15-02:45", now)
        found.append(now)
    first, second = at("2026-10-25T02:15"), at("2026-10-25T02:15", fold=1)
    assert second - first == HOUR
    assert found == [first, first + HOUR / 2, second, second + HOUR / 2]


@pytest.mark.parametrize(("day", "lasted"), [("2026-03-28", 8), ("2026-10-24", 10), ("2026-01-07", 9)])
def test_a_night_is_as_long_as_the_clock_makes_it(day: str, lasted: int) -> None:
    begins = change("22:00-07:00", at(f"{day}T12:00"))
    assert change("22:00-07:00", begins) - begins == lasted * HOUR


def test_changes_are_those_that_a_look_at_every_minute_finds() -> None:
    """The control, over both nights, for spans on all sides of the jumps."""
    for start in (at("2026-03-28T20:00"), at("2026-10-24T20:00")):
        for text in ("22:00-07:00", "00:30-01:30", "01:30-02:30", "02:00-03:00", "02:30-03:30", "03:00-01:00"):
            one, now, found, seen = hours(text), start, [], []
            while (now := change(text, now)) < start + 12 * HOUR:
                found.append(now)
            looks = [(start + 60 * minute, one.open(start + 60 * minute)) for minute in range(12 * 60)]
            seen = [moment for (_, before), (moment, after) in zip(looks, looks[1:], strict=False) if before != after]
            assert found == seen, text


def test_how_much_of_a_week_they_are_open() -> None:
    assert hours("22:00-07:00").share(at("2026-01-07T12:00")) == pytest.approx(9 / 24)
    assert hours("sat,sun 00:00-24:00").share(at("2026-01-07T12:00")) == pytest.approx(2 / 7)
    assert hours().share(at("2026-01-07T12:00")) == 1.0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("22-7", "not of the form"),
        ("22:00 - 7:00", "not of the form"),
        ("25:00-07:00", "no 25:00"),
        ("22:60-07:00", "no 22:60"),
        ("08:00-08:00", "no length"),
        ("24:00-08:00", "no length"),
        ("tomorrow 08:00-09:00", "no day"),
        ("mon-fry 08:00-09:00", "'mon-fry' is no day"),
        ("0" * 10_000, "not of the form"),
    ],
)
def test_what_is_no_span_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Hours.parse([text])
