"""How validators agree on a round's cut: the one list of contributions that everybody adds.

Every validator names the contributions that it accepted (an open word). Where a quorum names the same, it closes that
list (a closed word); a quorum of equal closed words decides the round. Where they differ, the next ballot names what a
quorum had named, so lists converge in a ballot or two without a leader. Whoever has closed a list names it again unless
a quorum named another one in a later ballot: so no two lists are ever decided, as long as fewer validators break that
rule than two quorums have in common (Tendermint, arXiv 1807.04938, with everybody as proposer).

Pure: words and times come in. A word of another outer state is another word, so replicas that differ decide nothing.
"""

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from protocol.identity import Address

# A few times what a word takes to reach all validators over gossip.
BALLOT_SECONDS = 2.0
"""So long a ballot waits for the words of validators that are alive."""
# Two minutes of ballots; a bound on what one validator can make others remember of a round.
MAX_BALLOTS = 64


class Proposal(NamedTuple):
    """What a round may come to. outer: state root of its beginning; state, size: of the blob that holds that state;
    files: roots of the contributions, ascending."""

    outer: bytes
    state: bytes
    size: int
    files: tuple[bytes, ...]


class Word(NamedTuple):
    """One validator's word in one ballot. closed: it will name nothing else unless a quorum does."""

    ballot: int
    closed: bool
    proposal: Proposal


def quorum_of(validators: int, threshold: int) -> int:
    """Words that decide: as many as the pool asks for, and more than half, so that any two quorums meet."""
    # Two quorums of half could each decide a list of their own.
    return max(threshold, validators // 2 + 1)


class Agreement:
    """One round's, as one node hears it. quorum: `quorum_of`."""

    def __init__(self, quorum: int) -> None:
        self._quorum = quorum
        self._said: dict[tuple[int, bool], dict[Address, Proposal]] = {}
        self._begun: dict[int, float] = {}
        self.decided: Proposal | None = None

    def hear(self, author: Address, word: Word, now: float) -> bool:
        """Take in a word; False if its author said something else in that ballot, which contradicts itself."""
        if not 0 <= word.ballot < MAX_BALLOTS:
            return True
        self._begun.setdefault(word.ballot, now)
        said = self._said.setdefault((word.ballot, word.closed), {})
        # The first word stands: whoever says two things in one ballot would else be counted for both.
        if said.setdefault(author, word.proposal) != word.proposal:
            return False
        if self.decided is None and word.closed:
            self.decided = self._agreed(word.ballot, closed=True)
        return True

    @property
    def has_begun(self) -> bool:
        """Whether anybody has said anything."""
        return bool(self._said)

    def next_word(self, own: Address, wanted: Proposal, alive: Collection[Address], now: float) -> Word | None:
        """What validator `own` has to say now, None if nothing. wanted: what it accepted itself; alive: validators."""
        if self.decided is not None:
            return None
        mine = self._of(own)
        # Closing is a promise over restarts, too: it is read from what was said, not from this process's memory.
        locked = max((ballot for ballot, closed in mine if closed), default=-1)
        newest = max((ballot for ballot, _ in mine), default=-1)
        for ballot in sorted({ballot for ballot, _ in self._said}, reverse=True):
            agreed = self._agreed(ballot, closed=False)
            # never in a ballot before the own newest one: who has named something else since may not close this
            if agreed is not None and ballot > locked and ballot >= newest:
                return Word(ballot, True, agreed)
        if newest < 0:
            return Word(self._first(), False, wanted)
        if newest + 1 >= MAX_BALLOTS or not self._is_over(newest, own, alive, now):
            return None
        return Word(newest + 1, False, self._next(wanted))

    def _first(self) -> int:
        """The ballot in which to begin: the newest that others are in."""
        return max((ballot for ballot, _ in self._said), default=0)

    def _of(self, author: Address) -> dict[tuple[int, bool], Proposal]:
        return {key: said[author] for key, said in self._said.items() if author in said}

    def _agreed(self, ballot: int, *, closed: bool) -> Proposal | None:
        votes = Counter(self._said.get((ballot, closed), {}).values())
        return next((one for one, count in votes.items() if count >= self._quorum), None)

    def _is_over(self, ballot: int, own: Address, alive: Collection[Address], now: float) -> bool:
        """Whether a ballot can bring no more: others are further, or all have spoken, or its time is over."""
        if any(later > ballot for later, _ in self._said):
            return True
        if now - self._begun[ballot] >= BALLOT_SECONDS:
            return len(self._said.get((ballot, False), {})) >= self._quorum
        spoke = self._said.get((ballot, False), {}).keys() | {own}
        return self._agreed(ballot, closed=False) is None and len(spoke) >= self._quorum and spoke >= set(alive)

    def _next(self, wanted: Proposal) -> Proposal:
        """What the next ballot names: what a quorum named last, which somebody may have closed. Before there is such a
        list, the files that a quorum names in everybody's newest words, on top of the own outer state."""
        for ballot in sorted({ballot for ballot, _ in self._said}, reverse=True):
            agreed = self._agreed(ballot, closed=False)
            if agreed is not None:
                return agreed
        newest: dict[Address, Proposal] = {}
        for key in sorted(self._said):
            newest |= self._said[key]
        named = Counter(root for one in newest.values() for root in one.files if one.outer == wanted.outer)
        # With fewer words a list that a quorum wants cannot be told from one that only some do.
        if len(newest) < self._quorum:
            return wanted
        return wanted._replace(files=tuple(sorted(root for root, count in named.items() if count >= self._quorum)))
