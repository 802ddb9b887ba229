"""Whom a node stays connected with, of all members: few enough that a large swarm costs no more than a small one.

Pure. Everybody else can still be asked, and is dialled then; and gossip crosses a graph like this in a few hops.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import islice

from blake3 import blake3

from protocol.identity import Address

MOST = 24
VALIDATORS = 8
"""Of those, at most, besides the ones that chance picks."""
SUITORS = 128
"""Members that come to the trainer, or to a validator, for what it is: a line to everybody would fill its node."""


class Neighbours:
    """The members that there are, in the order of a draw of this node's own that stays the same: who joins or leaves
    moves one place and not all, and costs the same however many there are."""

    def __init__(self, own: Address, trainer: Address, validators: Iterable[Address]) -> None:
        self._own = own
        judges = sorted(set(validators) - {own, trainer}, key=self._rank)
        self._wanted = [(each, _chance(own, each)) for each in (trainer, *judges) if each != own]
        self._trainer = trainer
        self._there: set[Address] = set()
        self._drawn: list[tuple[bytes, Address]] = []

    def add(self, member: Address) -> None:
        if member != self._own and member not in self._there:
            self._there.add(member)
            insort(self._drawn, (self._rank(member), member))

    def discard(self, member: Address) -> None:
        if member in self._there:
            self._there.discard(member)
            del self._drawn[bisect_left(self._drawn, (self._rank(member), member))]

    def chosen(self) -> set[Address]:
        """At most MOST: the trainer and some validators, as far as they have room for us, and others as drawn."""
        found = set(self._sought())
        for _, member in islice(self._drawn, MOST):
            if len(found) >= MOST:
                break
            found.add(member)
        return found

    def _sought(self) -> Iterable[Address]:
        """Each by so many as it has room for, drawn by everybody for itself."""
        share = SUITORS / max(len(self._there), 1)
        near = [member for member, chance in self._wanted if member in self._there and chance < share]
        return near[: VALIDATORS + (near[:1] == [self._trainer])]

    def _rank(self, member: Address) -> bytes:
        return _drawn(self._own, member)


def _drawn(own: Address, member: Address) -> bytes:
    return blake3(f"{own}{member}".encode()).digest()


def _chance(own: Address, member: Address) -> float:
    """0..1, the same for each pair for ever, and of another draw than the ranks."""
    return int.from_bytes(_drawn(member, own)[:8]) / 2**64
