"""Whom not to ask for a while. Pure: the clock is an argument."""

from node.recent import Recent
from protocol.identity import Address

FIRST_BAN = 10.0
LONGEST_BAN = 3600.0
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 10.0
FORGIVEN_AFTER = 6 * 3600.0
MAX_PEERS = 4096


class _Record:
    def __init__(self) -> None:
        self.lies = 0
        self.failures = 0
        self.until = 0.0
        self.seen = 0.0


class Reputation:
    """Per peer: lies (wrong bytes) ban it for long, failures (no bytes) pause it briefly; both double."""

    def __init__(self) -> None:
        self._records = Recent[Address, _Record](MAX_PEERS, refresh=True)

    def lied(self, peer: Address, now: float) -> float:
        """Record wrong bytes; returns the ban in seconds."""
        record = self._record(peer, now)
        record.lies += 1
        ban = min(LONGEST_BAN, FIRST_BAN * 2.0 ** min(record.lies - 1, 16))
        record.until = max(record.until, now + ban)
        return ban

    def failed(self, peer: Address, now: float) -> None:
        """Record that it did not deliver."""
        record = self._record(peer, now)
        record.failures += 1
        record.until = max(record.until, now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(record.failures - 1, 16)))

    def delivered(self, peer: Address) -> None:
        """Record good bytes: its failures (not its lies) are forgotten."""
        if peer in self._records:
            self._records[peer].failures = 0

    def ready_at(self, peer: Address, now: float) -> float:
        """When it may be asked again; not after `now` if at once."""
        record = self._records.get(peer)
        if record is None or now - record.seen > FORGIVEN_AFTER:
            return now
        return max(now, record.until)

    def lies(self, peer: Address) -> int:
        """How often it has sent wrong bytes."""
        record = self._records.get(peer)
        return record.lies if record else 0

    def liars(self) -> frozenset[Address]:
        """Who has sent wrong bytes."""
        return frozenset(peer for peer, record in self._records.items() if record.lies)

    def _record(self, peer: Address, now: float) -> _Record:
        record = self._records.get(peer)
        if record is None or now - record.seen > FORGIVEN_AFTER:
            record = _Record()
        record.seen = now
        self._records[peer] = record
        return record
