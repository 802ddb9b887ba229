"""How far a node is on its way to useful work, and what has happened to it since it started.

Written to by the daemon and its services, read by the status page and by whoever shows it. In memory, bounded; knows
no clock but those that it is given, and nothing of what it is told.
"""

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from node.bounded_dict import BoundedDict

PHASES = (
    "key",
    "chain",
    "role",
    "checks",
    "stake",
    "joining",
    "peers",
    "run",
    "continuity",
    "engine",
    "policy",
    "first-contribution",
    "working",
    "leaving",
    "draining",
)
"""In the order in which a node goes through them. From `working` on it does what it came for."""
TROUBLE = "trouble"

Text = str | Callable[[], str]
"""What a phase waits for; a function where that changes while it lasts."""
Fraction = Callable[[], float | None]
"""How much of a phase is done, 0 to 1; None where nobody can say."""


class Phase(msgspec.Struct, frozen=True):
    """The present phase. since_seconds: how long it lasts by now; progress: 0 to 1, None if nobody can say."""

    name: str
    text: str
    since_seconds: float
    progress: float | None = None


class FinishedPhase(msgspec.Struct, frozen=True):
    """A phase that is over, and how long it took."""

    name: str
    seconds: float


class Event(msgspec.Struct, frozen=True):
    """Something that happened. at: unix seconds; name: one plain word; text: the same in a sentence."""

    at: float
    name: str
    text: str


class ProgressRecord:
    """clock: monotonic seconds; wall: unix seconds. told: events so far, the forgotten ones included.

    activity: what the node does once it has a policy, in words.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        activity: Text = "working",
        *,
        most_events: int = 100,
    ) -> None:
        self._most_events = most_events
        self._clock, self._wall = clock, wall
        self._name, self._fraction = PHASES[0], _unknown
        self._text: Callable[[], str] = _text("opening the node's directory and its key")
        self._began = self._since = clock()
        self._events: list[tuple[int, Event]] = []
        self._troubles: BoundedDict[str, float] = BoundedDict(most_events)
        self.phases: list[FinishedPhase] = []
        self.told = 0
        self.activity = _text(activity)

    @property
    def name(self) -> str:
        """Of the present phase."""
        return self._name

    @property
    def age(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    @property
    def phase(self) -> Phase:
        """The present one, as of now."""
        fraction = self._fraction()
        known = None if fraction is None else round(min(max(fraction, 0.0), 1.0), 3)
        return Phase(self._name, self._text(), round(self._clock() - self._since, 1), known)

    def enter(self, name: str, text: Text, progress: Fraction | None = None) -> None:
        """Begin a phase; the one of before is over. Of the present phase: it goes on, and waits for something else."""
        most_phases = 64
        if name != self._name:
            now = self._clock()
            self.phases = [*self.phases, FinishedPhase(self._name, round(now - self._since, 2))][-most_phases:]
            self._name, self._since = name, now
        self._text = _text(text)
        self._fraction = progress or _unknown

    def tell(self, name: str, text: str) -> None:
        """Put an event on record. When there are too many, the oldest of the most frequent kind is forgotten."""
        self._events.append((self.told, Event(round(self._wall(), 3), name, text)))
        self.told += 1
        if len(self._events) > self._most_events:
            self._forget_one()

    def trouble(self, text: str) -> None:
        """Tell of what should not be; the same trouble over and over, by turns with others too, every ten minutes."""
        told = self._troubles.get(text)
        if told is None or self._clock() - told >= 600.0:  # seconds after which a trouble that lasts is told again
            self._troubles[text] = self._clock()
            self.tell(TROUBLE, text)

    def contributed(self, name: str, text: str) -> None:
        """Tell of useful work. With the first of it the node is working."""
        self.tell(name, text)
        if self._name == "first-contribution":
            self.enter("working", self.activity)

    @property
    def events(self) -> list[Event]:
        """What is remembered, the newest last."""
        return self.since(0)

    def since(self, told: int) -> list[Event]:
        """What is remembered of the events after the first `told` ones."""
        return [event for number, event in self._events if number >= told]

    def _forget_one(self) -> None:
        # a worker on a devnet has two files a second accepted; that it was slashed must still be there an hour later
        often, _ = Counter(event.name for _, event in self._events).most_common(1)[0]
        oldest = next(index for index, (_, event) in enumerate(self._events) if event.name == often)
        del self._events[oldest]


def _text(text: Text) -> Callable[[], str]:
    return (lambda: text) if isinstance(text, str) else text


def _unknown() -> float | None:
    return None
