"""What a relay does for whom: members only, each within bounds, all together within bounds.

Pure: the clock is an argument. Knows who has reserved and who is carried; knows neither streams nor bytes.
"""

from collections.abc import Callable
from enum import IntEnum

import msgspec

from node.network.budget import TokenBucket
from protocol.identity import Address

MIB = 1024**2


class RelayStatus(IntEnum):
    """A relay's answers, with the numbers of the specification."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


class RelayLimits(msgspec.Struct, frozen=True):
    """reservations, circuits: of everybody at once; circuits_each: of one member, at either end of them; lease: seconds
    of a reservation; duration: seconds of a circuit; data: bytes of a circuit, each way; rate, rate_each: bytes per
    second of everybody and of one member, both ways together; burst: bytes at once, beyond the rate."""

    reservations: int = 128
    circuits: int = 256
    circuits_each: int = 48
    lease: float = 1800.0
    duration: float = 4 * 3600.0
    data: int = 64 * 1024**3
    rate: float = 32.0 * MIB
    rate_each: float = 16.0 * MIB
    burst: float = 16.0 * MIB


class RelayRules:
    """is_member: whom this relay serves. Nothing is served before `offered`."""

    def __init__(self, limits: RelayLimits, is_member: Callable[[Address], bool]) -> None:
        self.limits = limits
        self.offered = False
        self._is_member = is_member
        self._until: dict[Address, float] = {}
        self._circuits: dict[Address, int] = {}
        self._open = 0
        self._all = TokenBucket(limits.rate, limits.burst)
        self._each: dict[Address, TokenBucket] = {}

    @property
    def circuits(self) -> int:
        """Open now."""
        return self._open

    def reservations(self, now: float) -> int:
        """Those that hold now."""
        self._expire(now)
        return len(self._until)

    def reserve(self, member: Address, now: float) -> RelayStatus:
        """Hold a place for calls to `member`, or renew it."""
        if not self.offered:
            return RelayStatus.RESERVATION_REFUSED
        if not self._is_member(member):
            return RelayStatus.PERMISSION_DENIED
        self._expire(now)
        # Who has a place may renew it though all are taken: else a full relay would lose its oldest members one by one.
        if member not in self._until and len(self._until) >= self.limits.reservations:
            return RelayStatus.RESOURCE_LIMIT_EXCEEDED
        self._until[member] = now + self.limits.lease
        return RelayStatus.OK

    def _expire(self, now: float) -> None:
        for member in [member for member, until in self._until.items() if until <= now]:
            del self._until[member]

    def forget(self, member: Address) -> None:
        """It is not connected any more: what it had reserved is free."""
        self._until.pop(member, None)

    def open(self, caller: Address, called: Address, now: float) -> RelayStatus:
        """Count one more circuit; whoever gets OK calls `close` when it ends."""
        # Members have a stake; an open relay would be found by the whole internet within days.
        if not (self._is_member(caller) and self._is_member(called)) or caller == called:
            return RelayStatus.PERMISSION_DENIED
        if self._until.get(called, 0.0) <= now:
            return RelayStatus.NO_RESERVATION
        full = self._open >= self.limits.circuits
        if full or any(self._circuits.get(end, 0) >= self.limits.circuits_each for end in (caller, called)):
            return RelayStatus.RESOURCE_LIMIT_EXCEEDED
        self._open += 1
        for end in (caller, called):
            self._circuits[end] = self._circuits.get(end, 0) + 1
            self._each.setdefault(end, TokenBucket(self.limits.rate_each, self.limits.burst))
        return RelayStatus.OK

    def close(self, caller: Address, called: Address) -> None:
        self._open -= 1
        for end in (caller, called):
            self._circuits[end] -= 1
            if not self._circuits[end]:
                del self._circuits[end], self._each[end]

    def pay(self, caller: Address, called: Address, size: int, now: float) -> float:
        """Seconds to wait before `size` bytes of an open circuit are passed on."""
        buckets = (self._all, self._each[caller], self._each[called])
        # Every bucket is charged, and the slowest decides: the bytes pass all of them.
        return max(bucket.reserve(size, now) for bucket in buckets)
