"""What came of a validator's own looks at steps that its lot drew: since when, and how often, it could not look.

A policy may be there, and what it was made of not: manifest, files and the checkpoint before are its trainer's to hand
over, whole, at the rate that the run states. A validator says so of what it tried itself. Its own disk, memory and line
are no experience (ADR 126, 130).
"""

from dataclasses import dataclass

from node.clock import Seconds
from protocol.manifest import PolicyStatement


@dataclass(slots=True)
class _Look:
    """at: when it was in vain, None if the step could be looked at; again: whether it was tried again."""

    statement: PolicyStatement
    at: float | None
    again: bool = False


class LookHistory:
    """Of one term at a time. clock: monotonic seconds; enough: drawn steps in vain, one after the other, that say
    something of a trainer; often: the same among its last `of` looks at drawn steps, one after the other or not; apart:
    seconds between two in vain that count as two: a restart may spoil several at a time."""

    def __init__(self, clock: Seconds, *, enough: int = 3, often: int = 4, of: int = 64, apart: float = 300.0) -> None:
        self._clock, self._enough = clock, enough
        self._often, self._of, self._apart = often, of, apart
        self._term = -1
        self._vain: dict[int, PolicyStatement] = {}
        self._since = 0.0
        self._last: dict[int, _Look] = {}
        """By step."""

    def withheld(self, statement: PolicyStatement) -> None:
        """Of a drawn step nobody hands over in its time what its trainer must have."""
        self._heed(statement)
        if not self._vain:
            self._since = self._clock()
        self._vain.setdefault(statement.step, statement)
        if len(self._vain) > self._enough:
            # The first one says how far the run can be trusted, the newest may be had on another try.
            del self._vain[sorted(self._vain)[1]]
        self._note(_Look(statement, self._clock()))

    def came(self, statement: PolicyStatement) -> None:
        """A drawn step could be looked at."""
        self._heed(statement)
        self._vain.clear()
        # Late is not withheld: what came on another try is looked at all the same.
        self._last.pop(statement.step, None)
        self._note(_Look(statement, None))

    def forget(self) -> None:
        """What was in vain may have been this machine's fault, or nothing is owed any more."""
        self._vain.clear()
        self._last.clear()

    def _heed(self, statement: PolicyStatement) -> None:
        if statement.term != self._term:
            self.forget()
            self._term = statement.term

    def _note(self, look: _Look) -> None:
        self._last.setdefault(look.statement.step, look)
        while len(self._last) > self._of:
            del self._last[next(iter(self._last))]

    def in_vain_since(self, term: int) -> float | None:
        """When the first look of a row was in vain that no other one ended; None where nothing speaks against who leads
        in that term."""
        return self._since if self._vain and term == self._term else None

    @property
    def are_enough(self) -> bool:
        """Whether so many were in vain in a row that this says something."""
        return len(self._vain) >= self._enough

    def sound(self, term: int) -> int | None:
        """The last policy before the first of them; None where nothing speaks against who leads in that term."""
        return min(self._vain) - 1 if self._vain and term == self._term else None

    def sound_of_some(self, term: int) -> int | None:
        """The last policy before the newest step in vain, where too many of the last looks were, whatever came in
        between; None where they were not."""
        vain = {step: one.at for step, one in self._last.items() if one.at is not None and term == self._term}
        occasions, last = 0, float("-inf")
        for at in sorted(vain.values()):
            if at >= last + self._apart:
                occasions, last = occasions + 1, at
        return max(vain) - 1 if occasions >= self._often else None

    @property
    def vain(self) -> tuple[PolicyStatement, ...]:
        """Those of the row."""
        return tuple(self._vain.values())

    def to_try_again(self) -> tuple[PolicyStatement, ...]:
        """Each of the row every time: it must end once what it lacked is there, whatever is drawn meanwhile. Of others
        in vain each once."""
        once = [one for one in self._last.values() if one.at is not None and not one.again]
        for one in once:
            one.again = True
        return tuple({one.step: one for one in (*self.vain, *(look.statement for look in once))}.values())
