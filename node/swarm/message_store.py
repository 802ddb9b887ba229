"""What the board keeps: of every author the newest of each kind, so many and no more. Pure; time is an argument.

Whoever says too much loses the oldest of its own, never somebody else's. What others hand on in an author's name never
takes the place of what it said itself: old envelopes stay authentic for ever. Everything here costs the same
however much is kept, but for what reads all of it (`messages`, `share`).
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import cast

import msgspec

from node.bounded_dict import BoundedDict
from node.swarm.counts import COUNTS
from protocol.identity import Address
from protocol.liveness import MISSED_DEAD, heartbeat_interval
from protocol.messages import Heartbeat, M, Message, PolicyAnnounced, Signed, ValidatorBatch, of_kind, with_carried

KEPT_STEPS = 32
MAX_MESSAGES = 4096
"""Messages that are kept of all authors, heartbeats and announcements aside: those are few by themselves."""
MAX_PINNED = 2048
REMEMBERED = 32_768
"""Messages that are recognised when they come again: an hour of a pool that says nine a second."""
LET_GO = 1024


# gc=False, here and in protocol.liveness: these hold no circle, and the collector's pauses, in which nothing is heard,
# grow with what it looks through (0.2 s at 10,000 members, before)
class Kept(msgspec.Struct, frozen=True, gc=False):
    """number: rises with every message; at: seconds; direct: the author brought it, nobody else."""

    name: bytes
    signed: Signed[Message]
    at: float
    number: int
    direct: bool


class SeenMessage(msgspec.Struct, frozen=True, gc=False):
    """Of a message that was kept lately."""

    author: Address
    kind: type[Message]


_ROWS = {(kind, direct): (kind, direct) for kind in COUNTS for direct in (False, True)}
"""The names of an author's rows, each once and not once per author."""


class _Held(dict[tuple[type[Message], bool], OrderedDict[bytes, Kept]]):
    """What is kept of one author by kind, heartbeats aside, apart what others brought."""

    __slots__ = ()

    def add(self, kept: Kept) -> None:
        row = _ROWS[type(kept.signed.message), kept.direct]
        self.setdefault(row, OrderedDict())[kept.name] = kept

    def remove(self, kept: Kept) -> None:
        row = self[type(kept.signed.message), kept.direct]
        del row[kept.name]
        if not row:
            del self[type(kept.signed.message), kept.direct]

    def many(self, kind: type[Message]) -> int:
        return sum(len(self.get((kind, direct), ())) for direct in (False, True))

    def oldest(self, kind: type[Message]) -> Kept | None:
        """What goes first of a kind: what others brought, then what the author did."""
        rows = (self.get((kind, direct)) for direct in (False, True))
        return next((next(iter(row.values())) for row in rows if row), None)

    def oldest_of_all(self) -> Kept:
        """What goes first of everything but the heartbeat and the policies."""
        firsts = [next(iter(row.values())) for (kind, _), row in self.items() if row and _counts(kind)]
        return min(firsts, key=lambda kept: (kept.direct, kept.number))


class _Ranks:
    """Authors by how much is kept of them: who holds most is found at once, however many they are."""

    def __init__(self) -> None:
        self._many: dict[Address, int] = {}
        self._with: dict[int, OrderedDict[Address, None]] = {}
        self._most = 0
        self.total = 0

    def change(self, author: Address, by: int) -> None:
        """One more or one less (by: 1 or -1)."""
        before = self._many.pop(author, 0)
        if before:
            del self._with[before][author]
            if not self._with[before]:
                del self._with[before]
        if before + by:
            self._many[author] = before + by
            self._with.setdefault(before + by, OrderedDict())[author] = None
        self._most = max(self._most, before + by)
        while self._most and self._most not in self._with:  # at most one step: counts change by one
            self._most -= 1
        self.total += by

    def most(self) -> Address:
        return next(iter(self._with[self._most]))


class MessageStore:
    """Keeps messages, and remembers the names of what it kept lately. max_age: seconds; heartbeats are kept for longer
    where there are many."""

    def __init__(self, max_age: float = 240.0) -> None:
        self.max_age = max_age
        self._kept: dict[bytes, Kept] = {}
        self._aging: OrderedDict[bytes, Kept] = OrderedDict()
        self._beats: OrderedDict[Address, Kept] = OrderedDict()
        self._second: OrderedDict[Address, Kept] = OrderedDict()
        """The newest heartbeat of another generation than that of `_beats`; told to nobody, handed over when asked."""
        self._held: dict[Address, _Held] = {}
        # Evidence is bounded, too: newer convictions matter more to who comes now.
        self._pinned: BoundedDict[bytes, Kept] = BoundedDict(MAX_PINNED)
        self._seen: BoundedDict[bytes, SeenMessage] = BoundedDict(REMEMBERED)
        # Authors and kinds that are written down once for all that is remembered of them: 150 bytes less for each
        # message.
        self._origins: BoundedDict[SeenMessage, SeenMessage] = BoundedDict(4096)
        # Named in questions as if it were kept: otherwise each peer would hand it back at once.
        self._let_go: BoundedDict[bytes, None] = BoundedDict(LET_GO)
        self._ranks = _Ranks()
        self._number = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: bytes) -> bool:
        return name in self._kept or name in self._pinned

    def seen(self, name: bytes) -> SeenMessage | None:
        """Author and kind of a message that was kept lately, whether it still is or not."""
        return self._seen.get(name)

    def many(self, author: Address, kind: type[Message]) -> int:
        """How many messages of a kind are kept of one author."""
        if kind is Heartbeat:
            return int(author in self._beats)
        held = self._held.get(author)
        return held.many(kind) if held else 0

    def put(self, name: bytes, signed: Signed[Message], now: float, *, direct: bool) -> bool:
        """Keep a message; False if it is no news, or has no place. direct: its author brought it."""
        self._expire(now)
        if name in self._kept:
            return False
        kept = self._made(name, signed, now, direct)
        if not self._has_place(kept):
            if isinstance(signed.message, Heartbeat):
                self._put_second(kept)
            self._forget(kept)
            return False
        self.saw(name, signed)
        if isinstance(signed.message, Heartbeat):
            self._put_beat(kept)
        else:
            self._add(kept)
            self._trim(kept)
        return True

    def pin(self, name: bytes, signed: Signed[Message], now: float) -> None:
        """Keep a message for good, beside everything else."""
        self.saw(name, signed)
        self._pinned[name] = self._made(name, signed, now, direct=False)

    def messages(self, *kinds: type[M]) -> list[Signed[M]]:
        """The kept messages of some kinds, oldest first."""
        # In this order, so that what is pinned and kept is told once, with its place among the kept.
        found = {**self._pinned, **self._kept}
        second = {one.name for one in self._second.values()} if Heartbeat in kinds else ()
        wanted = (one for name, one in found.items() if name not in second)
        holding = (one for one in wanted if isinstance(one.signed.message, (*kinds, ValidatorBatch)))
        said = chain.from_iterable(with_carried(one.signed) for one in sorted(holding, key=_number))
        return [cast(Signed[M], one) for one in said if isinstance(one.message, kinds)]

    def of(self, author: Address) -> list[Signed[Message]]:
        """What is kept of one author, newest first."""
        held = (kept for row in self._held.get(author, _Held()).values() for kept in row.values())
        beats = (row[author] for row in (self._beats, self._second) if author in row)
        return [one.signed for one in sorted([*held, *beats], key=_number, reverse=True)]

    def names(self, most: int) -> list[bytes]:
        """What need not be told to us again: what is kept, and what was let go although it is not old."""
        own = [*self._let_go, *self._pinned, *(name for name in self._kept if name not in self._pinned)]
        return own[-most:]

    def share(self, known: Callable[[bytes], bool], room: int) -> list[bytes]:
        """Envelopes for one who has what is `known`, by name, oldest first, in `room` bytes: everybody's newest, then
        everybody's second newest, and so on, so that whoever says much leaves as much room for others as for itself."""
        missing = {name: one for name, one in chain(self._pinned.items(), self._kept.items()) if not known(name)}
        oldest_first = sorted(missing.values(), key=_number)
        # Only where not all fits: the usual answer is a handful of messages.
        if sum(len(one.signed.raw) for one in oldest_first) > room:
            oldest_first = sorted(_fairly(oldest_first, room), key=_number)
        return [one.signed.raw for one in oldest_first]

    # what stays

    def _has_place(self, kept: Kept) -> bool:
        message, author = kept.signed.message, kept.signed.author
        match message:
            case Heartbeat():
                before = self._beats.get(author)
                return before is None or of_kind(before.signed, Heartbeat).message.number < message.number
            case PolicyAnnounced():
                steps = self._policies(author)
                old = len(steps) >= KEPT_STEPS and message.step < min(steps)
                # Announcements of one step: two show an equivocation, more would show nothing new.
                return not old and len(steps.get(message.step, ())) < 2
            case _:
                return kept.direct or self.many(author, type(message)) < COUNTS[type(message)].kept

    def _policies(self, author: Address) -> dict[int, list[Kept]]:
        """What is kept of an author's announcements, by step."""
        steps: dict[int, list[Kept]] = {}
        for direct in (False, True):
            for kept in (
                self._held.get(author, _Held()).get((PolicyAnnounced, direct), OrderedDict[bytes, Kept]()).values()
            ):
                steps.setdefault(of_kind(kept.signed, PolicyAnnounced).message.step, []).append(kept)
        return steps

    def _trim(self, added: Kept) -> None:
        """Let go what is too much now: of the author, then of whoever holds most."""
        author, kind = added.signed.author, type(added.signed.message)
        if kind is PolicyAnnounced and len(steps := self._policies(author)) > KEPT_STEPS:
            for old in steps[min(steps)]:
                self._drop(old)
        held = self._held[author]
        while held.many(kind) > COUNTS[kind].kept and (oldest := held.oldest(kind)):
            self._drop(oldest)
        # Whoever holds most gives way first, so a flood crowds out its own messages and nobody else's.
        while self._ranks.total > MAX_MESSAGES:
            self._drop(self._held[self._ranks.most()].oldest_of_all())

    def _expire(self, now: float) -> None:
        # Seconds for which the newest heartbeat of an author's other generation is kept: two daemons of one key hear
        # each other by it.
        # In a large pool each speaks seldom, and who comes must find all that may be alive.
        beats = max(self.max_age, MISSED_DEAD * heartbeat_interval(len(self._beats)))
        lines = (self._aging, self.max_age), (self._beats, beats), (self._second, 60.0)
        for line, most in lines:
            while line and (oldest := next(iter(line.values()))).at < now - most:
                self._remove(oldest)

    def _drop(self, kept: Kept) -> None:
        self._remove(kept)
        self._forget(kept)

    def _forget(self, kept: Kept) -> None:
        """It is not old and would be handed to us again: remember not to ask for it."""
        if isinstance(kept.signed.message, Heartbeat):
            return  # nobody keeps an old one
        self._let_go[kept.name] = None

    def _put_beat(self, kept: Kept) -> None:
        """One of each author, unless it said itself what others would replace. In a large pool most authors say nothing
        else, and have no rows: what Python's collector looks through stops the event loop."""
        author = kept.signed.author
        before = self._beats.get(author)
        # An author's own heartbeat is surely its newest; what another brings may be a replay with a stolen number.
        if before is not None and before.direct and not kept.direct:
            return self._put_second(kept)
        if before is not None:
            self._remove(before)
        self._beats[author] = self._kept[kept.name] = kept
        if before is not None:
            self._put_second(before)

    def _put_second(self, kept: Kept) -> None:
        """A heartbeat of another generation than the author's newest, if it is the newest of those."""
        author, message = kept.signed.author, of_kind(kept.signed, Heartbeat).message
        newest = self._beats.get(author)
        if newest is None or of_kind(newest.signed, Heartbeat).message.boot == message.boot:
            return
        known = self._second.get(author)
        if known is not None and of_kind(known.signed, Heartbeat).message.number >= message.number:
            return
        if known is not None:
            self._remove(known)
        self.saw(kept.name, kept.signed)
        self._second[author] = self._kept[kept.name] = kept

    def _add(self, kept: Kept) -> None:
        author = kept.signed.author
        self._kept[kept.name] = kept
        self._held.setdefault(author, _Held()).add(kept)
        if _counts(type(kept.signed.message)):
            self._aging[kept.name] = kept
            self._ranks.change(author, 1)

    def _remove(self, kept: Kept) -> None:
        message, author = kept.signed.message, kept.signed.author
        del self._kept[kept.name]
        if isinstance(message, Heartbeat):
            row = self._second if self._second.get(author) is kept else self._beats
            del row[author]
            return
        held = self._held[author]
        held.remove(kept)
        if not held:
            del self._held[author]
        if _counts(type(message)):
            del self._aging[kept.name]
            self._ranks.change(author, -1)

    def saw(self, name: bytes, signed: Signed[Message]) -> None:
        """Know a message again when it comes once more."""
        origin = SeenMessage(signed.author, type(signed.message))
        self._seen[name] = self._origins.setdefault(origin, origin)  # one for all of an author's messages

    def _made(self, name: bytes, signed: Signed[Message], now: float, direct: bool) -> Kept:
        self._number += 1
        return Kept(name, signed, now, self._number, direct)


def _fairly(oldest_first: list[Kept], room: int) -> Iterator[Kept]:
    """As many as fit, one of each author after the other: by age alone, newcomers heard a flood before the policy."""
    of_author: Counter[Address] = Counter()
    rounds: list[list[Kept]] = []
    for one in reversed(oldest_first):
        number = of_author[one.signed.author]
        of_author[one.signed.author] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(one)
    for one in chain.from_iterable(rounds):
        # Smaller ones behind a large one still fit.
        if len(one.signed.raw) <= room:
            room -= len(one.signed.raw)
            yield one


def _counts(kind: type[Message]) -> bool:
    return kind is not Heartbeat and kind is not PolicyAnnounced


_number: Callable[[Kept], int] = lambda kept: kept.number
