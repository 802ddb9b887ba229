"""A pool's books: what became of every epoch of work that was committed in it, from the chain's events.

Fed by the service that follows the events, which delivers the whole history at every start; takes back what a replaced
block took out. Knows no clock and asks nobody: whoever spends money on what stands here asks the chain once more.
"""

from collections import OrderedDict

import msgspec

from contracts.bindings import (
    EpochInvalidated,
    Event,
    Joined,
    Settled,
    Slashed,
    SlashOverturned,
    WorkCommitted,
    WorkInvalidated,
    WorkReleased,
    WorkToppedUp,
)
from protocol.identity import Address

MOST_OF_OTHERS = 65_536
"""Epochs of other nodes that are remembered, the newest."""

WorkEvent = WorkCommitted | WorkToppedUp | WorkInvalidated | EpochInvalidated | WorkReleased | Settled
Place = tuple[Address, int]
"""(node, epoch)"""


class Entry(msgspec.Struct, frozen=True):
    """One node's work of one epoch. root: 32 bytes; claimed, units: as committed, and what still counts of them;
    reserved: how much of that the escrow had money for; block: of the commitment; paid: wei, None while it is not
    settled; closed: nothing of it is due any more.
    """

    node: Address
    epoch: int
    root: bytes
    claimed: int
    units: int
    reserved: int
    block: int
    paid: int | None = None
    closed: bool = False

    @property
    def is_short(self) -> bool:
        """Whether a part of it waits for money in the pool."""
        return self.reserved < self.units


class Ledger:
    """The books of one pool. own: whose epochs are never forgotten."""

    def __init__(self, own: Address) -> None:
        self._own = own
        self._events: OrderedDict[Place, list[WorkEvent]] = OrderedDict()
        self._entries: dict[Place, Entry] = {}
        self._of: dict[Address, dict[int, None]] = {}
        self._in: dict[int, dict[Address, None]] = {}
        self._joined: dict[Address, int] = {}
        self.slashed: dict[Address, Slashed] = {}
        """By node: its slash, unless that was overturned."""

    # from the chain

    def apply(self, event: Event) -> None:
        if isinstance(event, WorkEvent):
            place = (event.node, event.epoch)
            self._events.setdefault(place, []).append(event)
            self._book(place)
            self._forget_beyond()
            return
        match event:
            case Joined(node=node, block=block):
                self._joined.setdefault(node, block)
            case Slashed(node=node):
                self.slashed[node] = event
            case SlashOverturned(node=node):
                self.slashed.pop(node, None)

    def undo(self, event: Event) -> None:
        """A replaced block took an event back."""
        if isinstance(event, WorkEvent):
            place = (event.node, event.epoch)
            self._events[place] = [known for known in self._events.get(place, ()) if known != event]
            self._book(place)
            return
        match event:
            case Joined(node=node, block=block) if self._joined.get(node) == block:
                del self._joined[node]
            case Slashed(node=node) if self.slashed.get(node) == event:
                del self.slashed[node]

    # what is known

    def entry(self, node: Address, epoch: int) -> Entry | None:
        return self._entries.get((node, epoch))

    def of(self, node: Address) -> list[Entry]:
        """A node's epochs, in the order in which they were committed."""
        return [self._entries[node, epoch] for epoch in self._of.get(node, ())]

    def since(self, epoch: int) -> list[Entry]:
        """Everybody's work of this epoch and later ones, for the price of a comparison per epoch that is kept."""
        later = [one for one in self._in if one >= epoch]
        return [self._entries[node, one] for one in later for node in self._in[one]]

    def joined_at(self, node: Address) -> int | None:
        """The block in which a node joined the pool for the first time."""
        return self._joined.get(node)

    # inside

    def _book(self, place: Place) -> None:
        entry = _fold(self._events[place])
        if entry is not None:
            self._entries[place] = entry
            self._of.setdefault(place[0], {})[place[1]] = None
            self._in.setdefault(place[1], {})[place[0]] = None
            return
        self._unbook(place)
        if not self._events[place]:
            del self._events[place]

    def _forget_beyond(self) -> None:
        while len(self._events) - len(self._of.get(self._own, ())) > MOST_OF_OTHERS:
            place = next(place for place in self._events if place[0] != self._own)
            del self._events[place]
            self._unbook(place)

    def _unbook(self, place: Place) -> None:
        node, epoch = place
        if self._entries.pop(place, None) is None:
            return
        del self._of[node][epoch], self._in[epoch][node]
        if not self._of[node]:
            del self._of[node]
        if not self._in[epoch]:
            del self._in[epoch]


def _fold(events: list[WorkEvent]) -> Entry | None:
    """What the events of one epoch amount to; None before there is a commitment. The contract does the same sums."""
    entry: Entry | None = None
    for event in events:
        if isinstance(event, WorkCommitted):
            given = (event.node, event.epoch, event.root, event.units, event.units, event.reserved_units, event.block)
            entry = Entry(*given, closed=event.reserved_units == 0)
        elif entry is not None:
            entry = _after(entry, event)
    return entry


def _after(entry: Entry, event: WorkEvent) -> Entry:
    match event:
        case WorkToppedUp(units=units):
            return msgspec.structs.replace(entry, reserved=entry.reserved + units, closed=False)
        case WorkInvalidated(units=units):
            left = max(entry.units - units, 0)
            reserved = min(entry.reserved, left)
            return msgspec.structs.replace(entry, units=left, reserved=reserved, closed=reserved == 0)
        case EpochInvalidated():
            return msgspec.structs.replace(entry, units=0, reserved=0, closed=True)
        case Settled(amount=amount):
            return msgspec.structs.replace(entry, paid=amount, closed=True)
    return msgspec.structs.replace(entry, closed=True)
