"""What came of a validator's own looks at steps that its lot drew: since when, and at how many, it could not look.

A policy may be there, and what it was made of not: manifest, files and the checkpoint before are its trainer's to hand
over. A validator says so of what it tried itself. Its own disk and memory are no experience, and a slow line is none:
of what is withheld nothing comes at all (ADR 126).
"""

from node.clock import Seconds
from protocol.manifest import PolicyStatement


class LookHistory:
    """clock: monotonic seconds; enough: drawn steps in vain, one after the other, that say something of a trainer."""

    def __init__(self, clock: Seconds, *, enough: int = 3) -> None:
        self._clock, self._enough = clock, enough
        self._term = -1
        self._vain: dict[int, PolicyStatement] = {}
        self._since = 0.0

    def withheld(self, statement: PolicyStatement) -> None:
        """Of a drawn step nobody hands over what its trainer must have."""
        if statement.term != self._term:
            self.forget()
        if not self._vain:
            self._term, self._since = statement.term, self._clock()
        self._vain.setdefault(statement.step, statement)
        if len(self._vain) > self._enough:
            # The first one says how far the run can be trusted, the newest may be had on another try.
            del self._vain[sorted(self._vain)[1]]

    def forget(self) -> None:
        """A step could be looked at; or what was in vain was this machine's fault."""
        self._vain.clear()

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

    @property
    def vain(self) -> tuple[PolicyStatement, ...]:
        """To be tried again: a row must end once what it lacked is there, whatever is drawn meanwhile."""
        return tuple(self._vain.values())
