"""How often a pool's daemons send, counted on an EVM over two virtual weeks: what each of them decides costs gas."""

from collections import Counter

import pytest

from benchmarks import upkeep
from protocol.upkeep import DAY

HOLDS = 24 * 3 // 2
"""An hour's lease is held in its last third."""


def counted(sent: list[tuple[float, str, int]], since: float) -> Counter[str]:
    return Counter(kind for at, kind, _ in sent if at >= since)


@pytest.mark.timeout(300)
def test_a_member_sends_a_lease_and_a_claim_a_week_and_the_pool_four_tables_a_day() -> None:
    """A worker that is off at night; three validators and three trainers earn, too."""
    # Longer epochs, since each is work for everybody; a table waits six hours all the same. The first one counts well
    # before the week that is counted.
    sent = upkeep.played(1, 1, None, epoch=3 * 3600, joining=3 * DAY)
    week = counted(sent, 3 * DAY)
    assert counted(sent, 0)["first join"] == 7
    assert 7 <= week["lease"] <= 8, "a renewal at the edge of the week"
    assert 4 <= week["claim"] <= 8, "who joined last has nothing in a table yet when its time comes"
    assert 26 <= week["table"] <= 28 and week.keys() == {"lease", "claim", "table"}
    lease = [gas for _, kind, gas in sent if kind == "lease"]
    claim = [gas for _, kind, gas in sent if kind == "claim"]
    assert max(lease) < 60_000 and sum(claim) / len(claim) < 130_000
    hundred = (100 * (max(lease) + 100_000) / 7) + 4 * 131_000
    assert hundred < upkeep.BARS["without a chair"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("away", "days"), [(0, 1), (upkeep.AWAY, 3)])
def test_a_chair_is_held_in_the_last_third_of_its_lease_and_changes_hands_once_a_day_where_its_leader_goes(
    away: int, days: int
) -> None:
    sent = counted(upkeep.played(0, 1, away, days), 60)
    assert days * HOLDS * 0.9 < sent["hold"] <= days * HOLDS
    assert sent["lease"] == sent["claim"] == 0
    assert sent["end a term"] == sent["take"] == (days - 1 if away else 0)
