"""All that the page knows, brought up to date with one status after another. Pure.

It is done in parts, each of which is short also where a swarm has a thousand members: others may run in between.
"""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import msgspec

from node.status_schema import DaemonStatus
from node.web.page.feed import Feed, Row
from node.web.page.plain import Steady
from node.web.page.sections import DECISION_COLUMNS, MEMBER_COLUMNS, decisions, members, sections
from node.web.page.series import LOAD_COLUMNS, STEP_COLUMNS, Curves

SPREAD_COLUMNS = ("step", "at", "held", "live", "seconds")
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

    def absorb(self, status: DaemonStatus, now: float) -> Iterator[None]:
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

    def _follow_policies(self, status: DaemonStatus, now: float) -> None:
        own, newest = status.node.address, status.run.step if status.run else None
        swarm = [row for row in status.swarm if row.state in ("healthy", "unhealthy")]
        held = {row.address: -1 if row.step is None else row.step for row in swarm}
        if own and newest is not None:
            held[own] = newest  # sooner than its own heartbeat says it
        self._spread.feed(now, held.items())
        self.feed.put_rows("policies", self._spread.rows(len(held)))


class PolicySpread(msgspec.Struct):
    """One policy. at: unix seconds at which the first member held it; seconds: of each member, by its address."""

    step: int
    at: float
    seconds: dict[str, float]


class SpreadBook:
    """How policies spread: how long after the first member each other one held them, as heartbeats tell.

    Heartbeats name the newest policy only. Who skips some had them by then at the latest. What a member held when it
    was first heard of says nothing about how policies travel.
    """

    def __init__(self, *, kept: int = 12) -> None:
        self._kept = kept  # policies
        self._policies: dict[int, PolicySpread] = {}
        self._had: dict[str, int] = {}

    def feed(self, now: float, holders: Iterable[tuple[str, int]]) -> None:
        """holders: (member, step of its newest policy, -1 for none) at `now`, unix seconds."""
        for member, step in holders:
            had = self._had.get(member)
            if had is not None and step > had:
                self._note(member, max(had + 1, step - self._kept + 1), step, now)
            self._had[member] = step if had is None else max(had, step)
        for step in sorted(self._policies)[: -self._kept]:
            del self._policies[step]

    def _note(self, member: str, first: int, last: int, now: float) -> None:
        newest = max(self._policies, default=-1)
        for step in range(max(first, newest - self._kept + 1), last + 1):
            spread = self._policies.get(step)
            if spread is None:
                spread = self._policies[step] = PolicySpread(step, now, {})
            spread.seconds[member] = round(now - spread.at, 1)

    def rows(self, live: int) -> dict[int, tuple[int, float, int, int, list[float]]]:
        """By step: (step, at, members that hold it, members alive, their times ascending)."""
        return {
            step: (step, round(spread.at, 1), len(spread.seconds), live, quantiles(sorted(spread.seconds.values())))
            for step, spread in self._policies.items()
        }


def quantiles(ascending: list[float]) -> list[float]:
    """All of them, or as many evenly chosen ones with the first and the last."""
    last = len(ascending) - 1
    shown = 16  # times of one policy: beyond that, as many quantiles
    return ascending if last < shown else [ascending[round(i * last / (shown - 1))] for i in range(shown)]
