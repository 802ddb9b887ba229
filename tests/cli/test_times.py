"""Times as people say and read them; unix seconds are for programs."""

from typing import Any

import pytest

from cli.contract.cases import lines_of
from cli.contract.frame import when
from cli.contract.values import moment
from cli.errors import USAGE, CommandError
from cli.events import describe_event, fault_name
from cli.output import date, duration

NOW = 1_795_343_400  # 2026-11-22 10:30 UTC


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("+90", NOW + 90),
        ("+7d", NOW + 7 * 86_400),
        ("+0s", NOW),
        ("1796000000", 1_796_000_000),
        ("2026-11-22", NOW - 10 * 3600 - 1800),
        ("2026-11-22 10:30", NOW),
        ("2026-11-22 10:30 UTC", NOW),
        ("2026-11-22T10:30:00Z", NOW),
        ("2026-11-22T12:30+02:00", NOW),
    ],
)
def test_a_point_in_time_is_a_date_unix_seconds_or_so_long_from_now(text: str, second: int) -> None:
    assert moment(text)(NOW) == second


@pytest.mark.parametrize(
    "text",
    ["", "+", "+-5", "+7 weeks", "-5", "5", "tomorrow", "2026-13-01", "1969-12-31", "9999-12-31", "9" * 400, "nan"],
)
def test_what_is_no_point_in_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        moment(text)
    assert caught.value.code == USAGE and "give e.g." in caught.value.remedy


def test_times_are_told_as_dates_with_the_way_to_them() -> None:
    assert when(NOW + 3 * 3600, NOW) == "2026-11-22 13:30 UTC (in 3 h 00 min)"
    assert when(NOW - 100 * 3600, NOW) == "2026-11-18 06:30 UTC (4 d 04 h ago)"
    assert duration(47 * 3600) == "47 h 00 min"
    assert date(2**64 - 1) == f"second {2**64 - 1}", "a contract may say what no calendar has"


def test_an_event_tells_its_times_and_why() -> None:
    row = {"event": "StakeFrozen", "case_id": 3, "final_at": NOW, "reason": 13}
    assert describe_event(row) == "case_id 3  final at 2026-11-22 10:30 UTC  reason unavailable"
    assert [fault_name(reason) for reason in (5, 200, 99)] == ["wrong_draw", "contradicting_verdicts", "reason 99"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"amount_wei": str(5 * 10**19)}, "malformed: 50 tokens of stake are lost, by the node's own"),
        (
            {"case": 3, "state": "frozen", "appealed": False},
            "frozen, final 2026-11-22 12:30 UTC (in 2 h 00 min); its provider may: contract case appeal 3",
        ),
        ({"case": 3, "state": "frozen", "appealed": True}, "UTC (in 2 h 00 min)\n"),
        ({"case": 3, "state": "overturned", "appealed": True}, "50 tokens of stake, overturned"),
    ],
)
def test_a_case_is_told_with_what_can_still_be_done(more: dict[str, Any], says: str) -> None:
    row = {"kind": "file", "pool": 7, "node": "0xNode", "reason": "malformed", "time": NOW - 60}
    told = "".join(
        f"{line}\n" for line in lines_of(row | {"frozen_wei": str(5 * 10**19), "final_at": NOW + 7200} | more, NOW)
    )
    assert told.startswith("2026-11-22 10:29 UTC  ") and says in told
