"""Who may lead: the terms of a pool's trainers, as the chain tells them.

A term is one trainer's. What it says of a policy counts from the term's first policy on, up to the first one of the
next term; a pool without a chair has one term, its manager's, for good. The clock is an argument.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from contracts.bindings import ChairInfo, TermTaken
from node.changes import Changes
from protocol.identity import Address

FOREVER = 2**63
MAX_TERMS = 1024
"""Remembered, the newest."""


class Term(msgspec.Struct, frozen=True):
    """from_step: the first policy that is the holder's; parent: root of the one before it, zeros if there is none;
    until: end of the lease or of the term, unix seconds of the chain; at: when this node heard of it, monotonic."""

    number: int
    holder: Address
    from_step: int = 0
    parent: bytes = bytes(32)
    until: int = FOREVER
    ended: bool = False
    at: float = 0.0


class Chairs(Protocol):
    """The chain, or what stands for it. terms: all that were taken, in their order."""

    async def chair(self, pool: int) -> ChairInfo | None: ...

    async def terms(self, pool: int) -> list[TermTaken]: ...


class LeaderTerms(Changes):
    """manager: who leads a pool that nobody seated; trainers: in the order of their turn; lease, grace: seconds. Who
    follows is told after every change."""

    def __init__(self, manager: Address, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._terms: list[Term] = [Term(0, manager)]
        self.trainers: tuple[Address, ...] = (manager,)
        self.seated = False
        self.lease = self.grace = 0
        self.reached = 0
        """A policy that the chain was told of: the run has come at least as far."""
        self.named: tuple[int, bytes] | None = None
        """Step and root of the policy that the newest term goes on from, where who announced it is not known here."""
        # Words of the chain that can be taken back, the newest: more than blocks that are replaced together hold.
        self._before: deque[dict[str, Any]] = deque(maxlen=256)
        """What stood here before each word of the chain."""

    @property
    def now(self) -> Term:
        """The newest term."""
        return self._terms[-1]

    def all(self) -> tuple[Term, ...]:
        """Those that are remembered, oldest first."""
        return tuple(self._terms)

    def of(self, step: int) -> Term:
        """The term in which a policy lies, as far as is known."""
        # The oldest that is remembered stands for all that were before it.
        return next(term for term in reversed(self._terms) if term.from_step <= step or term is self._terms[0])

    def taken_back(self, own: Address, after: int, apart: int) -> int | None:
        """The first policy of the earliest term later than `after` that is somebody else's, or that begins at or before
        policy `apart`, which its holder before stated otherwise than it came out here (-1: none); None without one."""
        later = (term for term in self._terms if term.number > after)
        return next((one.from_step for one in later if one.holder != own or one.from_step <= apart), None)

    def is_trainer(self, address: Address) -> bool:
        """Whether it leads, led, or stands by: what it said in its term stays said."""
        return self.in_office(address) or any(term.holder == address for term in self._terms)

    def in_office(self, address: Address) -> bool:
        """Whether it has a seat now, or leads: who was dismissed says nothing more but what its term was."""
        return address in self.trainers or address == self.now.holder

    def counts(self, author: Address, number: int, step: int, parent: bytes = b"") -> bool:
        """Whether a word about policy `step` is its author's to say. parent: of the policy, where it is stated: the
        first policy of a term must come after the one that the taker named."""
        for term in self._terms:
            if term.number == number:
                # Not the next term alone: it may begin later than the one after it.
                within = term.from_step <= step and not self.is_over(number, step)
                first = step == term.from_step and step > 0 and number > 0
                return author == term.holder and within and (not first or parent == term.parent)
        return False

    def led(self, author: Address, number: int) -> bool:
        """Whether a term is or was its author's."""
        return any(term.number == number and term.holder == author for term in self._terms)

    def is_over(self, number: int, step: int) -> bool:
        """Whether a later term begins at or before this policy: then nobody counts what this term says of it."""
        return any(term.number > number and term.from_step <= step for term in self._terms)

    def turn(self, trainer: Address) -> int | None:
        """From when a standby may take the next term, unix seconds of the chain; None for who is none."""
        if not self.seated or trainer not in self.trainers:
            return None
        count = len(self.trainers)
        # After a holder without a seat the first trainer has its turn at once.
        holder = self.trainers.index(self.now.holder) if self.now.holder in self.trainers else count - 1
        return self.now.until + (self.trainers.index(trainer) - holder - 1) % count * self.grace

    # from the chain

    async def ask_who_leads(self, chain: Chairs, pool: int) -> None:
        """For somebody who looks now and then and follows no events. Raises ChainError."""
        chair = await chain.chair(pool)
        # An endpoint may be behind the one that was asked before.
        if chair is None or (self.seated and chair.term <= self.now.number):
            return
        self.seat(chair.trainers, chair.lease_seconds, chair.grace_seconds)
        self.take(chair.term, chair.holder, chair.from_step, chair.parent, chair.until)
        # Terms before this one are not asked for here, which would take long: its holder has put this policy on chain.
        self.named = (chair.from_step - 1, chair.parent)

    async def ask_who_led(self, chain: Chairs, pool: int) -> None:
        """The terms before this one, too: what their holders said of their policies stays said. Raises ChainError."""
        now = self.now
        if now.number == 0:  # nobody did
            return
        for one in (await chain.terms(pool))[-MAX_TERMS:]:
            if one.term < now.number:
                self.take(one.term, one.holder, one.from_step, one.parent, one.until)
        self.take(now.number, now.holder, now.from_step, now.parent, now.until)

    def seat(self, trainers: Sequence[Address], lease: int, grace: int) -> None:
        self._become(trainers=tuple(trainers), lease=lease, grace=grace, seated=True)

    def take(self, number: int, holder: Address, from_step: int, parent: bytes, until: int) -> None:
        """A term begins. The first one that is told takes the place of the manager's."""
        kept = [term for term in self._terms if term.number < number][-MAX_TERMS:]
        begun = Term(number, holder, from_step, parent, until, at=self._clock())
        self._become(_terms=[*kept, begun], reached=max(from_step - 1, 0))

    def hold(self, number: int, until: int, step: int = 0) -> None:
        """step: the newest policy then."""
        self._become(_terms=self._changed(number, until=until), reached=max(self.reached, step))

    def end(self, number: int, ended_at: int) -> None:
        self._become(_terms=self._changed(number, until=ended_at, ended=True))

    def undo(self) -> None:
        """The block of the newest word was replaced."""
        if self._before:
            vars(self).update(self._before.pop())
            self.tell()

    def _changed(self, number: int, **changes: object) -> list[Term]:
        # A word about an older term changes nothing: a term that was taken since stands.
        if self.now.number != number:
            return self._terms
        return [*self._terms[:-1], msgspec.structs.replace(self.now, **changes)]

    def _become(self, **changes: object) -> None:
        self._before.append({name: getattr(self, name) for name in changes})
        vars(self).update(changes)
        self.tell()
