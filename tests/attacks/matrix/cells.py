"""The cells of the matrix, enumerated: who says which message how, how often, when, and to whom.

A cell's name says all of it, so that each can be run again alone:
AUTHOR/MESSAGE/DEVIATION/PERIOD/MOMENT/AUDIENCE/HISTORY. Of two liars both stand there, with a + between the authors,
and a & between what each says where that is not the same.
"""

import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import trio

from node.swarm.counts import COUNTS, Office
from protocol.errors import ProtocolError
from protocol.messages import Heartbeat, Message, RoundVote
from tests.attacks.matrix import words
from tests.attacks.matrix.expected import SAFE, Row, row_of
from tests.attacks.matrix.world import (
    ANOTHER_FILE,
    HONEST,
    NATIVE,
    OWN_WORDS,
    QUORUM,
    Facts,
    Nobody,
    Seen,
    Stuck,
    World,
    extras,
    is_refused,
    play,
    resigned,
    specials,
    template,
)

Period = Literal["once", "every", "second"]
Moment = Literal["apart", "before", "after", "instead"]
TIMES: tuple[tuple[Period, Moment], ...] = (
    ("once", "before"), ("once", "after"), ("every", "apart"), ("every", "before"), ("second", "before"),
)  # fmt: skip
"""Beside once and apart. A word after every honest one is one apart from the next."""
REFUSED: tuple[tuple[Period, Moment], ...] = (("once", "apart"), ("every", "before"))
OUT_OF_OFFICE = ("former", "coming")
FIRST = 5
"""The policy from which on a liar speaks, or at which it speaks once."""
DROPS = 5
"""The policy from which on a leader drops a worker, where it does."""
APART = 4.5
"""Seconds after the honest word: beyond the next one, and beyond what services poll by."""
AUTHORS: dict[Office, tuple[str, ...]] = {
    Office.TRAINER: ("leader", "standby", "dismissed", "evicted"),
    Office.LEADER: ("leader", "standby", "dismissed", "evicted"),
    Office.VALIDATOR: ("validator 4", "former", "coming"),
    Office.MEMBER: ("leader", "standby", "worker 2", "member", "validator 4"),
}
AUTHORS[Office.TRAINER_OR_VALIDATOR] = (*AUTHORS[Office.TRAINER], *AUTHORS[Office.VALIDATOR])
EVERYBODY = tuple(dict.fromkeys(name for names in AUTHORS.values() for name in names))
PAIRS = (("standby", "dismissed"), ("standby", "validator 4"), ("leader", "validator 4"), ("worker 2", "validator 4"))
IN_ROUNDS = ("validator 4", "worker 2")
"""Who lies in a pool with rounds: in office, and not."""
SOME = ("validator 1", "validator 2", "worker 1")
"""Who gets a word that goes to some only."""


class Cell(msgspec.Struct, frozen=True):
    """history: "honest"; "drops": the leader drops a worker, which validators find out; "rounds": nobody leads
    (`rounds.py`)."""

    author: str
    kind: str
    deviation: str
    period: Period = "once"
    moment: Moment = "apart"
    audience: Literal["all", "some"] = "all"
    history: Literal["honest", "drops", "rounds"] = "honest"

    def __str__(self) -> str:
        return "/".join(getattr(self, one) for one in self.__struct_fields__)

    @property
    def lies(self) -> tuple["Lie", ...]:
        """What each liar says."""
        authors, kinds, names = self.author.split("+"), self.kind.split("&"), self.deviation.split("&")
        each = len(authors) // len(kinds)
        named = {kind.__name__: kind for kind in COUNTS}
        return tuple(map(Lie, authors, [named[one] for one in kinds * each], names * each))


class Lie(NamedTuple):
    author: str
    kind: type[Message]
    deviation: str

    @property
    def right(self) -> Row | None:
        """What its author may change; None where it has no right to say this."""
        row = row_of(self.kind)
        return row if self.author in row.by else None


def cell_of(name: str) -> Cell:
    return Cell(*name.split("/"))  # type: ignore[arg-type]


def cells(pattern: str = "*") -> list[Cell]:
    """All of them, in a fixed order. pattern: of their names, as a shell's."""
    return [one for one in _all() if fnmatchcase(str(one), pattern)]


def _all() -> Iterator[Cell]:
    for kind, row in COUNTS.items():
        for author in EVERYBODY:
            # Whether the run is over is a trainer's to say: of those who led, too?
            heard = (*AUTHORS[row.by], *(("dismissed",) if kind is Heartbeat else ()))
            # A word that its author may not say is refused before it is read, whatever stands in it.
            if author not in heard or (author in OUT_OF_OFFICE and row.by is not Office.MEMBER):
                for name in (words.UNCHANGED, words.FRESH):
                    yield from (Cell(author, kind.__name__, name, *time) for time in REFUSED)
                continue
            for name in _differing(kind, author):
                yield from _of(author, kind, name)
    yield from _in_rounds()
    yield from _in_pairs()


def _in_rounds() -> Iterator[Cell]:
    for name in (*_differing(RoundVote, IN_ROUNDS[0]), *words.OF_ROUNDS):
        for moment in ("before", "instead"):
            yield Cell(IN_ROUNDS[0], "RoundVote", name, "every", moment, history="rounds")
    for name in (words.UNCHANGED, words.FRESH):
        yield Cell(IN_ROUNDS[1], "RoundVote", name, "every", "before", history="rounds")


def _in_pairs() -> Iterator[Cell]:
    """Two that say the same lie, one in office with one that was, a validator with whom it may lie for; and any two of
    what the two may say, as it is, invented, or so that no field alone shows it."""
    for one, other in PAIRS:
        for first, second in product(_sayings(one), _sayings(other)):
            if first != second:
                yield Cell(f"{one}+{other}", *map("&".join, zip(first, second, strict=True)), "every", "before")
    for kind, row in COUNTS.items():
        for one, other in PAIRS:
            may = [name for name in (one, other) if name in AUTHORS[row.by] and name not in OUT_OF_OFFICE]
            if len(may) == 2:
                for name in _differing(kind, one):
                    yield Cell(f"{one}+{other}", kind.__name__, name, "every", "before")


def _sayings(author: str) -> list[tuple[str, str]]:
    if author in OUT_OF_OFFICE:
        return []
    said = [kind for kind, row in COUNTS.items() if author in AUTHORS[row.by] and kind is not RoundVote]
    chosen = {kind: (words.UNCHANGED, words.FRESH, *specials(kind)) for kind in said}
    return [(kind.__name__, name) for kind in said for name in _differing(kind, author) if name in chosen[kind]]


@cache
def _differing(kind: type[Message], author: str) -> tuple[str, ...]:
    return tuple(_differ(kind, author))


def _differ(kind: type[Message], author: str) -> Iterator[str]:
    """Deviations that make another word than every one before; of those that are in no form one shows all."""
    begun, seen, refused = templates().get((kind, author)), set[bytes](), False
    if begun is None:
        yield from words.deviations(kind)
        return
    for name in words.deviations(kind):
        made = words.deviated(begun, name)
        if not made:
            continue
        try:
            said = resigned(made[0], author, begun)
            in_form = not is_refused(said, author)
        except (ProtocolError, OverflowError, ValueError):
            in_form = False
        if in_form and (raw := msgspec.msgpack.encode(said) + b"%d" % len(made)) not in seen:
            seen.add(raw)
            yield name
        elif not in_form and not refused:
            refused = True
            yield name
    yield from specials(kind)


def _of(author: str, kind: type[Message], name: str) -> Iterator[Cell]:
    named = kind.__name__
    yield Cell(author, named, name)
    # Forty at once are a flood however often.
    if name == words.MANY or author == "evicted":
        return
    # Of a message that nobody reads in a run without rounds there is nothing to move.
    for period, moment in TIMES if kind is not RoundVote else ():
        yield Cell(author, named, name, period, moment)
    if name in (words.UNCHANGED, words.FRESH, ANOTHER_FILE) or name.endswith("fresh"):
        yield Cell(author, named, name, "every", "before", "some")
    if COUNTS[kind].by in (Office.TRAINER, Office.LEADER):
        yield Cell(author, named, name, "every", "before", history="drops")
    if NATIVE.get(kind) == author:
        yield Cell(author, named, name, "every", "instead")
        yield Cell(author, named, name, "every", "instead", history="drops")


class Listener:
    """Says nothing, and keeps what a liar of each name would begin with."""

    name, names = "nobody", frozenset[str]()

    def __init__(self) -> None:
        self.found: dict[tuple[type[Message], str], Message] = {}

    async def before(self, world: World, name: str, word: Message) -> bool:
        if world.step < FIRST:
            return False
        for kind in COUNTS:
            for author in EVERYBODY:
                made = template(world, kind, name, word, author)
                if made is not None:
                    self.found.setdefault((kind, author), made)
        return False

    async def after(self, world: World, name: str, word: Message) -> None: ...


def templates() -> dict[tuple[type[Message], str], Message]:
    """By message and liar."""
    return _listened()[0]


@cache
def _listened() -> tuple[dict[tuple[type[Message], str], Message], Seen]:
    """Those, and what an honest run comes to."""
    listener = Listener()
    with tempfile.TemporaryDirectory() as folder:
        seen = play(listener, Path(folder))
    return listener.found, seen


class Speaker:
    """The liars of a cell."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self._lies = cell, cell.lies
        self.name, self.names = self._lies[0].author, frozenset(one.author for one in self._lies)
        self.said = self.refused = 0
        self._heard: dict[Lie, int] = {}
        self._salts: Counter[Lie] = Counter()

    async def before(self, world: World, name: str, word: Message) -> bool:
        if self.cell.moment in ("apart", "after"):
            return False
        due = [(lie, found) for lie in self._lies if (found := self._told_by(world, name, word, lie)) is not None]
        for lie, found in due:
            await self._say(world, lie, found)
        if due:
            await trio.sleep(0.02)  # it is there first
        return bool(due) and self.cell.moment == "instead"

    async def after(self, world: World, name: str, word: Message) -> None:
        if self.cell.moment not in ("apart", "after"):
            return
        for lie in self._lies:
            if (found := self._told_by(world, name, word, lie)) is None:
                continue
            if self.cell.moment == "after":
                await self._say(world, lie, found)
            else:
                world.nursery.start_soon(self._say_later, world, lie, found)

    async def _say_later(self, world: World, lie: Lie, word: Message) -> None:
        await trio.sleep(APART)
        await self._say(world, lie, word)

    def _told_by(self, world: World, name: str, word: Message, lie: Lie) -> Message | None:
        """What a liar makes its words of, if it is to speak with this one: once a policy at most."""
        cell, step = self.cell, world.step
        if step < FIRST or step == self._heard.get(lie):
            return None
        found = template(world, lie.kind, name, word, lie.author)
        if found is None:
            return None
        self._heard[lie] = step
        due = step == FIRST if cell.period == "once" else cell.period == "every" or (step - FIRST) % 2 == 0
        return found if due else None

    async def _say(self, world: World, lie: Lie, word: Message) -> None:
        self._salts[lie] += 1
        special = extras(world, lie.deviation, word, lie.author)
        made = special if special is not None else words.deviated(word, lie.deviation, self._salts[lie])
        for one in made:
            try:
                signed = resigned(one, lie.author, word)
                await world.say(lie.author, signed, to=SOME if self.cell.audience == "some" else None)
                self.said += 1
            except (ProtocolError, OverflowError, ValueError):  # nothing that can be written at all
                self.refused += 1


class Finding(msgspec.Struct, frozen=True):
    """What came out otherwise than without the liar's words. more, fewer: facts."""

    cell: str
    probe: str
    more: tuple[str, ...]
    fewer: tuple[str, ...]

    def __str__(self) -> str:
        shown = [f"+{one}" for one in self.more[:3]] + [f"-{one}" for one in self.fewer[:3]]
        return f"{self.cell}: {self.probe} ({len(self.more)} more, {len(self.fewer)} fewer): {' '.join(shown)}"


def examine(cell: Cell, seed: int = 0) -> list[Finding]:
    """What a liar moved that it may not move; empty where the product holds."""
    drops, in_rounds = DROPS if cell.history == "drops" else 0, cell.history == "rounds"
    if in_rounds:
        from tests.attacks.matrix import rounds  # its peers compute: ten seconds of imports
    try:
        with tempfile.TemporaryDirectory() as folder:
            if in_rounds:
                seen = rounds.play(Path(folder), cell.author, cell.deviation, cell.moment, seed)
            else:
                seen = play(Speaker(cell), Path(folder), drops=drops, seed=seed)
    except (BaseExceptionGroup, Stuck) as error:
        return [stopped(cell, error)]
    return compared(cell, rounds.without(seed) if in_rounds else without(drops, seed), seen)


def stopped(cell: Cell, error: BaseException) -> Finding:
    """A run that did not come to its end."""
    return Finding(str(cell), "stopped", (_innermost(error),), ())


def compared(cell: Cell, base: Seen, seen: Seen) -> list[Finding]:
    """base: the same run without the liar's words."""
    return list(_compare(cell, base, seen))


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"


@cache
def without(drops: int, seed: int) -> Seen:
    """The same run without a liar."""
    if not drops and not seed:
        return _listened()[1]
    with tempfile.TemporaryDirectory() as folder:
        return play(Nobody(), Path(folder), drops=drops, seed=seed)


def _compare(cell: Cell, base: Seen, seen: Seen) -> Iterator[Finding]:
    authors, rights = {one.author for one in cell.lies}, [one.right for one in cell.lies if one.right is not None]
    has_right = bool(rights)
    may, adds = (frozenset[str]().union(*sets) for sets in ([one.may for one in rights], [one.adds for one in rights]))
    convicted = any(one.evidence for one in rights) and _convicts_itself(seen, authors)
    for probe in seen:
        more = _others(seen[probe] - base[probe], authors, has_right=has_right)
        fewer = _others(base[probe] - seen[probe], authors, has_right=has_right)
        if not more and not fewer:
            continue
        # Who says something else in the place of its own word has that right; what it did stays seen, unless nobody
        # follows it any more, or it convicted itself otherwise.
        if (
            cell.moment == "instead"
            and probe not in SAFE
            and not (probe == "dropped" and _goes_on(base, seen, authors))
        ):
            continue
        if probe not in SAFE and (convicted or probe in may):
            continue
        if probe in adds and not fewer:
            continue
        if probe == "muted":  # who shouts is not heard for a while
            more, fewer = (frozenset(one for one in facts if one[1] not in authors) for facts in (more, fewer))
        if more or fewer:
            yield Finding(str(cell), probe, _told(more), _told(fewer))


def _convicts_itself(seen: Seen, authors: set[str]) -> bool:
    """Whether every honest node has a liar's own words against it: then it matters no more what else it did, and
    whether others would have found that out a policy later."""
    shown = {one[0] for one in seen["forks"] if one[1] in authors and one[2] == OWN_WORDS}
    return shown >= {one for one in HONEST if one not in authors}


def _goes_on(base: Seen, seen: Seen, authors: set[str]) -> bool:
    """Whether the leader leads on, who was convicted without the liar's words."""

    def newest(of: Seen) -> int:
        return max(one[3] for one in of["policies"] if one[2] == "newest")

    def known_to(of: Seen) -> set[str]:
        return {one[0] for one in of["forks"]} - authors

    # Of whom a quorum says that it is gone the term ends, whatever else it announces.
    gone = {one[2] for one in seen["chair"] if one[-1] == "does not hear it"}
    return known_to(seen) < known_to(base) and newest(seen) >= newest(base) and len(gone) < QUORUM


def _others(facts: Facts, authors: set[str], *, has_right: bool) -> Facts:
    """Without what liars themselves know, and, where they may speak at all, what is about themselves."""
    return frozenset(one for one in facts if one[0] not in authors and not (has_right and authors & set(one[1:3])))


def _told(facts: Facts) -> tuple[str, ...]:
    return tuple(sorted(" ".join(map(str, one)) for one in facts))
