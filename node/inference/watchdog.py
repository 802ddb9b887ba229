"""Tells an engine child that hangs from one that is long at work. Pure: times and CPU seconds are arguments.

A thread of the child that does nothing else answers pings, so silence means that the whole process stands: it was
stopped, or a lock is held for ever. Silence alone proves nothing on a busy machine; silence while the process uses no
processor does. Where pings are answered but the engine's thread ends nothing (its beats stand), it may be in a long
prefill: that uses the processor, or a load: that says so. Beyond the last bounds nothing excuses it.
"""

from dataclasses import dataclass

LOADING = "loading"
"""What an engine is busy with that may wait for a disk."""


@dataclass(slots=True)
class _Since:
    """When something last moved, and when it was first asked after that how many CPU seconds the child had used."""

    at: float
    first: tuple[float, float] | None = None

    def rate(self, now: float, cpu: float | None) -> float:
        """Processors used since then; what is not known, or for the first time, counts as work."""
        if cpu is None:
            return 1.0
        since, before = self.first = self.first or (now, cpu)
        return (cpu - before) / (now - since) if now > since else 1.0


class Watchdog:
    """One child's. now: seconds of a clock that never goes back."""

    def __init__(
        self,
        now: float,
        *,
        silent: float = 5.0,
        standing: float = 30.0,
        standing_at_work: float = 600.0,
        idle_share: float = 0.02,
    ) -> None:
        # Seconds without a beat and without work, while the engine has something to do that is no load; also without a
        # first word, which comes after the imports.
        self._standing = standing
        self._silent = silent  # seconds without a word and without work after which a child hangs
        self._standing_at_work = standing_at_work  # the longest that a single prefill or load may take, and the imports
        self._idle_share = idle_share  # of one processor: whoever uses less does not work
        self._heard = _Since(now)
        self._beat = _Since(now)
        self._looked = now
        self._beats = -1
        self._busy = ""
        self._spoke = False

    def heard(self, now: float) -> None:
        """A frame came."""
        self._heard, self._spoke = _Since(now), True

    def pong(self, now: float, beats: int, busy: str) -> None:
        """What the child said of its engine's thread."""
        # An engine without work has nothing to end, and one that says something new has begun with it.
        if beats != self._beats or not busy or busy != self._busy:
            self._beat = _Since(now)
        self._beats, self._busy = beats, busy

    def doubts(self, now: float) -> bool:
        """Whether what the child uses of the processors matters."""
        # Seconds without a word, or a beat, from which on it is asked whether the child works: to ask, all processes of
        # the machine are looked through.
        doubt = 2.5
        return now - self._heard.at > doubt or (bool(self._busy) and now - self._beat.at > doubt)

    def look(self, now: float, cpu: float | None) -> str:
        """Why the child hangs, empty if it does not. cpu: seconds that it and its own children have used so far; None
        without doubts. To be called every second."""
        # Seconds between two looks after which it was the daemon that slept.
        if now - self._looked > 2.0:  # the daemon was asleep, or its machine: nobody could be heard
            self._heard, self._beat = _Since(now), _Since(now)
        self._looked = now
        return self._silence(now, cpu) or self._standstill(now, cpu)

    def _silence(self, now: float, cpu: float | None) -> str:
        working = self._heard.rate(now, cpu) >= self._idle_share
        # The same for one that uses the processor: something may hold the interpreter's lock.
        idle, busy = (self._silent, 60.0) if self._spoke else (self._standing, self._standing_at_work)
        return _beyond("it says nothing", now - self._heard.at, busy if working else idle)

    def _standstill(self, now: float, cpu: float | None) -> str:
        if not self._busy:
            return ""
        working = self._beat.rate(now, cpu) >= self._idle_share or self._busy == LOADING
        bound = self._standing_at_work if working else self._standing
        return _beyond(f"it stands still while {self._busy}", now - self._beat.at, bound)


def _beyond(what: str, seconds: float, bound: float) -> str:
    return f"{what} since {seconds:.0f} s" if seconds > bound else ""
