"""What time it is, for everything that decides: given from outside, so that simulations bring their own; and what the
peers' clocks say."""

import time
from collections.abc import Callable
from statistics import median

import msgspec
import trio

from node.bounded_dict import BoundedDict
from protocol.identity import Address
from protocol.liveness import AHEAD

Seconds = Callable[[], float]


class Clock(msgspec.Struct, frozen=True):
    """monotonic: seconds since some moment, for how long something took or may take; wall: unix seconds, for what is
    shown, signed or compared with the chain."""

    monotonic: Seconds = trio.current_time
    wall: Seconds = time.time


class PeerClocks:
    """How far this clock is from those of members that speak. A node whose own clock is late would take everybody for
    a liar from the future, so it is the peers' median that says what the future is, where it is later than we think."""

    HEARD = 64
    """Members that are asked: those that spoke last."""
    FOR = 600.0
    """Seconds for which a word counts."""
    ENOUGH = 3
    """Members that must say so before this clock is doubted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead: BoundedDict[Address, tuple[float, float]] = BoundedDict(self.HEARD, refresh=True)

    def heard(self, author: Address, said_at: int) -> None:
        """A member itself said just now what time it is (unix milliseconds)."""
        self._ahead[author] = (self._clock.wall() - said_at / 1000, self._clock.monotonic())

    def offsets(self) -> list[float]:
        """This clock minus each member's, seconds."""
        since = self._clock.monotonic() - self.FOR
        return [ahead for ahead, at in self._ahead.values() if at >= since]

    def ahead_by(self) -> float | None:
        """This clock minus the members' median, seconds: what they see of it. None where too few are heard."""
        offsets = self.offsets()
        return median(offsets) if len(offsets) >= self.ENOUGH else None

    def is_future(self, said_at: int) -> bool:
        late = max(0.0, -(self.ahead_by() or 0.0))
        return said_at / 1000 > self._clock.wall() + late + AHEAD
