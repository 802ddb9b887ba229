"""The policy clock: which policy is which step, since when this node knows it, and whether the trainer keeps its word.

A policy's root names its step, so both directions are functions: two announcements that disagree about a root or about
a step are a lie that the trainer signed twice. Whoever has seen both trusts it no more. Pure: the clock is an argument.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from node.recent import Recent
from protocol.messages import PolicyAnnounced, Signed

KNOWN = 4096
COMPARED = 512
"""Steps whose signed announcement is kept, to be shown beside another one."""
GRACE_SECONDS = 10.0
"""For so long after a policy was heard of, files that arrive may have been committed to before it: messages of two
authors overtake each other, and on a busy machine by seconds."""


class Fork(msgspec.Struct, frozen=True):
    """Why a trainer is not believed: two announcements of it that cannot both be true, or a quorum that found a step
    bad. evidence: the envelopes."""

    what: str
    evidence: tuple[bytes, ...]


class KnownPolicy(msgspec.Struct, frozen=True):
    """at: when it was first heard of, by the clock."""

    step: int
    at: float


class PolicyClock:
    """One per node; everything that asks for a policy's step asks here. clock: monotonic seconds; stated: whether only
    policies count about which their trainer signed a statement; that of step 0 follows from the start model."""

    def __init__(self, clock: Callable[[], float], *, stated: bool = False) -> None:
        self._clock = clock
        self._stated = stated
        self.unstated = 0
        """Announcements that were not followed for want of a statement."""
        self._known: Recent[bytes, KnownPolicy] = Recent(KNOWN)
        self._by_root: Recent[bytes, Signed[PolicyAnnounced]] = Recent(COMPARED)
        self._by_step: Recent[int, Signed[PolicyAnnounced]] = Recent(COMPARED)
        self._settling: deque[KnownPolicy] = deque()
        self._settled = -1
        self.newest_step = -1
        self.fork: Fork | None = None

    def announce(self, signed: Signed[PolicyAnnounced]) -> bool:
        """Note an announcement; whether it is a policy's first. Nothing is noted of a trainer that has lied."""
        message = signed.message
        if self._stated and message.step > 0 and message.statement is None:
            self.unstated += 1
            return False
        if self.fork is not None or self._contradicts(signed):
            return False
        if message.policy_root in self._known:
            return False
        self._by_root[message.policy_root] = self._by_step[message.step] = signed
        self.learn(message.step, message.policy_root)
        return True

    def learn(self, step: int, root: bytes) -> None:
        """Note a policy that nobody announces: the outer state of a round, which follows from the round before."""
        if root not in self._known:
            known = self._known[root] = KnownPolicy(step, self._clock())
            self._settling.append(known)
            self.newest_step = max(self.newest_step, step)

    def find(self, root: bytes) -> KnownPolicy | None:
        """A policy that was announced, None if it was not (or is forgotten)."""
        return self._known.get(root)

    def announcement(self, root: bytes) -> Signed[PolicyAnnounced] | None:
        """In which a policy was announced, as long as it is kept."""
        return self._by_root.get(root)

    def of_step(self, step: int) -> Signed[PolicyAnnounced] | None:
        """The announcement of a step's policy, as long as it is kept."""
        return self._by_step.get(step)

    @property
    def steps(self) -> tuple[int, ...]:
        """Those whose announcement is kept, ascending."""
        return tuple(sorted(self._by_step))

    @property
    def settled_step(self) -> int:
        """The newest step of which everybody has had the time to hear."""
        while self._settling and self._clock() - self._settling[0].at >= GRACE_SECONDS:
            self._settled = max(self._settled, self._settling.popleft().step)
        return self._settled

    def _contradicts(self, signed: Signed[PolicyAnnounced]) -> bool:
        message = signed.message
        same_root, same_step = self._by_root.get(message.policy_root), self._by_step.get(message.step)
        if same_step is not None and same_step.message.policy_root != message.policy_root:
            self.fork = Fork(f"two policies were announced for step {message.step}", (same_step.raw, signed.raw))
        elif same_step is not None and _state_otherwise(same_step.message, message):
            self.fork = Fork(f"two statements were made about step {message.step}", (same_step.raw, signed.raw))
        elif same_root is not None and same_root.message.step != message.step:
            what = f"one policy was announced for steps {same_root.message.step} and {message.step}"
            self.fork = Fork(what, (same_root.raw, signed.raw))
        return self.fork is not None


def _state_otherwise(one: PolicyAnnounced, other: PolicyAnnounced) -> bool:
    """Whether both state something about one step, and not the same. Of two terms each may."""
    first, second = one.statement, other.statement
    return first is not None and second is not None and first.term == second.term and first != second
