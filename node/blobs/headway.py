"""How far a blob is: told to whoever waits for it, a few times a second."""

from collections.abc import Callable, Sequence

import msgspec

UNITS = ((10**9, "GB"), (10**6, "MB"), (1000, "kB"), (1, "bytes"))


class BlobProgress(msgspec.Struct, frozen=True):
    """How far a blob is. size, done: bytes; rate: bytes per second; peers: sources that are delivering."""

    root: bytes
    size: int
    done: int
    rate: float
    peers: int


Report = Callable[[BlobProgress], None]


class Headway:
    """Of one blob, from now (seconds of any clock) on. progress: how far it is, at so many bytes per second, once its
    size is known."""

    def __init__(self, progress: Callable[[float], BlobProgress | None], now: float) -> None:
        self._progress = progress
        self._listeners: list[Report] = []
        self._arrivals: list[tuple[float, int]] = []
        self._told_at = float("-inf")
        self._moved_at = now

    def listen(self, report: Report) -> None:
        self._listeners.append(report)

    def unlisten(self, report: Report) -> None:
        if report in self._listeners:
            self._listeners.remove(report)

    def begins(self, now: float) -> None:
        """Its pieces are known: from now on it should move."""
        self._moved_at = now

    def came(self, size: int, now: float) -> None:
        """So many bytes that were not here."""
        self._moved_at = now
        self._arrivals.append((now, size))

    def moves(self, now: float) -> bool:
        # Seconds without a new piece after which an urgent blob no longer holds up the others.
        return now - self._moved_at < 2.0

    def report(self, now: float, *, force: bool = False, report_every: float = 0.2) -> None:
        rate_window = 3.0
        self._arrivals = [each for each in self._arrivals if now - each[0] <= rate_window]
        if not self._listeners or (now - self._told_at < report_every and not force):
            return
        span = max(report_every, now - self._arrivals[0][0]) if self._arrivals else 1.0
        progress = self._progress(sum(size for _, size in self._arrivals) / span)
        if progress is None or (progress.done == progress.size and not force):
            return  # the end is told once
        self._told_at = now
        for report in self._listeners:
            report(progress)


def describe(transfers: Sequence[BlobProgress], members: int) -> str:
    """Several transfers for people: '38 of 120 MB from 3 members', or how many members are asked before any bytes."""
    total, done = sum(one.size for one in transfers), sum(one.done for one in transfers)
    givers = max((one.peers for one in transfers), default=0)
    count = max(givers, 1) if done else members
    told = f"{count} member" if count == 1 else f"{count} members"
    if not done:
        return f"asking {told}"
    unit, name = next(each for each in UNITS if total >= each[0])
    digits = 1 if unit == 10**9 else 0
    return f"{done / unit:.{digits}f} of {total / unit:.{digits}f} {name} from {told}"


def fraction(transfers: Sequence[BlobProgress]) -> float | None:
    """0 to 1 over all of them; None while no size is known."""
    total = sum(one.size for one in transfers)
    return sum(one.done for one in transfers) / total if total else None
