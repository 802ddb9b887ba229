"""How validators agree on a round's list: the one list of contributions that everybody adds.

Every validator names the contributions that it accepted, once its own clock says that the round is over (an open word).
Where a quorum names the same, it closes that list (a closed word); a quorum of equal closed words in one ballot decides
the round. Where they differ, further ballots follow, without a leader (Tendermint, arXiv 1807.04938, with everybody as
proposer):

1. The first word is in ballot 0, whoever has spoken before.
2. A later ballot's names the newest list that a quorum named, if that is not older than the list that its author
   closed; else the closed one; else the files that a quorum named in ballot 0, or may have where words are missing.
   That set only shrinks, and is the same for all who have heard the same.
3. A list is closed in the ballot in which its author is, never in an older one.
4. Every signed word counts. Who says two things in one place of a ballot counts there for whatever others say: nobody
   gains by more words, and each node remembers one word a place, in whatever order they came.
5. A validator goes on by one ballot once a quorum is there and its own time is over, which grows from ballot to ballot.
   It jumps only to where more are than can lie. No ballot is the last one.
6. A closed word shows the signatures of the open words that it rests on, and who waits says its words again. So what
   an honest validator is bound by is known from its own words alone, whatever of a liar's words came to whom.

Two quorums have more validators in common than may lie, so two lists are never decided. What is remembered is bounded
by the ballots that honest validators reach: of an author beyond them only its newest ballot is kept.

Pure: words and times come in. A word of another outer state is another word, so replicas that differ decide nothing.
"""

import math
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from protocol.identity import Address

MAX_LISTED = 256
"""Contributions that a list may name."""
# A few times what a word takes to reach all validators over gossip.
BALLOT_SECONDS = 2.0
"""So long the first ballot waits for further words; each later one waits twice as long as the one before."""


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


Place = tuple[int, bool]
"""Ballot, and whether the word is a closed one: what an honest validator says once."""
FIRST: Place = (0, False)


class RoundCommittee(NamedTuple):
    """Who decides a round. quorum: see `quorum_of`."""

    validators: tuple[Address, ...]
    quorum: int

    @property
    def liars(self) -> int:
        """How many may lie and be told from the honest. One at least, where there are others: a pool of two or three
        cannot bear a liar that tells each of them something else, but it must bear every other one."""
        return max(liars_of(len(self.validators)), 1 if len(self.validators) > 1 else 0)


def liars_of(validators: int) -> int:
    """How many of a bench may lie, whatever they say to whom."""
    return (validators - 1) // 3


def quorum_of(validators: int, threshold: int) -> int:
    """Words that decide: as many as the pool asks for, and so many that any two quorums have more validators in common
    than may lie: 2 of 3, 3 of 4, 4 of 5 or 6, 5 of 7."""
    return max(threshold, (validators + liars_of(validators)) // 2 + 1)


def seconds_of(ballot: int) -> float:
    """How long a validator waits in a ballot at least."""
    return min(BALLOT_SECONDS * 2 ** min(ballot, 16), 64.0)


class Agreement:
    """One round's, as one node hears it. own: this node, if it is a validator."""

    def __init__(
        self, bench: RoundCommittee, own: Address | None = None, *, again_seconds: float = 30.0, ahead: int = 16
    ) -> None:
        # Between two times at which a validator says what it said: who was away has heard nothing of it.
        self._again_seconds = again_seconds
        # Ballots beyond those that the others have reached, of which an author's words are kept. Going so far takes
        # validators minutes.
        self._ahead = ahead
        self._bench, self._own = bench, own
        # None: it said several things there, and counts for all that others say
        self._said: dict[Address, dict[Place, Proposal | None]] = {}
        self._proofs: dict[tuple[Address, int], dict[Proposal, bytes]] = {}
        self._in, self._since, self._said_at = -1, 0.0, 0.0
        self.decided: Proposal | None = None

    @property
    def has_own(self) -> bool:
        """Whether this node has spoken."""
        return bool(self._own and self._said.get(self._own))

    def seat(self, bench: RoundCommittee) -> None:
        """Only the words of these count from now on."""
        self._bench = bench
        self._said = {author: said for author, said in self._said.items() if author in bench.validators}
        for ballot in sorted({ballot for said in self._said.values() for ballot, closed in said if closed}):
            self._decide(ballot)

    def forget(self) -> None:
        """What was said is of no use any more; what was decided stays."""
        self._said.clear()
        self._proofs.clear()

    def hear(self, author: Address, word: Word, proof: bytes = b"") -> bool:
        """Take in a word; False if its author has said something else in that place, which is evidence against it.
        proof: its signature."""
        if author not in self._bench.validators:
            return True
        said, place = self._said.setdefault(author, {}), (word.ballot, word.closed)
        alike = said.setdefault(place, word.proposal) == word.proposal
        if not alike:
            said[place] = None
        if proof and not word.closed:
            proofs = self._proofs.setdefault((author, word.ballot), {})
            if len(proofs) < 2:  # signatures of one author that are kept in one ballot
                proofs[word.proposal] = proof
        if author != self._own:  # what it said itself binds it, wherever the others are
            self._forget_far(author, said)
        if word.closed:
            self._decide(word.ballot)
        return alike

    def next_word(self, wanted: Proposal | None, now: float) -> Word | None:
        """What this node has to say now, None if nothing. wanted: what it accepted itself, None while its own clock
        says that the round is not over."""
        said = self._said.get(self._own, {}) if self._own else {}
        ballot = _newest(said)
        if ballot < 0:
            named = self.decided or wanted
            return self._begun(Word(*FIRST, named), now) if named else None
        if ballot != self._in:  # a word of before this start
            self._in, self._since = ballot, now
        agreed = self._named(ballot)
        if agreed is not None and (ballot, True) not in said:
            return Word(ballot, True, agreed)
        further = self._next_ballot(ballot, now)
        if further is None:
            return None
        return self._begun(Word(further, False, self.decided or self._next(said, wanted, further)), now)

    def _begun(self, word: Word, now: float) -> Word:
        self._in, self._since, self._said_at = word.ballot, now, now
        return word

    def shown(self, word: Word) -> tuple[bytes, ...]:
        """The signatures that a closed word rests on, as far as they are known."""
        proofs = (known.get(word.proposal) for (_, ballot), known in self._proofs.items() if ballot == word.ballot)
        return tuple(sorted(proof for proof in proofs if proof)) if word.closed else ()

    def knows(self, word: Word) -> bool:
        """Whether it is known here that a quorum named what a closed word closes."""
        return self._named(word.ballot) == word.proposal

    def again(self, now: float) -> list[Word]:
        """What this node has to say once more now: all that it said, of many ballots its newest words, its first one
        and the one by which it is bound."""
        said = self._said.get(self._own, {}) if self._own else {}
        if not said or now < self._said_at + self._again_seconds:
            return []
        self._said_at = now
        locked = max((place for place in said if place[1]), default=FIRST)
        places = sorted({FIRST, locked, *sorted(said)[-self._ahead :]})
        return [Word(*place, named) for place in places if (named := said.get(place)) is not None]

    def due(self, now: float) -> float:
        """When this node may have to speak although nobody else does."""
        if not self.has_own:
            return math.inf
        times = self._said_at + self._again_seconds, self._since + seconds_of(max(self._in, 0))
        return min((at for at in times if at > now), default=math.inf)

    def _next_ballot(self, ballot: int, now: float) -> int | None:
        """Where to go from a ballot, None: it may bring more."""
        if (reached := self._reached()) > ballot:
            return reached
        there = [newest for newest in map(_newest, self._said.values()) if newest >= ballot]
        # Who has decided says so to those who go on, and does not go on by itself.
        if self.decided is not None and max(there) == ballot:
            return None
        over = now - self._since >= seconds_of(ballot)
        return ballot + 1 if over and len(there) >= self._bench.quorum else None

    def _reached(self) -> int:
        """The newest ballot that more have reached than can lie; -1 before."""
        newest = sorted(map(_newest, self._said.values()), reverse=True)
        liars = self._bench.liars
        return newest[liars] if len(newest) > liars else -1

    def _forget_far(self, author: Address, said: dict[Place, Proposal | None]) -> None:
        """Of what one author said beyond where the others are soon, only its newest ballot stays: an honest one that is
        far ahead of this node goes on from there, and a liar gains no room."""
        if (newest := _newest(said)) > (near := self._reached() + self._ahead):
            for place in [place for place in said if near < place[0] < newest]:
                del said[place]
                self._proofs.pop((author, place[0]), None)

    def _decide(self, ballot: int) -> None:
        if self.decided is None:
            self.decided = self._named(ballot, closed=True)

    def _named(self, ballot: int, *, closed: bool = False) -> Proposal | None:
        """What a quorum named in a ballot."""
        place = ballot, closed
        said = [said[place] for said in self._said.values() if place in said]
        votes, anything = Counter(one for one in said if one is not None), said.count(None)
        # The least of several: with more liars than a pool bears, who hears all of them still finds the same one.
        return min((one for one, count in votes.items() if count + anything >= self._bench.quorum), default=None)

    def _next(self, said: dict[Place, Proposal | None], wanted: Proposal | None, further: int) -> Proposal:
        """What a later ballot names: rule 2."""
        locked = max((ballot for ballot, closed in said if closed), default=-1)
        heard = {ballot for said in self._said.values() for ballot, closed in said if not closed and ballot >= locked}
        for ballot in sorted(heard, reverse=True):
            if (agreed := self._named(ballot)) is not None:
                return agreed
        lock, first = said.get((locked, True)), said.get(FIRST) or wanted
        known = lock or first
        assert known is not None  # whoever is in a later ballot has said its first word
        return lock or self._common(known, further)

    def _common(self, own: Proposal, ballot: int) -> Proposal:
        """The files of ballot 0 that a quorum may yet have named there, on top of the own outer state: who is only late
        takes nothing out, and a liar in its place neither. Of those that few named the own ones stay for a ballot."""
        first = [said[FIRST] for said in self._said.values() if FIRST in said]
        # With fewer words a list that a quorum wants cannot be told from one that only some do.
        if len(first) < self._bench.quorum:
            return own
        named = Counter(root for one in first if one is not None and one.outer == own.outer for root in one.files)
        anything, silent = first.count(None), len(self._bench.validators) - len(first)
        known = {
            root: count + anything for root, count in named.items() if count + anything + silent >= self._bench.quorum
        }
        # The ballot from which a validator names no more what it accepted itself and too few named with it.
        mine = own.files if ballot < 2 else ()
        files = sorted(root for root, count in known.items() if count > self._bench.liars or root in mine)
        return own._replace(files=tuple(files[:MAX_LISTED]))


def _newest(said: Collection[Place]) -> int:
    return max(said)[0] if said else -1
