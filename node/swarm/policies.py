"""The policy index: which policy is which step, since when this node knows it, and whether the trainer keeps its word.

A policy is followed if its author leads then, and if the policy before it is followed, or the chain names that, or a
quorum of the validators holds it: so nobody alone moves the clock by more than one step, nor by more than MAX_AHEAD
steps beyond what can be had (ADR 125). A policy's root names its step, so both directions are functions: two
announcements that disagree about a root or about a step are a lie that the trainer signed twice. Whoever has seen both
trusts it no more. Pure: the clock is an argument.
"""

from collections import deque
from collections.abc import Callable, Collection

import msgspec

from node.bounded_dict import BoundedDict
from node.swarm.counts import Admission
from node.swarm.facts import Equivocation, PolicyFollowed
from node.swarm.terms import LeaderTerms
from protocol.identity import Address
from protocol.messages import PolicyAnnounced, Signed

KNOWN = 4096
COMPARED = 512
"""Steps whose signed announcement is kept, to be shown beside another one."""
GRACE_SECONDS = 10.0
"""For so long after a policy was heard of, files that arrive may have been committed to before it: messages of two
authors overtake each other, and on a busy machine by seconds."""
MAX_AHEAD = 32
"""Policies that who leads may announce while a quorum of the validators says that it holds none of them: secrets of
lots, ages of files and what a next leader takes back go by the newest."""


class KnownPolicy(msgspec.Struct, frozen=True):
    """at: when it was first heard of, by the clock; orphaned_at: when a later term began before it, None if none did.
    What was made with an orphaned policy until a little later is judged and paid, and not trained on. outer: it is the
    outer state of a round, which is contributed to and not sampled from."""

    step: int
    at: float
    orphaned_at: float | None = None
    outer: bool = False


class PolicyIndex:
    """One per node; everything that asks for a policy's step asks here. clock: monotonic seconds; terms: who leads, and
    led; reached: the newest step of a trainer that a quorum of the validators holds, -1 for none; lacks: whether a
    quorum of them said since then that it holds none of a trainer's policies from a step on; own: this node's address,
    whose own words it remembers to be true; anchor_seconds: for so long a node that follows nothing yet waits for a
    quorum of the validators to say how far the run is. Then it takes the leader's word for where it begins: there is
    nobody else whom it could ask, and it may have come first."""

    def __init__(
        self,
        clock: Callable[[], float],
        terms: LeaderTerms,
        reached: Callable[[Address], int] = lambda trainer: -1,
        own: Address | None = None,
        *,
        anchor_seconds: float = 5.0,
        lacks: Callable[[Address, int, float], bool] = lambda trainer, step, since: False,
    ) -> None:
        self._clock = clock
        self._anchor_seconds = anchor_seconds
        self._terms = terms
        self._reached, self._lacks = reached, lacks
        self._own = own
        self._known: BoundedDict[bytes, KnownPolicy] = BoundedDict(KNOWN)
        self._by_root: BoundedDict[bytes, PolicyFollowed] = BoundedDict(COMPARED)
        self._by_step: BoundedDict[int, PolicyFollowed] = BoundedDict(COMPARED)
        self._taken_back: BoundedDict[bytes, PolicyFollowed] = BoundedDict(COMPARED)
        """By a term, whose block may be replaced."""
        self._settling: deque[KnownPolicy] = deque()
        self._settled = -1
        self.newest_step = -1
        self.equivocations: dict[int, Equivocation] = {}
        """By term: why its holder is not believed. What the next one says counts again."""

    @property
    def equivocation(self) -> Equivocation | None:
        """Why the trainer that leads now is not believed, None if it is."""
        # By term: a convicted leader's successor starts with a clean name.
        return self.equivocations.get(self._terms.now.number)

    # what is heard

    def admits(self, author: Address, message: PolicyAnnounced) -> Admission:
        """Whether an announcement counts: it is its author's to say, and no further ahead than others can show."""
        known_here = self._by_root.get(message.policy_root)
        if known_here is not None and known_here.author == author:
            return Admission.COUNTS  # again, or as another step: a lie is looked at whatever its step
        if message.term > self._terms.now.number:
            return Admission.HELD  # the chain has not told of that term yet
        if not self._is_its_authors(author, message):
            if self._is_late(message):
                return Admission.COUNTS
            # The end of its term stands in a block, and that may be replaced.
            over = self._terms.is_over(message.term, message.step) and self._terms.led(author, message.term)
            return Admission.HELD if over else Admission.REFUSED
        return Admission.COUNTS if author == self._own or self._is_reached(author, message) else Admission.HELD

    def _is_its_authors(self, author: Address, message: PolicyAnnounced) -> bool:
        named = self._terms.named == (message.step, message.policy_root)
        return named or self._terms.counts(author, message.term, message.step, message.parent)

    def _is_late(self, message: PolicyAnnounced) -> bool:
        """Whether it is beyond the end of its term, and came soon after that: it is known as an orphan."""
        over = self._terms.is_over(message.term, message.step)
        return over and self._clock() - self._terms.now.at <= GRACE_SECONDS

    def _is_reached(self, author: Address, message: PolicyAnnounced) -> bool:
        step = message.step
        # What the chain has been told of, and what was trained from a followed policy. Another policy than the one that
        # is followed for the step before it is a break of a rule, which an audit tells, and one step as any.
        if step == 0 or step in self._by_step or step <= self._reached(author):
            return True
        if step - 1 in self._by_step:
            return not self._is_invented(author, step - MAX_AHEAD)
        named = self._terms.named
        return (named is not None and named[0] == step) or any(
            term.from_step == step and term.number == message.term for term in self._terms.all() if term.number
        )

    def _is_invented(self, author: Address, step: int) -> bool:
        """Whether this policy and all after it are words only, as far as the validators can tell."""
        of = self._by_step.get(step)
        known = self._known.get(of.root) if of is not None and of.author == author else None
        return known is not None and self._lacks(author, step, known.at)

    def anchor(self, held: Collection[tuple[float, Address, PolicyAnnounced]]) -> int | None:
        """Where a node begins that follows nothing yet and has waited in vain for the validators: the first step of the
        longest row of the leader's policies, of which each goes on from the one before. held: with when each came."""
        # A row of a term that is not its author's would be taken every second, and never lead anywhere.
        rightful = [(at, message) for at, author, message in held if self._is_its_authors(author, message)]
        if (
            self.newest_step >= 0
            or not rightful
            or self._clock() - min(at for at, _ in rightful) < self._anchor_seconds
        ):
            return None
        known = {message.step: message for _, message in rightful}
        lengths: dict[int, int] = {}
        for step in sorted(known, reverse=True):
            after = known.get(step + 1)
            linked = after is not None and after.parent == known[step].policy_root
            lengths[step] = 1 + lengths[step + 1] if linked else 1
        return max(lengths, key=lambda step: (lengths[step], step))

    def announce(
        self, signed: Signed[PolicyAnnounced], *, anchored: bool = False
    ) -> PolicyFollowed | Equivocation | None:
        """Follow a policy, if it is admitted and news; a lie of its trainer that came out. Nothing is noted of a
        trainer that has lied. anchored: it is where this node begins (`anchor`)."""
        message = signed.message
        if not anchored and self.admits(signed.author, message) is not Admission.COUNTS:
            return None
        if self._is_forked(message):
            return None
        followed = PolicyFollowed(signed.author, message, signed.raw)
        if not self._is_its_authors(signed.author, message):
            self._by_root.setdefault(message.policy_root, followed)
            self._taken_back.setdefault(message.policy_root, followed)
            self._known.setdefault(message.policy_root, KnownPolicy(message.step, self._clock(), self._terms.now.at))
            return None
        if (equivocation := self._contradicts(signed)) is not None:
            self.equivocations[message.term] = equivocation
            return equivocation
        if message.policy_root in self._known and not self.is_orphan(message.policy_root):
            return None
        self._known.pop(message.policy_root, None)  # from one state and the same files the next term makes the same
        self._by_root[message.policy_root] = self._by_step[message.step] = followed
        self.learn(message.step, message.policy_root)
        return followed

    def begin_term(self) -> list[PolicyFollowed]:
        """A term began: what those before it said from its first policy on is orphaned, and of two policies
        right before that one the other than the taker named; or the block of one was replaced, and it never said
        anything. These, the newest first."""
        now = self._terms.now
        gone: list[PolicyFollowed] = []
        for step in sorted(self._by_step, reverse=True):
            said = self._by_step[step]
            message = said.message
            over = message.term > now.number or self._terms.is_over(message.term, step)
            if over or (step == now.from_step - 1 and self._is_forked(message)):
                del self._by_step[step]
                self._orphan(message.policy_root)
                self._taken_back[message.policy_root] = said
                gone.append(said)
        return gone

    def follow_again(self) -> list[PolicyFollowed]:
        """What a term took back whose block was replaced, or what a term said whose block came again. These, the oldest
        first."""
        found: list[PolicyFollowed] = []
        for said in sorted(self._taken_back.values(), key=lambda one: one.step):
            if self._is_its_authors(said.author, said.message):
                del self._taken_back[said.root]
                again = self.announce(Signed(said.author, said.message, said.raw))
                found += [again] if isinstance(again, PolicyFollowed) else []
        return found

    def _is_forked(self, said: PolicyAnnounced) -> bool:
        """Whether who said it is not believed in that term, and no later one goes on from this very policy."""
        return said.term in self.equivocations and said.policy_root != self._terms.now.parent

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

    def learn(self, step: int, root: bytes, *, outer: bool = False) -> None:
        """Note a policy that nobody announces: the outer state of a round, or its image, which follow from the round
        before."""
        if root not in self._known:
            known = self._known[root] = KnownPolicy(step, self._clock(), outer=outer)
            self._settling.append(known)
            self.newest_step = max(self.newest_step, step)

    # what is known

    def is_orphan(self, root: bytes) -> bool:
        known = self._known.get(root)
        return known is not None and known.orphaned_at is not None

    def heard_at(self, count: int) -> list[float]:
        """When the newest policies were heard of, ascending by step; no orphans."""
        known = sorted((one.step, one.at) for one in self._known.values() if one.orphaned_at is None)
        return [at for _, at in known[-count:]]

    def find(self, root: bytes) -> KnownPolicy | None:
        """A policy that is or was followed, None if it was not (or is forgotten)."""
        return self._known.get(root)

    def announcement(self, root: bytes) -> PolicyFollowed | None:
        """In which a policy was announced, as long as it is kept."""
        return self._by_root.get(root)

    def of_step(self, step: int) -> PolicyFollowed | None:
        """The followed policy of a step, as long as it is kept."""
        return self._by_step.get(step)

    def words_of(self, trainer: Address) -> list[PolicyFollowed]:
        """A trainer's announcements, newest first."""
        return [said for _, said in sorted(self._by_step.items(), reverse=True) if said.author == trainer]

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

    def _contradicts(self, signed: Signed[PolicyAnnounced]) -> Equivocation | None:
        message = signed.message
        if (one := self._by_step.get(message.step)) is not None:
            if one.root != message.policy_root:
                what = f"two policies were announced for step {message.step}"
                return Equivocation(what, (one.raw, signed.raw))
            # Of two terms each may state something about one step.
            if one.message.term == message.term and one.statement != message.statement:
                return Equivocation(f"two statements were made about step {message.step}", (one.raw, signed.raw))
        if (one := self._by_root.get(message.policy_root)) is not None and one.step != message.step:
            what = f"one policy was announced for steps {one.step} and {message.step}"
            return Equivocation(what, (one.raw, signed.raw))
        return None
