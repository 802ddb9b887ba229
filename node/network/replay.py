"""Which of a publisher's gossip messages came before: without it, anybody could spend a member's budget by sending
its old messages again, whose signatures stay good.

Gossip forgets a message after 32,768 others. Numbers last: ours, and those of go-libp2p, begin with the clock in
nanoseconds and rise by one. Others draw them at random (js-libp2p); those publishers are recognised, and let be. Pure.
"""

import msgspec

WIDTH = 4096
"""Messages that may overtake each other."""
CLOCKED = range(1_577_836_800 * 10**9, 4_102_444_800 * 10**9)
"""Numbers that can be a clock in nanoseconds: from 2020 to 2100."""


class Window(msgspec.Struct, gc=False, eq=False):
    """The newest number of one publisher, and which of the WIDTH before it were taken."""

    _newest: int = 0
    _taken: int = 0
    _random: bool = False

    def fresh(self, number: int, latest: int = CLOCKED.stop) -> bool:
        """Whether a message with that number has not been taken, and is not older than all that are remembered. latest:
        what is above that is from the future, and nothing is remembered of it: else a clock that was a day ahead and
        is put right would make its node mute for a day."""
        behind = self._newest - number
        if self._random or number not in CLOCKED or number > latest or behind < 0:
            return True
        return behind < WIDTH and not self._taken >> behind & 1

    def take(self, number: int, latest: int = CLOCKED.stop) -> bool:
        """The same, and it is taken from now on. Only for numbers whose signature was checked."""
        self._random = self._random or number not in CLOCKED
        if self._random or number > latest:
            return True
        if not self.fresh(number):
            return False
        ahead = number - self._newest
        if ahead > 0:
            self._taken = (self._taken << ahead | 1) & (1 << WIDTH) - 1 if ahead < WIDTH else 1
            self._newest = number
        else:
            self._taken |= 1 << -ahead
        return True
