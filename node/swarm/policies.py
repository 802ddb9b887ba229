"""The policy clock: which policy is which step, since when this node knows it, and whether the trainer keeps its word.

A policy's root names its step, so both directions are functions: two announcements that disagree about a root or about
a step are a lie that the trainer signed twice. Whoever has seen both trusts it no more. Pure: the clock is an argument.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from node.recent import Recent
from node.swarm.terms import Terms
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
    """at: when it was first heard of, by the clock; orphaned_at: when a later term began before it, None if none did.
    What was made with an orphaned policy until a little later is judged and paid, and not trained on. outer: it is the
    outer state of a round, which is contributed to and not sampled from."""

    step: int
    at: float
    orphaned_at: float | None = None
    outer: bool = False


class PolicyClock:
    """One per node; everything that asks for a policy's step asks here. clock: monotonic seconds; terms: whose word
    counts, None: everybody's who may announce at all; stated: whether only policies count about which their trainer
    signed a statement; that of step 0 follows from the start model."""

    def __init__(self, clock: Callable[[], float], terms: Terms | None = None, *, stated: bool = False) -> None:
        self._clock = clock
        self._terms = terms
        self._stated = stated
        self.unstated = 0
        """Announcements that were not followed for want of a statement."""
        self._known: Recent[bytes, KnownPolicy] = Recent(KNOWN)
        self._by_root: Recent[bytes, Signed[PolicyAnnounced]] = Recent(COMPARED)
        self._by_step: Recent[int, Signed[PolicyAnnounced]] = Recent(COMPARED)
        self._settling: deque[KnownPolicy] = deque()
        self._settled = -1
        self.newest_step = -1
        self.forks: dict[int, Fork] = {}
        """By term: why its holder is not believed. What the next one says counts again."""

    @property
    def fork(self) -> Fork | None:
        """Why the trainer that leads now is not believed, None if it is."""
        if self._terms is None:
            return next(iter(self.forks.values()), None)
        # By term: a convicted leader's successor starts with a clean name.
        return self.forks.get(self._terms.now.number)

    def announce(self, signed: Signed[PolicyAnnounced]) -> bool:
        """Note an announcement; whether it is a policy's first. Nothing is noted of a trainer that has lied."""
        message = signed.message
        if self._stated and message.step > 0 and message.statement is None:
            self.unstated += 1
            return False
        if self._is_forked(message) or not self._counts(signed) or self._contradicts(signed):
            return False
        if message.policy_root in self._known and not self.is_orphan(message.policy_root):
            return False
        self._known.pop(message.policy_root, None)  # from one state and the same files the next term makes the same
        self._by_root[message.policy_root] = self._by_step[message.step] = signed
        self.learn(message.step, message.policy_root)
        return True

    def _counts(self, signed: Signed[PolicyAnnounced]) -> bool:
        """Whether it is its author's to say. Of a term that the chain has not told yet it is heard again later
        (`Jury`); what a term said beyond its end is known as an orphan, if it is heard soon after that."""
        message = signed.message
        if self._terms is None or self._terms.counts(signed.author, message.term, message.step, message.parent):
            return True
        if self._terms.named == (message.step, message.policy_root):
            return True
        began = self._terms.now.at
        if self._terms.is_over(message.term, message.step) and self._clock() - began <= GRACE_SECONDS:
            self._by_root.setdefault(message.policy_root, signed)
            self._known.setdefault(message.policy_root, KnownPolicy(message.step, self._clock(), began))
        return False

    def begin_term(self) -> None:
        """A term began: what those before it said from its first policy on is orphaned, and of two policies
        right before that one the other than the taker named."""
        if self._terms is None:
            return
        now = self._terms.now
        for step in [step for step in self._by_step if step >= now.from_step - 1]:
            signed = self._by_step[step]
            said = signed.message
            if self._terms.is_over(said.term, step) or (step < now.from_step and self._is_forked(said)):
                del self._by_step[step]
                self._orphan(said.policy_root)

    def _is_forked(self, said: PolicyAnnounced) -> bool:
        """Whether who said it is not believed in that term, and no later one goes on from this very policy."""
        return said.term in self.forks and (self._terms is None or said.policy_root != self._terms.now.parent)

    def _orphan(self, root: bytes) -> None:
        known = self._known.get(root)
        if known is None or known.orphaned_at is not None:
            return
        self._known[root] = msgspec.structs.replace(known, orphaned_at=self._clock())
        self._settling = deque(one for one in self._settling if one is not known)
        left = [one.step for one in self._known.values() if one.orphaned_at is None]
        self.newest_step = max(left, default=-1)
        # Steps were taken back: staleness must not be measured by policies that are gone.
        self._settled = min(self._settled, self.newest_step)

    def is_orphan(self, root: bytes) -> bool:
        known = self._known.get(root)
        return known is not None and known.orphaned_at is not None

    def learn(self, step: int, root: bytes, *, outer: bool = False) -> None:
        """Note a policy that nobody announces: the outer state of a round, or its image, which follow from the round
        before."""
        if root not in self._known:
            known = self._known[root] = KnownPolicy(step, self._clock(), outer=outer)
            self._settling.append(known)
            self.newest_step = max(self.newest_step, step)

    def heard_at(self, count: int) -> list[float]:
        """When the newest policies were heard of, ascending by step; no orphans."""
        known = sorted((one.step, one.at) for one in self._known.values() if one.orphaned_at is None)
        return [at for _, at in known[-count:]]

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
        found: Fork | None = None
        same_root, same_step = self._by_root.get(message.policy_root), self._by_step.get(message.step)
        if same_step is not None and same_step.message.policy_root != message.policy_root:
            found = Fork(f"two policies were announced for step {message.step}", (same_step.raw, signed.raw))
        elif same_step is not None and _state_otherwise(same_step.message, message):
            found = Fork(f"two statements were made about step {message.step}", (same_step.raw, signed.raw))
        elif same_root is not None and same_root.message.step != message.step:
            what = f"one policy was announced for steps {same_root.message.step} and {message.step}"
            found = Fork(what, (same_root.raw, signed.raw))
        if found is not None:
            self.forks[message.term] = found
        return found is not None


def _state_otherwise(one: PolicyAnnounced, other: PolicyAnnounced) -> bool:
    """Whether both state something about one step, and not the same. Of two terms each may."""
    first, second = one.statement, other.statement
    return first is not None and second is not None and first.term == second.term and first != second
