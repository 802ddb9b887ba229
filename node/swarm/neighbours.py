"""Whom a node stays connected with, of all members: few enough that a large swarm costs no more than a small one.

Pure; time is an argument (seconds). Most members may be ghosts, which died without leaving: so a node looks for so many
*connections*, those heard lately first. Everybody else can still be asked, and is dialled then; and gossip crosses a
graph like this in a few hops.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain, islice

from blake3 import blake3

from node.bounded_dict import BoundedDict
from protocol.identity import Address
from protocol.liveness import MAX_MEMBERS

MOST = 24
"""Connections that a node looks for."""


class Neighbours:
    """The members that there are, in the order of a draw of this node's own that stays the same: who joins or leaves
    moves one place and not all."""

    def __init__(self, own: Address, trainer: Address, validators: Iterable[Address]) -> None:
        self._own = own
        self.want(trainer, validators)
        self._there: dict[Address, bytes] = {}
        """Members by their place in the draw."""
        self._drawn: list[tuple[bytes, Address]] = []
        self._heard: BoundedDict[Address, None] = BoundedDict(MAX_MEMBERS, refresh=True)
        self._missed: dict[Address, tuple[int, float]] = {}
        """Dials in vain, and when the last one was."""
        self._chosen: dict[Address, None] = {}
        self._links: Set[Address] = frozenset()
        self._now = 0.0
        self._alive: Set[Address] | None = None
        """Members that are heard now; None before the first look."""
        self._fine = False
        """Whether this node is among the living: it has a link, and hears the trainer."""
        self._fine_at: float | None = None

    def want(self, trainer: Address, validators: Iterable[Address]) -> None:
        """Who is dialled for what it is."""
        judges = sorted({*validators} - {self._own, trainer}, key=lambda each: _drawn(self._own, each))
        others = [each for each in (trainer, *judges) if each != self._own]
        # 0..1, the same for each pair for ever, and of another draw than the ranks.
        self._wanted = {each: int.from_bytes(_drawn(each, self._own)[:8]) / 2**64 for each in others}
        self._trainer = trainer

    def add(self, member: Address) -> None:
        if member != self._own and member not in self._there:
            self._there[member] = _drawn(self._own, member)
            insort(self._drawn, (self._there[member], member))

    def discard(self, member: Address) -> None:
        if member in self._there:
            del self._drawn[bisect_left(self._drawn, (self._there.pop(member), member))]
            self._heard.pop(member, None)
            self._missed.pop(member, None)

    def heard(self, member: Address) -> None:
        """Its own signed word came, whichever way: it lives, or did lately."""
        if member in self._there:
            self._heard[member] = None

    def note(self, links: Set[Address], failures: Mapping[Address, int], alive: Set[Address], now: float) -> None:
        """How things are: who is connected, how often in a row each was dialled in vain, who is heard."""
        self._links, self._alive, self._now = links, alive, now
        trainer_heard = self._trainer in alive or self._trainer not in self._there
        self._fine = bool(links) and trainer_heard
        if self._fine or self._fine_at is None:
            self._fine_at = now
        for member in self._chosen:
            count, before = failures.get(member, 0), self._missed.get(member, (0, 0.0))[0]
            if member in links:
                self._missed[member] = (count, float("-inf"))  # what it failed before is held against it no more
            elif count > before:
                self._missed[member] = (count, now)

    def chosen(self) -> dict[Address, None]:
        """Whom to dial, the most urgent first: the trainer and some validators, and so many others that MOST could
        answer."""
        found = dict.fromkeys(self._sought())
        room = MOST - sum(not self._is_barred(member) for member in found)
        # Who is connected stays: a draw that changed with all that is heard would drop one link for another. Not the
        # trainer and validators, which have few places.
        there = self._links & self._there.keys() - self._wanted.keys()
        for member in chain((one for one in self._chosen if one in there), self._others()):
            if room <= 0:
                break
            if member not in found:
                found[member] = None
                room -= 1
        self._chosen = found
        return found

    def _others(self) -> Iterator[Address]:
        """In the order of the draw: those that are alive, those that were heard once, and of all others so many as are
        worth it: whoever is among the living will hear of more by itself."""
        alive = self._alive or frozenset()
        yield from (member for member in self._in_order(alive) if not self._is_barred(member))
        yield from (member for member in self._in_order(self._heard.keys()) if not self._is_barred(member))
        untried = (member for _, member in self._drawn if member not in self._missed)
        tried = sorted(self._missed, key=lambda member: (self._is_barred(member), self._missed[member][1]))
        if self._fine:
            tried = [member for member in tried if not self._is_barred(member)]
        others = (member for member in chain(untried, tried) if member not in self._links)
        # Members of whom nothing was ever heard that are tried at once by a node that is among the living.
        yield from islice(others, 2 if self._fine else None)

    def _in_order(self, members: Set[Address]) -> Iterable[Address]:
        # Few of many are sorted. Many are found by a walk over the draw, which is in order already.
        if MOST * len(members) < len(self._there):
            return sorted(members & self._there.keys(), key=self._there.__getitem__)
        return (member for _, member in self._drawn if member in members)

    def _sought(self) -> Iterable[Address]:
        """Each by so many as it has room for, drawn by everybody for itself. Who has no link, or does not hear the
        trainer, counts only those it hears: of a thousand registered ten may live, and each of them is needed then."""
        waited = 0.0 if self._fine_at is None else self._now - self._fine_at
        # Seconds without any link after which a node goes to the trainer and the validators, whatever the chance. The
        # same for one with links that does not hear the trainer: it may sit among others that are cut off, too.
        lonely = waited >= (8.0 if self._links else 3.0)
        crowd = 1 + len(self._alive) if lonely and self._alive is not None else len(self._there)
        # Members that come to the trainer, or to a validator, for what it is: a line to everybody would fill its node.
        share = 128 / max(crowd, 1)
        near = [member for member, chance in self._wanted.items() if member in self._there and chance < share]
        return near[: 8 + (near[:1] == [self._trainer])]  # of those, at most, besides the ones that chance picks

    def _is_barred(self, member: Address) -> bool:
        missed = self._missed.get(member)
        if missed is None or not missed[0]:
            return False
        # At most: of one that was never heard, of one that was, and of one that is alive.
        most = 600.0 if member in self._heard else 3600.0
        most = 30.0 if self._alive and member in self._alive else most
        # Seconds until a member that could not be dialled is drawn again, doubled each time.
        return self._now < missed[1] + min(most, 15.0 * 2.0 ** min(missed[0] - 1, 16))


def _drawn(own: Address, member: Address) -> bytes:
    return blake3(f"{own}{member}".encode()).digest()
