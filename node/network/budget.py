"""Token buckets: how much one peer, or all strangers together, may ask of us.

Pure: the clock is an argument.
"""

from collections.abc import Hashable

import msgspec

from node.bounded_dict import BoundedDict

MAX_KEYS = 4096


class TokenBucket(msgspec.Struct, gc=False, eq=False):
    """rate: tokens per second; burst: tokens at most, and at first."""

    rate: float
    burst: float
    _tokens: float = 0.0
    _at: float | None = None

    def __post_init__(self) -> None:
        self._tokens = self.burst

    def take(self, tokens: float, now: float) -> bool:
        """Spend `tokens` if they are there. `now`: seconds, monotonic."""
        if self._at is not None:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if tokens > self._tokens:
            return False
        self._tokens -= tokens
        return True

    def reserve(self, tokens: float, now: float) -> float:
        """Spend `tokens` and return how many seconds to wait until they are there; reservations queue up."""
        self.take(0, now)
        self._tokens -= tokens
        return max(0.0, -self._tokens / self.rate)

    def delay(self, now: float) -> float:
        """Seconds until the balance is no longer negative."""
        self.take(0, now)
        return max(0.0, -self._tokens / self.rate)

    def charge(self, tokens: float) -> None:
        """Spend tokens after the fact; the balance may become negative."""
        self._tokens -= tokens


class Budgets:
    """One bucket per key, for the MAX_KEYS keys seen last."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: BoundedDict[Hashable, TokenBucket] = BoundedDict(MAX_KEYS, refresh=True)

    def take(self, key: Hashable, tokens: float, now: float) -> bool:
        """Spend `tokens` of `key`'s bucket if they are there."""
        self._buckets[key] = bucket = self._buckets.get(key) or TokenBucket(self._rate, self._burst)
        return bucket.take(tokens, now)
