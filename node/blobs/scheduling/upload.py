"""Who is served next: a few upload slots, and the balance of what each gave and took.

Of all who wait, the one that owes us least goes first: bytes sent to it less bytes received from it, both fading with
time. Who only takes is served when nobody else waits. Who asks while the queue is full, or has enough
requests in it, is choked: told to come back later. A slot whose taker has stalled no longer counts as taken.

Knows names, sizes and times; knows nothing of blobs or the network.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.blobs.scheduling.bitfield import Flags
from node.bounded_dict import BoundedDict

Peer = TypeVar("Peer", bound=Hashable)

HALF_LIFE = 30.0
FADED = 64
"""Halvings after which nothing is left of a balance."""
# Strangers can make up names: the balance that was used longest ago is forgotten, and it had faded.
MAX_PEERS = 4096
CHOKED = (0.5, 10.0)
"""Seconds until a choked peer should ask again, at least and at most."""


class Reciprocity(Generic[Peer]):
    """Bytes exchanged with each peer, halved every HALF_LIFE seconds.

    Since all balances fade alike, they are kept as what they would be at one moment: who owes more than whom changes
    only when bytes are exchanged.
    """

    def __init__(self) -> None:
        self._levels = BoundedDict[Peer, float](MAX_PEERS, refresh=True)
        self._moment = 0.0

    def debt(self, peer: Peer, now: float) -> float:
        """Bytes that `peer` has had of us beyond what it gave."""
        return self.level(peer) * 0.5 ** ((now - self._moment) / HALF_LIFE)

    def level(self, peer: Peer) -> float:
        """In the order of the debts, at any time; 0.0 for who owes nothing."""
        return self._levels.get(peer, 0.0)

    def sent(self, peer: Peer, size: int, now: float) -> None:
        self._add(peer, size, now)

    def received(self, peer: Peer, size: int, now: float) -> None:
        self._add(peer, -size, now)

    def _add(self, peer: Peer, size: float, now: float) -> None:
        # Before the power of two grows beyond what a float holds.
        if now - self._moment > FADED * HALF_LIFE:
            self._move_to(now)
        self._levels[peer] = self.level(peer) + size * 2.0 ** ((now - self._moment) / HALF_LIFE)

    def _move_to(self, now: float) -> None:
        fade = 0.5 ** min(2 * FADED, (now - self._moment) / HALF_LIFE)
        for peer, level in list(self._levels.items()):
            self._levels[peer] = level * fade
        self._moment = now


class UploadTicket(msgspec.Struct, Generic[Peer], eq=False):
    """One request that waits for, or has, an upload slot. size: bytes it will take; at: seconds, monotonic."""

    peer: Peer
    size: int
    at: float


class UploadQueue(Generic[Peer]):
    """slots: answers sent at once; per_peer, total: requests that may wait; stalled: seconds that a slot is held;
    abreast: answers to one peer that take one slot together, where each has a slow connection of its own."""

    def __init__(
        self,
        reciprocity: Reciprocity[Peer],
        *,
        slots: int = 4,
        per_peer: int = 24,
        total: int = 256,
        stalled: float = 8.0,
        abreast: Callable[[Peer], int] = lambda peer: 1,
    ) -> None:
        self._reciprocity = reciprocity
        self._slots = slots
        self._per_peer = per_peer
        self._total = total
        self._stalled = stalled
        self._abreast = abreast
        self._waiting: dict[Peer, dict[UploadTicket[Peer], None]] = {}  # each peer's, in the order in which they came
        self._count = 0
        self._sending: dict[UploadTicket[Peer], float] = {}
        self._stuck: dict[
            UploadTicket[Peer], None
        ] = {}  # whose slots were taken back; their answers are still in memory
        self._queued = 0  # bytes that wait
        self._sent = 0.0  # bytes sent of late, fading, and over how many seconds
        self._span = 0.0
        self._sent_at = 0.0

    @property
    def waiting(self) -> int:
        return self._count

    def offer(self, peer: Peer, size: int, now: float) -> UploadTicket[Peer] | None:
        """Queue a request; None: the peer is choked."""
        own = self._waiting.get(peer, {})
        # Per peer as well: one that asks a thousand times must not fill the queue for the others.
        if len(own) >= self._per_peer or self._count >= self._total:
            return None
        ticket = UploadTicket(peer, size, now)
        own[ticket] = None
        self._waiting[peer] = own
        self._count += 1
        self._queued += size
        return ticket

    def choke_seconds(self) -> float:
        """How long the queue will take at the present pace, within CHOKED."""
        pace = self._sent / self._span if self._span else 0.0
        return min(CHOKED[1], max(CHOKED[0], self._queued / pace if pace else 0.0))

    def next(
        self, now: float, burden: Callable[[UploadTicket[Peer]], float] | None = None
    ) -> UploadTicket[Peer] | None:
        """The request to answer now, None if all slots are taken or nobody waits. burden: comes before the debt."""
        self._forget_stalled(now)
        served = self._served() if self._waiting else {}
        if not served:
            return None
        ticket = self._first(served, burden)
        self._leave(ticket)
        self._sending[ticket] = now
        # At the grant, not at the end: else a peer could have several grants before it owes anything.
        self._reciprocity.sent(ticket.peer, ticket.size, now)
        return ticket

    def _served(self) -> dict[Peer, None]:
        """Of those who wait, for whom there is room in a slot and in memory. The last slot is for who has none: a peer
        that reads nothing does not keep all of them."""
        if not self._stuck and len(self._sending) < self._slots - 1:
            # The usual case, without counting: a slot is free even if everybody takes one.
            return dict.fromkeys(self._waiting)
        sending = Counter(ticket.peer for ticket in self._sending)
        held = Counter[Peer]()  # bytes
        for ticket in (*self._sending, *self._stuck):
            held[ticket.peer] += ticket.size
        free = self._slots - sum(-(-count // max(self._abreast(peer), 1)) for peer, count in sending.items())
        found: dict[Peer, None] = {}
        for peer in self._waiting:
            begun = sending[peer] % max(self._abreast(peer), 1)
            # Of answers to one peer that are in memory at once, those that it does not read among them.
            if held[peer] < 16 * 1024**2 and (begun or free > (1 if sending[peer] else 0)):
                found[peer] = None
        return found

    def _first(
        self, served: dict[Peer, None], burden: Callable[[UploadTicket[Peer]], float] | None
    ) -> UploadTicket[Peer]:
        owed = {peer: self._reciprocity.level(peer) for peer in served}
        if burden is None:
            least = min(owed.values())
            # Among equals who came first: newcomers all owe nothing, and none of them may starve.
            return min((next(iter(self._waiting[peer])) for peer in owed if owed[peer] == least), key=_came)
        ranks = [(burden(ticket), owed[peer], ticket.at, ticket) for peer in served for ticket in self._waiting[peer]]
        return min(ranks, key=_before)[-1]

    def begins(self, ticket: UploadTicket[Peer], now: float) -> None:
        """Its answer is being sent from now on: what it waited for a rate limit is not its taker's fault."""
        if ticket in self._sending:
            self._sending[ticket] = now

    def withdraw(self, ticket: UploadTicket[Peer], now: float) -> None:
        """The request ended: before its turn, or because its answer was sent or failed."""
        self._leave(ticket)
        self._stuck.pop(ticket, None)
        if self._sending.pop(ticket, None) is not None:
            # Bounded, for an idle hour says nothing of how fast the line is.
            gap = min(now - self._sent_at, 10.0)
            fade = 0.5 ** (gap / 5.0)
            self._sent, self._span, self._sent_at = self._sent * fade + ticket.size, self._span * fade + gap, now

    def _leave(self, ticket: UploadTicket[Peer]) -> None:
        own = self._waiting.get(ticket.peer, {})
        if ticket in own:
            del own[ticket]
            self._count -= 1
            self._queued -= ticket.size
            if not own:
                del self._waiting[ticket.peer]

    def _forget_stalled(self, now: float) -> None:
        for ticket in [each for each, since in self._sending.items() if now - since > self._stalled]:
            del self._sending[ticket]
            self._stuck[ticket] = None


def _came(ticket: UploadTicket[Peer]) -> float:
    return ticket.at


def _before(rank: tuple[float, float, float, object]) -> tuple[float, float, float]:
    return rank[:3]


# More than this share one number less, and are simply not ranked: the bound is on memory alone.
MAX_TAKERS = 2048


class SuperSeed(Generic[Peer]):
    """What the only holder of a blob of `count` pieces has given to whom, so that it gives it away fastest.

    While some piece has left the origin never, askers do not choose: each gets pieces that nobody was given yet. Who
    keeps to itself what it was given comes after those whose pieces have been seen elsewhere.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._out = np.zeros(count, np.bool_)
        # At random: with the same order for every blob the same piece would always be the last to leave.
        self._order = np.random.default_rng(seed).permutation(count)
        self._left = count
        self._numbers: dict[Peer, int] = {}
        self._holder = np.full(count, -1, np.int32)  # who alone was given a piece; -1: nobody, or not alone
        self._alone = np.zeros(MAX_TAKERS, np.int64)  # pieces that each peer holds alone

    @property
    def active(self) -> bool:
        """Whether some piece was never given away."""
        return self._left > 0

    def choose(self, peer: Peer, skip: Flags, count: int) -> NDArray[np.int64]:
        """Up to `count` pieces for `peer` outside `skip` (bool[pieces]) that nobody was given; they count as given."""
        # Sorted, so that the disk is read in one direction.
        pieces = np.sort(self._order[~(self._out | skip)[self._order]][:count])
        self.given(peer, pieces)
        return pieces

    def given(self, peer: Peer, pieces: NDArray[np.int64]) -> None:
        """Pieces sent to `peer`, by our choice or its own."""
        fresh = pieces[~self._out[pieces]]
        self._out[fresh] = True
        self._left -= len(fresh)
        number = self._number(peer)
        self._holder[fresh] = number
        if number >= 0:
            self._alone[number] += len(fresh)

    def lost(self, peer: Peer, pieces: NDArray[np.int64]) -> None:
        """Pieces that did not reach `peer` after all: they are given to somebody else."""
        number = self._number(peer)
        # Only those that this peer was the last to be given: others may have them since.
        back = pieces[self._holder[pieces] == number] if number >= 0 else pieces[:0]
        self._forget(back)
        self._out[back] = False
        self._left += len(back)

    def seen(self, peer: Peer, have: Flags) -> None:
        """What `peer` says it has (bool[pieces]): pieces given to others have spread if it has them."""
        self._forget(np.flatnonzero(have & (self._holder >= 0) & (self._holder != self._number(peer))))

    def burden(self, peer: Peer) -> float:
        """0 for a peer that may have more; above that, how many pieces it holds alone."""
        number = self._numbers.get(peer, -1)
        alone = int(self._alone[number]) if number >= 0 else 0
        return float(alone) if alone > 8 else 0.0  # pieces that a peer may hold alone before others come first

    def _number(self, peer: Peer) -> int:
        if peer not in self._numbers and len(self._numbers) < MAX_TAKERS:
            self._numbers[peer] = len(self._numbers)
        return self._numbers.get(peer, -1)

    def _forget(self, pieces: NDArray[np.int64]) -> None:
        np.subtract.at(self._alone, self._holder[pieces], 1)
        self._holder[pieces] = -1
