"""Rounds on the product's `Agreement`: validators whose words are late, one that crashes, and liars of five kinds.

What is modelled is the network alone. A word reaches each validator after a time of its own, at times a long one. A
liar tells each validator what it likes, and what it told one comes to the others after a while, as boards hand on. Who
crashes comes back with what it has signed. Everything follows from the seed.
"""

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from protocol.agreement import Agreement, Proposal, RoundCommittee, Word, liars_of, quorum_of
from protocol.identity import Address, NodeKey

PEOPLE = tuple(NodeKey(bytes([n]) * 32).address for n in range(1, 8))
FILES = tuple(bytes([n]) * 32 for n in range(6))
INVENTED = tuple(bytes([n]) * 32 for n in range(100, 104))
LONGEST = 600.0
"""Seconds of a round's words after which it is stuck."""
LOOK = 0.25
"""Seconds between two looks of a validator at what there is to say."""
FAR = (1, 2, 7, 63, 64, 65, 10**6, 2**61)
KINDS = ("rusher", "two-faced", "late", "far", "lister")


def proposal(*files: bytes, outer: int = 0) -> Proposal:
    return Proposal(bytes([outer]) * 32, bytes(32), 1, tuple(sorted(files)))


@dataclass(frozen=True)
class Rules:
    """The product's, or what stands in their place. agreement: makes one node's book; quorum: of a bench of n; rushed:
    whether a validator begins as soon as anybody has spoken, as Cutting did."""

    agreement: Callable[[RoundCommittee, Address | None], Agreement] = Agreement
    quorum: Callable[[int], int] = lambda n: quorum_of(n, 1)
    rushed: bool = False


@dataclass(frozen=True)
class Cell:
    """validators: of whom as many as the bench bears lie, or `liars`; kind: how, None: nobody lies; late: share of the
    words that take ten seconds more; lost: of those that never come, a liar's as well, which boards then hand on to
    nobody; crash: one honest validator ends, and comes back; differ: whether validators accept different files."""

    validators: int
    kind: str | None = None
    liars: int | None = None
    late: float = 0.1
    lost: float = 0.0
    crash: bool = False
    differ: bool = True

    @property
    def lying(self) -> int:
        return 0 if self.kind is None else liars_of(self.validators) if self.liars is None else self.liars


@dataclass
class Found:
    """What came of one round. lists: decided by honest validators that live; seconds: from the last one's end of the
    round to the last decision; convicted: honest ones that somebody found to contradict themselves; wanted: what each
    honest one accepted; ballots: the newest that an honest one was in; kept: words that a node remembers, the most."""

    lists: set[Proposal | None] = field(default_factory=set)
    seconds: float = 0.0
    convicted: set[Address] = field(default_factory=set)
    wanted: tuple[Proposal, ...] = ()
    ballots: int = 0
    kept: int = 0
    timely: bool = False

    @property
    def fault(self) -> str:
        """What must not be, empty where nothing of it is. timely: all words came soon, so what all accepted is in."""
        wanted = [frozenset(one.files) for one in self.wanted]
        if len(self.lists - {None}) > 1:
            return "forked"
        if None in self.lists:
            return "stuck"
        if self.convicted:
            return "convicted"
        files = {root for one in self.lists if one for root in one.files}
        if not files <= frozenset().union(*wanted):
            return "invented"
        return "emptied" if self.timely and not files >= wanted[0].intersection(*wanted) else ""


class Round:
    """One round of a cell."""

    def __init__(self, cell: Cell, seed: int, rules: Rules = Rules(), wants: Iterable[Proposal] = ()) -> None:
        self.random = random.Random(f"{cell}/{seed}")
        self.cell, self.rules = cell, rules
        self.people = list(PEOPLE[: cell.validators])
        order = self.random.sample(self.people, len(self.people))
        self.liars, self.honest = order[: cell.lying], order[cell.lying :]
        self.bench = RoundCommittee(tuple(self.people), rules.quorum(cell.validators))
        self.books = {one: self._book(one) for one in self.honest}
        given = list(wants)
        self.wants = {one: given[i] if given else self._accepted() for i, one in enumerate(self.honest)}
        self.ends = {one: self.random.uniform(1.0, 3.0) for one in self.honest}
        self.signed: dict[Address, list[Word]] = {one: [] for one in self.people}
        self.shown: dict[tuple[Address, Word], tuple[bytes, ...]] = {}
        self.heard_any: set[Address] = set()
        self.down: set[Address] = set()
        self.told: set[tuple[Address, Address, Word]] = set()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number, self.now, self.found = 0, 0.0, Found(wanted=tuple(self.wants.values()))

    def _book(self, own: Address) -> Agreement:
        return self.rules.agreement(self.bench, own)

    def _accepted(self) -> Proposal:
        """Some files all accept, some most do, some few; a few that nobody but one accepts."""
        if not self.cell.differ:
            return proposal(*FILES)
        shares = (1.0, 1.0, 0.9, 0.6, 0.4, 0.2)
        return proposal(*(root for root, share in zip(FILES, shares, strict=True) if self.random.random() < share))

    def at(self, after: float, what: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now + after, self.number, what))

    def delay(self) -> float:
        return self.random.uniform(0.05, 0.8) + 10.0 * (self.random.random() < self.cell.late)

    def play(self) -> Found:
        for one in self.honest:
            self.at(self.random.uniform(0, LOOK), lambda one=one: self.look(one))
        for one in self.liars:
            LIARS[self.cell.kind or ""](self, one)
        if self.cell.crash:
            self.at(self.random.uniform(0.5, 6.0), self.crash)
        while self.events and self.now < LONGEST and not self.over():
            self.now, _, what = heapq.heappop(self.events)
            what()
        self.found.lists = {self.books[one].decided for one in self.honest}
        self.found.seconds = self.now - max(self.ends.values())
        self.found.ballots = max((word.ballot for one in self.honest for word in self.signed[one]), default=0)
        self.found.timely = not (self.cell.late or self.cell.crash)
        self.found.kept = max(sum(map(len, book._said.values())) for book in self.books.values())
        return self.found

    def over(self) -> bool:
        return all(book.decided for book in self.books.values())

    # the honest

    def look(self, own: Address) -> None:
        self.at(LOOK, lambda: self.look(own))
        if own in self.down:
            return
        over = self.now >= self.ends[own] or (self.rules.rushed and own in self.heard_any)
        early = self.now < self.ends[own]
        wanted = (proposal() if early else self.wants[own]) if over else None
        book = self.books[own]
        for word in book.again(self.now):
            self.post(own, word)
        while (word := book.next_word(wanted, self.now)) is not None:
            self.signed[own].append(word)
            self.shown[own, word] = book.shown(word)
            assert book.hear(own, word, self.proof(own, word))
            self.post(own, word)

    def post(self, own: Address, word: Word) -> None:
        for to in self.people:
            if to != own and self.random.random() >= self.cell.lost:
                self.at(self.delay(), lambda to=to: self.arrive(to, own, word))

    def proof(self, author: Address, word: Word) -> bytes:
        """Stands for a signature."""
        return author.encode()

    def arrive(self, to: Address, author: Address, word: Word) -> None:
        if to in self.down:
            if not self.cell.lost:
                self.at(1.0, lambda: self.arrive(to, author, word))
        elif to in self.liars:
            self.heard_by_liar(author, word)
        elif (to, author, word) not in self.told:
            self.told.add((to, author, word))
            self.heard_any.add(to)
            for shown in self.shown.get((author, word), ()):
                self.books[to].hear(Address(shown.decode()), word._replace(closed=False), shown)
            if not self.books[to].hear(author, word, self.proof(author, word)) and author in self.honest:
                self.found.convicted.add(author)
            if author in self.liars and not self.cell.lost:  # boards hand on
                for other in self.honest:
                    late = self.random.uniform(1.0, 20.0)
                    self.at(late, lambda other=other: self.arrive(other, author, word))

    def crash(self) -> None:
        one = self.random.choice(self.honest)
        self.down.add(one)
        self.at(self.random.uniform(1.0, 30.0), lambda: self.back(one))

    def back(self, one: Address) -> None:
        """What it signed is in its journal, and boards tell it everything again in any order, if they still have it."""
        self.down.discard(one)
        self.books[one] = self._book(one)
        for word in self.signed[one]:
            self.books[one].hear(one, word, self.proof(one, word))
        before = [(author, word) for to, author, word in self.told if to == one]
        self.told = {each for each in self.told if each[0] != one}
        for author, word in sorted(before) if not self.cell.lost else ():
            self.at(self.delay(), lambda author=author, word=word: self.arrive(one, author, word))

    # the liars

    def heard_by_liar(self, author: Address, word: Word) -> None:
        if self.cell.kind in ("two-faced", "late"):
            # To each what that one says itself, so that each thinks to have a quorum.
            for liar in self.liars:
                if self.cell.kind == "two-faced" or self.now > 6.0:
                    self.tell(liar, [author], word)
                    self.tell(liar, [author], word._replace(closed=True))

    def tell(self, liar: Address, to: Iterable[Address], word: Word) -> None:
        for one in to:
            self.at(self.random.uniform(0.0, 0.4), lambda one=one: self.arrive(one, liar, word))

    def some(self) -> list[Address]:
        return self.random.sample(self.honest, self.random.randint(1, len(self.honest)))

    def any_list(self) -> Proposal:
        some = [root for root in FILES if self.random.random() < 0.5]
        return proposal(*some, *(root for root in INVENTED if self.random.random() < 0.5))


def rusher(play: Round, liar: Address) -> None:
    """First in every ballot, with no file at all, open and closed at once."""
    for number in range(8):
        for word in (Word(number, closed, proposal()) for closed in (False, True)):
            play.at(0.4 * number, lambda w=word: play.tell(liar, play.honest, w))


def two_faced(play: Round, liar: Address) -> None:
    """Says to each what that one says (`heard_by_liar`), and to some what another one would say."""
    for one in play.honest:
        play.tell(liar, play.some(), Word(0, False, play.wants[one]))


def late(play: Round, liar: Address) -> None:
    """Nothing for a while; then old words, to some only, and to each what that one says."""
    for _ in range(6):
        word = Word(play.random.randint(0, 3), play.random.random() < 0.5, play.wants[play.random.choice(play.honest)])
        play.at(play.random.uniform(5.0, 30.0), lambda w=word: play.tell(liar, play.some(), w))


def far(play: Round, liar: Address) -> None:
    """Ballots that nobody is in, and words of near ones between them, so that these are forgotten."""
    for number in range(24):
        ballot = play.random.choice(FAR)
        word = Word(ballot, play.random.random() < 0.5, play.any_list())
        play.at(0.5 * number, lambda w=word: play.tell(liar, play.some(), w))
        near = Word(play.random.randint(0, 2), False, play.wants[play.random.choice(play.honest)])
        play.at(0.5 * number, lambda w=near: play.tell(liar, play.some(), w))


def lister(play: Round, liar: Address) -> None:
    """Lists with what nobody made and without what all have, to each another one, in all ballots."""
    for ballot in range(6):
        for one in play.honest:
            for closed in (False, True):
                word = Word(ballot, closed, play.any_list())
                play.at(play.random.uniform(0, 15.0), lambda w=word, one=one: play.tell(liar, [one], w))


LIARS: dict[str, Callable[[Round, Address], None]] = dict(
    zip(KINDS, (rusher, two_faced, late, far, lister), strict=True)
)


def rates(cell: Cell, seeds: Iterable[int], rules: Rules = Rules()) -> dict[str, Any]:
    """Of many rounds of a cell: how many had which fault, the first seeds of these, and how long the others took (the
    median, the 99th of a hundred, the longest, in seconds)."""
    played = {seed: Round(cell, seed, rules).play() for seed in seeds}
    found, failed = played.values(), dict[str, list[int]]()
    for seed, one in played.items():
        if one.fault:
            failed.setdefault(one.fault, []).append(seed)
    seconds = sorted(one.seconds for one in found if not one.fault) or [0.0]
    return {
        "faults": {fault: len(seeds) for fault, seeds in failed.items()},
        "seeds": {fault: seeds[:5] for fault, seeds in failed.items()},
        "seconds": [round(seconds[int(share * (len(seconds) - 1))], 1) for share in (0.5, 0.99, 1.0)],
        "ballots": max(one.ballots for one in found),
        "kept": max(one.kept for one in found),
    }


def finds(fault: str, cell: Cell, seeds: Iterable[int], rules: Rules) -> bool:
    """Whether one of these rounds has a fault."""
    return any(Round(cell, seed, rules).play().fault == fault for seed in seeds)
