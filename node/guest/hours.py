"""Hours of the day in which a node may work, by the clock on its owner's wall. Pure.

"22:00-07:00" is every night, "sat,sun 10:00-24:00" two days of a week, "fri 22:00-07:00" the night that begins on a
Friday. What the clock shows is what counts: of an hour that comes twice both belong to it, and one that is left out is
left out, so that a night is an hour longer or shorter. Moments are unix seconds.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Self

import msgspec

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES = 24 * 60
AHEAD = 8
"""Days in which a change is looked for: every span comes once a week."""
_SPAN = re.compile(r"(?:(?P<days>[a-z, -]+) )?(?P<from>\d{1,2}:\d{2})-(?P<to>\d{1,2}:\d{2})")


class HourSpan(msgspec.Struct, frozen=True):
    """days: on which it begins, 0 for Monday; start, end: minutes of the day; an end that is no later than the start is
    of the next day."""

    days: frozenset[int]
    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, whose words say what is wrong."""
        found = _SPAN.fullmatch(" ".join(text.lower().split()))
        if found is None:
            raise ValueError(f"{text[:60]!r} is not of the form 22:00-07:00 or mon-fri 22:00-07:00")
        start, end = (_minutes(found[name], text) for name in ("from", "to"))
        if start == end or start == MINUTES:
            raise ValueError(f"{text[:60]!r} has no length: a whole day is 00:00-24:00")
        return cls(_days(found["days"], text), start, end)

    def holds(self, moment: datetime) -> bool:
        """Whether a wall clock that shows this lies in it."""
        minute, day = 60 * moment.hour + moment.minute, moment.weekday()
        if self.start < self.end:
            return day in self.days and self.start <= minute < self.end
        since_yesterday = (day - 1) % 7 in self.days and minute < self.end
        return since_yesterday or (day in self.days and minute >= self.start)


class Hours(msgspec.Struct, frozen=True):
    """spans: none is always; zone: of the clock that counts, None for this machine's."""

    spans: tuple[HourSpan, ...] = ()
    zone: tzinfo | None = None

    @classmethod
    def parse(cls, texts: Sequence[str], zone: tzinfo | None = None) -> Self:
        return cls(tuple(map(HourSpan.parse, texts)), zone)

    def open(self, at: float) -> bool:
        clock = datetime.fromtimestamp(at, self.zone)
        return not self.spans or any(span.holds(clock) for span in self.spans)

    def next_change(self, at: float) -> float | None:
        """When they begin or end next, None where they never do."""
        now, before = self.open(at), at
        # Looked at in turn and not reckoned: over a change of the clock a span begins at another distance than usual.
        for moment in sorted(one for one in self._candidates(at) if one > at):
            if self.open(moment) != now:
                return self._halved(before, moment, now)
            before = moment
        return None

    def share(self, at: float) -> float:
        """How much of a week from then on they are open, 0 to 1."""
        end, total, last = at + 7 * 86_400.0, 0.0, at
        while (change := self.next_change(last)) is not None and change < end:
            total += (change - last) * self.open(last)
            last = change
        return (total + (end - last) * self.open(last)) / (end - at)

    def _candidates(self, at: float) -> Iterator[float]:
        """Moments beside which a change may be: of the spans' ends, and of the clock's own jumps."""
        today = datetime.fromtimestamp(at, self.zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        minutes = {minute for span in self.spans for minute in (span.start, span.end)} | {0}
        for days in range(-1, AHEAD + 1):
            day = today + timedelta(days=days)
            for minute in minutes:
                clock = day + timedelta(minutes=minute)
                # An hour that the clock shows twice has two moments, and `timestamp` tells the first one.
                yield from (clock.timestamp(), clock.replace(fold=1).timestamp())
        yield from self._jumps(at)

    def _jumps(self, at: float) -> Iterator[float]:
        """When the clock is put forward or back in the next days."""
        for days in range(AHEAD):
            low, high = at + 86_400.0 * days, at + 86_400.0 * (days + 1)
            if self._offset(low) != self._offset(high):
                while high - low > 0.5:
                    middle = (low + high) / 2
                    low, high = (middle, high) if self._offset(middle) == self._offset(low) else (low, middle)
                yield float(round(high))

    def _offset(self, at: float) -> timedelta | None:
        return datetime.fromtimestamp(at, UTC).astimezone(self.zone).utcoffset()

    def _halved(self, low: float, high: float, was: bool) -> float:
        """The first second at which it is otherwise than it was at `low`."""
        while high - low > 0.5:
            middle = (low + high) / 2
            low, high = (middle, high) if self.open(middle) == was else (low, middle)
        return float(round(high))


def _minutes(text: str, whole: str) -> int:
    hour, minute = map(int, text.split(":"))
    if minute > 59 or 60 * hour + minute > MINUTES:
        raise ValueError(f"{whole[:60]!r}: there is no {text} on a clock (24:00 is the last)")
    return 60 * hour + minute


def _days(text: str | None, whole: str) -> frozenset[int]:
    """mon-fri, sat,sun, or both with a comma between; fri-mon goes over the end of the week."""
    found: set[int] = set()
    for part in (text or "mon-sun").replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"{whole[:60]!r}: {part[:20]!r} is no day; there are {', '.join(DAYS)}")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found.update((begin + days) % 7 for days in range((end - begin) % 7 + 1))
    return frozenset(found)
