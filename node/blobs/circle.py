"""The sources of one blob: who is asked, who waits for a place, who may be asked again; and whom this node trusts."""

import random
from collections.abc import Callable, Iterable

from node.bounded_dict import BoundedDict
from node.network.interface import Network
from protocol.identity import Address

MAX_ACTIVE = 24
"""Sources that are asked at once; more may join by telling us that they fetch the same."""
MAX_RELAYED = 4
"""Sources up to which one behind a relay is asked, too."""
MAX_JOINED = 40
MAX_CANDIDATES = 1024
GIVE_UP_AFTER = 4
"""Misses after which a source makes room for one that was not tried."""


class SourceContact:
    """When we last heard from a source about this blob, and how often it did not have it. rests: seconds
    that it is left alone then, at first and at most."""

    def __init__(self, rests: tuple[float, float]) -> None:
        self._rests = rests
        self.heard_at = float("-inf")
        self.retry_at = float("-inf")
        self.misses = 0
        self.telling = False
        self.seeking = False

    def heard(self, now: float) -> None:
        self.heard_at = now
        self.misses = 0
        self.retry_at = float("-inf")

    def missed(self, now: float) -> None:
        if now < self.retry_at:
            # Several answers of one moment are one miss, or eight parallel requests would pause it for ten seconds.
            return  # requests that were under way together count once
        self.retry_at = now + min(self._rests[1], self._rests[0] * 2.0 ** min(self.misses, 16))
        self.misses += 1


class Circle:
    """begins: told of each source that is asked from now on, and how many are; leaves: of each that makes room;
    rests: as of a SourceContact."""

    def __init__(
        self,
        network: Network,
        reputation: "Reputation",
        begins: Callable[[Address, int], None],
        leaves: Callable[[Address], None],
        rests: tuple[float, float] = (0.25, 10.0),
    ) -> None:
        self._rests = rests
        self.contacts: dict[Address, SourceContact] = {}
        """Those that are asked."""
        self._network = network
        self._reputation = reputation
        self._begins = begins
        self._leaves = leaves
        self._candidates: dict[Address, None] = {}

    def add(self, sources: Iterable[Address]) -> None:
        """Use these sources, too: the first for sure, of the others as many as there is room for, at random; those
        that only a relay leads to last, and few of them: what is carried costs somebody else's line."""
        own, relayed = self._network.address, self._network.relayed()
        new = [source for source in dict.fromkeys(sources) if source != own and source not in self._candidates]
        # The first source is who named the blob and surely has it; shuffled, it might be the last one asked.
        tail = new[1:] if not self._candidates else new
        random.shuffle(tail)
        tail.sort(key=lambda source: source in relayed)
        for source in new[: len(new) - len(tail)] + tail:
            if len(self._candidates) < MAX_CANDIDATES:
                self._candidates[source] = None
                if len(self.contacts) < (MAX_RELAYED if source in relayed else MAX_ACTIVE):
                    self._activate(source)

    def join(self, source: Address) -> bool:
        """One that says what it has, unasked; whether it is asked from now on."""
        if source not in self.contacts:
            # Anybody may tell us a map: without this bound strangers would fill the table of sources.
            if len(self.contacts) >= MAX_JOINED:
                return False
            self._activate(source)
        return True

    def ready(self, source: Address, now: float) -> bool:
        contact = self.contacts.get(source)
        return contact is not None and max(contact.retry_at, self._reputation.ready_at(source, now)) <= now

    def rotate(self, busy: Callable[[Address], bool]) -> list[Address]:
        """A source that keeps missing the blob makes room for one that was not tried; without any, those that are
        asked for its list again, each once its pause is over."""
        spare = [each for each in self._candidates if each not in self.contacts]
        useless = [each for each, contact in self.contacts.items() if contact.misses >= GIVE_UP_AFTER]
        if spare and useless and not busy(useless[0]):
            # Only an idle one is dropped: the answer to a request under way may be the piece list.
            del self.contacts[useless[0]]
            self._leaves(useless[0])
            del self._candidates[useless[0]]
            # Not forgotten: it may have the blob later, for instance a peer that is fetching it now.
            self._candidates[useless[0]] = None  # to the end of the line
            self._activate(spare[0])
        return [] if spare else useless

    def _activate(self, source: Address) -> None:
        self._candidates.setdefault(source, None)
        self.contacts[source] = SourceContact(self._rests)
        self._begins(source, len(self.contacts))


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
        self._records = BoundedDict[Address, _Record](MAX_PEERS, refresh=True)

    def lied(self, peer: Address, now: float) -> float:
        """Record wrong bytes; returns the ban in seconds."""
        record = self._record(peer, now)
        record.lies += 1
        # Seconds for wrong bytes. A lie is no accident: each piece was checked where it was written.
        ban = min(3600.0, 10.0 * 2.0 ** min(record.lies - 1, 16))
        # Doubles up to an hour, which the tenth lie reaches.
        record.until = max(record.until, now + ban)
        return ban

    def failed(self, peer: Address, now: float) -> None:
        """Record that it did not deliver."""
        record = self._record(peer, now)
        record.failures += 1
        # Seconds for bytes that did not come, which a busy machine or a bad line explains.
        record.until = max(record.until, now + min(10.0, 0.25 * 2.0 ** min(record.failures - 1, 16)))

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
