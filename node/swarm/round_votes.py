"""What validators in office have said of the rounds of a run, and what they decided. Pure; time is nobody's here.

Words of any round are heard: who comes late learns from those of far ones how far the others are. What one validator
makes others forget by speaking of many rounds is never what they are to decide, and a round that is long over keeps
what it came to and no words.
"""

from node.bounded_dict import BoundedDict
from protocol.agreement import Agreement, Proposal, RoundCommittee, Word
from protocol.identity import Address


class RoundBook:
    """One per node. own: this node, if it is a validator; last: the run's rounds."""

    def __init__(self, bench: RoundCommittee, own: Address, last: int) -> None:
        self._bench, self._own, self._last = bench, own, last
        self._rounds: BoundedDict[int, Agreement] = BoundedDict(256)  # rounds
        self._running = 0

    def seat(self, bench: RoundCommittee) -> None:
        """Others took office: they alone decide what is not decided. By the quorum of another bench a few of a larger
        one would, and a smaller one never could."""
        if bench != self._bench:
            self._bench = bench
            for one in self._rounds.values():
                one.seat(bench)

    def begin(self, round_: int) -> None:
        """A round runs here now. Of those before the last one nobody asks for words any more."""
        self._running = round_
        for at, one in self._rounds.items():
            if at < round_ - 1 and one.decided:
                one.forget()

    def of(self, round_: int) -> Agreement:
        known = self._rounds.get(round_)
        if known is None:
            for kept in self._rounds.keys() & {self._running - 1, self._running, self._running + 1}:
                self._rounds.move_to_end(kept)
            known = self._rounds[round_] = Agreement(self._bench, self._own)
        return known

    def hear(self, author: Address, round_: int, word: Word, proof: bytes = b"") -> bool:
        """Take in a word; False if it contradicts another one of its author. proof: its signature."""
        # Rounds beyond the run's last would fill the table with what never comes.
        return round_ > self._last or self.of(round_).hear(author, word, proof)

    def decided(self) -> dict[int, Proposal]:
        """What rounds came to, as far as it is known and remembered."""
        return {at: one.decided for at, one in self._rounds.items() if one.decided}
