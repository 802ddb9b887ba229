"""`pause --for` and `--until`: by the clock on the wall, and over the nights on which it is changed."""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from cli.errors import CommandError
from cli.main import main
from cli.pause import moment, seconds_until
from cli.status import activity, earnings
from node.status_schema import DaemonStatus


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("now", "text", "then"),
    [
        ("2026-01-07T22:00", "08:00", "2026-01-08T08:00+01:00"),
        ("2026-01-07T07:00", "08:00", "2026-01-07T08:00+01:00"),
        ("2026-01-07T08:00", "08:00", "2026-01-08T08:00+01:00"),
        ("2026-03-28T22:00", "08:00", "2026-03-29T08:00+02:00"),  # nine hours of a night of ten
        ("2026-10-24T22:00", "08:00", "2026-10-25T08:00+01:00"),
        ("2026-10-25T02:45", "02:30", "2026-10-25T02:30+01:00"),  # the clock shows it once more
        ("2026-01-07T22:00", "2026-01-09T12:00", "2026-01-09T12:00+01:00"),
        ("2026-01-07T22:00", "2026-01-09T12:00:00+00:00", "2026-01-09T13:00+01:00"),
    ],
)
def test_until_is_when_the_clock_shows_it_next(now: str, text: str, then: str) -> None:
    assert moment(text, at(now)) == at(then)


@pytest.mark.parametrize(
    ("lasting", "until", "says"),
    [
        ("2h", "08:00", "both say it"),
        ("soon", None, "no span of time"),
        (None, "25:00", "does not match"),
        (None, "2020-01-01T00:00", "is over"),
        (None, "2099-01-01T00:00", "more than a year"),
        (None, "tomorrow", "Invalid isoformat"),
    ],
)
def test_what_says_no_time_is_refused(lasting: str | None, until: str | None, says: str) -> None:
    with pytest.raises(CommandError, match="how long") as caught:
        seconds_until(lasting, until, at("2026-01-07T22:00"))
    assert says in caught.value.why


def test_it_has_no_end_where_none_is_said() -> None:
    assert seconds_until(None, None, 0.0) is None
    assert seconds_until("1h30m", None, 0.0) == 5400


def test_where_no_daemon_runs_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["pause", "--for", "2h"], ["resume"]):
        assert main([*words, "--state-dir", str(tmp_path)]) == 5
        assert "no daemon runs there" in capsys.readouterr().err


@pytest.mark.parametrize("draining", [True, False])
def test_the_status_says_why_a_node_rests_and_what_a_day_comes_to(draining: bool) -> None:
    told = {
        "node": {"state": "paused", "phase": {"name": "working", "text": "paused: it takes no new work for a while"}},
        "rest": {"why": "paused by its owner until Thu 08:00", "until": 1.0, "draining": draining},
        "day": {"known": False, "text": "unknown"},
        "pay": {"earned_wei": "0"},
    }
    status = msgspec.convert(told, DaemonStatus)
    (line,) = [one for one in activity(status) if one.startswith("rests:")]
    assert "paused by its owner until Thu 08:00" in line and ("under way" in line) is draining
    assert "a day: unknown" in earnings(status)
    assert not [one for one in activity(DaemonStatus()) if one.startswith("rests:")]
