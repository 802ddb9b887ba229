"""Where members are, by their own signed word: what outlasts a restart, and what one member can tell another.

A record is a member's heartbeat as it signed it: it says where it is, when, and nobody else could have said it. Knows
what to believe and what to hand on; the clock is an argument (Unix seconds).
"""

import random
from collections.abc import Callable

import msgspec

from node.bounded_dict import BoundedDict
from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.liveness import AHEAD
from protocol.messages import Heartbeat, Signed, of_kind, open_envelope
from protocol.statements import Domain

MAX_RECORDS = 1024
MAX_TOLD = 48
MAX_TOLD_BYTES = 64 * 1024
MAX_KEPT_BYTES = 2 * 1024**2


class PeerRecords:
    """is_member: whose records are kept; anybody can sign as nobody."""

    def __init__(self, own: Address, domain: Domain, pool: int, is_member: Callable[[Address], bool]) -> None:
        self._own = own
        self._domain = domain
        self._pool = pool
        self._is_member = is_member
        self._records: BoundedDict[Address, Signed[Heartbeat]] = BoundedDict(MAX_RECORDS, refresh=True)

    def __len__(self) -> int:
        return len(self._records)

    def learn(self, signed: Signed[Heartbeat], now: float) -> bool:
        """Keep a record whose author is proven; whether it was news of a member."""
        known = self._records.get(signed.author)
        if signed.author == self._own or not self._is_member(signed.author) or not _fresh(signed, now):
            return False
        if known is not None and known.message.number >= signed.message.number:
            return False
        self._records[signed.author] = signed
        return True

    def unknown(self, data: bytes) -> list[bytes]:
        """The records in what a peer told or a file kept that are not here already. Raises ProtocolError for what is no
        list of records."""
        records = decode_msgpack(
            data, list[bytes], limit=MAX_KEPT_BYTES, error=ProtocolError, what="malformed list of peers"
        )
        known = {signed.raw for signed in self._records.values()}
        return [raw for raw in records[:MAX_RECORDS] if raw not in known]

    def read(self, raw: bytes, now: float) -> Signed[Heartbeat] | None:
        """The record if it is news; None for one that is malformed, forged, stale, a stranger's or older than ours."""
        try:
            signed = of_kind(open_envelope(self._domain, self._pool, raw), Heartbeat)
        except ProtocolError:
            return None
        return signed if self.learn(signed, now) else None

    def told(self, now: float) -> bytes:
        """Some of what is known, for a peer that asks: members chosen by chance, as many as fit."""
        fresh = self._fresh(now)
        return _list(random.sample(fresh, min(MAX_TOLD, len(fresh))), MAX_TOLD_BYTES)

    def kept(self, now: float) -> bytes:
        """All of it, for a file."""
        return _list(self._fresh(now), MAX_KEPT_BYTES)

    def _fresh(self, now: float) -> list[bytes]:
        return [signed.raw for signed in self._records.values() if _fresh(signed, now)]


def _fresh(signed: Signed[Heartbeat], now: float) -> bool:
    # A record is worth nothing after a day; one from further on would not expire for years.
    return now - 24 * 3600.0 < signed.message.at / 1000 < now + AHEAD


def _list(records: list[bytes], room: int) -> bytes:
    fitting: list[bytes] = []
    for raw in records:
        # Five bytes are msgpack's longest header, before each record and before the list.
        room -= len(raw) + 5
        if room < 5:
            break
        fitting.append(raw)
    return msgspec.msgpack.encode(fitting)
