"""What validators say of rounds: every word of whoever is in office counts, and a quorum of them decides."""

from node.changes import Changes
from node.services.context import Context
from node.swarm.facts import PeerTold
from node.swarm.round_votes import RoundBook
from protocol.agreement import RoundCommittee, quorum_of
from protocol.messages import RoundVote, Signed, openers, signature_of


class Votes:
    """One per node. heard: after each word."""

    def __init__(self, context: Context) -> None:
        self._context, self.heard = context, Changes()
        self._last = context.run.spec.recipe.steps
        self._book = RoundBook(self._in_office(), context.key.address, self._last)

    @property
    def quorum(self) -> int:
        """Words that decide a round, of those who are in office now."""
        return quorum_of(len(self._context.membership.validators), self._context.quorum)

    @property
    def book(self) -> RoundBook:
        self._book.seat(self._in_office())
        return self._book

    def _in_office(self) -> RoundCommittee:
        return RoundCommittee(self._context.membership.validators, self.quorum)

    async def run(self) -> None:
        """Hear until cancelled; also in which round others are."""
        async for told in self._context.facts.subscribe(RoundVote, PeerTold):
            if not isinstance(told, PeerTold):
                self.note(told)
            else:
                self.heard.tell()

    def note(self, vote: Signed[RoundVote]) -> None:
        """Who says two things in one place is believed no more in what it finds; both envelopes show it."""
        message, author, disputes = vote.message, vote.author, self._context.state.disputes
        book, word = self.book, message.word
        # Each is a recovery on the event loop: of more than there are validators nothing is looked at.
        few = 0 < len(message.shown) <= len(self._context.membership.validators)
        if few and message.round <= self._last and not book.of(message.round).knows(word):
            for opener, proof in openers(self._context.domain, message):
                book.hear(opener, message.round, word._replace(closed=False), proof)
        proof = signature_of(vote)
        if not book.hear(author, message.round, word, proof) and author not in disputes.quarantined:
            others = [one for one in self._context.facts.standing(RoundVote) if one.author == author]
            same = dict.fromkeys(one.raw for one in (*others, vote) if _place(one.message) == _place(message))
            disputes.quarantine(author, "it signed two different lists in one ballot", tuple(same))
        self.heard.tell()


def _place(message: RoundVote) -> tuple[int, int, bool]:
    return message.round, message.ballot, message.closed
