"""All that the page knows, brought up to date with one status after another. Pure.

It is done in parts, each of which is short also where a swarm has a thousand members: others may run in between.
"""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from node.page.feed import Feed, Row
from node.page.plain import Steady
from node.page.sections import DECISION_COLUMNS, MEMBER_COLUMNS, decisions, members, sections
from node.page.series import LOAD_COLUMNS, STEP_COLUMNS, Curves
from node.page.spread import SPREAD_COLUMNS, SpreadBook

COLUMNS = {
    "members": MEMBER_COLUMNS,
    "decisions": DECISION_COLUMNS,
    "steps": STEP_COLUMNS,
    "load": LOAD_COLUMNS,
    "policies": SPREAD_COLUMNS,
}


class Model:
    """feed: what viewers are told; curves: what survives a restart."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.curves = Curves()
        self._spread = SpreadBook()
        self._steady = Steady()

    def absorb(self, status: Mapping[str, Any], now: float) -> Iterator[None]:
        """Take in what /status says at `now`, unix seconds."""

        def ago(name: str, seconds: Any) -> int | None:
            return self._steady(name, now, seconds)

        for name, content in sections(status, ago).items():
            self.feed.put(name, content)
        self.feed.put_rows("decisions", decisions(status))
        yield
        rows: dict[Hashable, Row] = {}
        for some in members(status, ago):
            rows |= some
            yield
        self.feed.put_rows("members", rows)
        yield
        self._follow_policies(status, now)
        yield
        self.curves.feed(status, now)
        for name, series in self.curves.by_name.items():
            self.feed.put_rows(name, series.rows)

    def _follow_policies(self, status: Mapping[str, Any], now: float) -> None:
        own, newest = (status.get("node") or {}).get("address"), (status.get("run") or {}).get("step")
        swarm = [row for row in status.get("swarm") or [] if row.get("state") in ("healthy", "unhealthy")]
        held = {row["address"]: row["step"] for row in swarm}
        if own and isinstance(newest, int):
            held[own] = newest  # sooner than its own heartbeat says it
        self._spread.feed(now, held.items())
        self.feed.put_rows("policies", self._spread.rows(len(held)))
