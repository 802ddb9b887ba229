"""A round's list: one list for everybody, without a leader, however words are delayed, lost and repeated, and whatever
liars say to whom. Each rule that a pool cannot do without is taken out once: the model finds what comes of it."""

import math
from itertools import product

import pytest

from protocol.agreement import (
    BALLOT_SECONDS,
    Agreement,
    Proposal,
    RoundCommittee,
    Word,
    liars_of,
    quorum_of,
    seconds_of,
)
from protocol.identity import Address
from tests.protocol.agreement_model import FILES, KINDS, PEOPLE, Cell, Round, Rules, finds, proposal, rates

AGAIN_SECONDS = 30.0
AHEAD = 16


def listed(*files: int, outer: int = 0) -> Proposal:
    return proposal(*(FILES[n] for n in files), outer=outer)


def book(validators: int, own: int | None = None) -> Agreement:
    bench = RoundCommittee(PEOPLE[:validators], quorum_of(validators, 1))
    return Agreement(bench, None if own is None else PEOPLE[own])


def say(agreement: Agreement, own: int, wanted: Proposal | None, now: float) -> Word | None:
    """What a validator has to say, which it hears itself."""
    word = agreement.next_word(wanted, now)
    if word is not None:
        agreement.hear(PEOPLE[own], word)
    return word


# what a pool can bear


def test_two_quorums_have_more_validators_in_common_than_may_lie_and_the_honest_are_one() -> None:
    assert [quorum_of(n, 1) for n in range(1, 8)] == [1, 2, 2, 3, 4, 4, 5]
    for validators in range(1, 60):
        quorum, liars = quorum_of(validators, 1), liars_of(validators)
        assert 2 * quorum - validators > liars and validators - liars >= quorum
    assert quorum_of(4, 4) == 4


@pytest.mark.parametrize("validators", range(3, 8))
@pytest.mark.parametrize("kind", [None, *KINDS])
def test_one_list_is_decided_and_no_honest_validator_convicted(validators: int, kind: str | None) -> None:
    cells = [Cell(validators, kind, late=0.0), Cell(validators, kind), Cell(validators, kind, crash=True)]
    for cell in cells:
        assert not rates(cell, range(8))["faults"], cell


@pytest.mark.parametrize("kind", ["rusher", "far"])
def test_three_validators_bear_a_liar_that_says_the_same_to_all(kind: str) -> None:
    for cell in (Cell(3, kind, liars=1, late=0.0, differ=False), Cell(3, "rusher", liars=1)):
        assert not rates(cell, range(20))["faults"]


def test_three_validators_do_not_bear_a_liar_with_two_faces() -> None:
    assert rates(Cell(3, "two-faced", liars=1), range(60))["faults"].get("forked"), "the docs say so"


def test_of_three_honest_validators_all_lists_and_all_orders_come_to_one() -> None:
    """What three may have accepted of two files, and of each first word whether it comes soon or after the ballot."""
    lists = [listed(0), listed(1), listed(0, 1)]
    for wants in product(lists, repeat=3):
        for late in product((0.1, BALLOT_SECONDS + 0.6), repeat=6):
            delays = iter(late)
            play = Round(Cell(3, late=0.0), 0, wants=wants)
            play.delay = lambda delays=delays: next(delays, 0.1)  # type: ignore[method-assign]
            assert play.play().fault in ("", "emptied"), (wants, late)  # what is said too late is left out


# what becomes of a pool without a rule


class FirstWordStands(Agreement):
    def hear(self, author: Address, word: Word, proof: bytes = b"") -> bool:
        before = self._said.get(author, {}).get((word.ballot, word.closed))
        return super().hear(author, word, proof) if before in (None, word.proposal) else False


class LastBallot(Agreement):
    """Up to 63; a validator began in the newest that others were in."""

    def hear(self, author: Address, word: Word, proof: bytes = b"") -> bool:
        return word.ballot > 63 or super().hear(author, word, proof)

    def next_word(self, wanted: Proposal | None, now: float) -> Word | None:
        word = super().next_word(wanted, now)
        if word is not None and not self.has_own:
            heard = (ballot for said in self._said.values() for ballot, _ in said)
            return word._replace(ballot=max(heard, default=0))
        return None if word is None or word.ballot > 63 else word


class ShowsNothing(Agreement):
    def shown(self, word: Word) -> tuple[bytes, ...]:
        return ()


class NeverAgain(Agreement):
    def again(self, now: float) -> list[Word]:
        return []


class ClosesOldBallots(Agreement):
    def next_word(self, wanted: Proposal | None, now: float) -> Word | None:
        said = self._said.get(self._own or PEOPLE[0], {})
        for ballot in {ballot for ballot, _ in said}:
            if (ballot, True) not in said and (agreed := self._named(ballot)) is not None:
                return Word(ballot, True, agreed)
        return super().next_word(wanted, now)


class CountsWhoSpoke(Agreement):
    """The files that a quorum has named by now: who is late takes out what it names."""

    def _common(self, own: Proposal, ballot: int) -> Proposal:
        whole = super()._common(own, ballot)
        first = [said[0, False] for said in self._said.values() if (0, False) in said]
        named = {root: sum(one is None or root in one.files for one in first) for root in whole.files}
        few = len(first) < self._bench.quorum
        return whole._replace(files=tuple(r for r in whole.files if few or named[r] >= self._bench.quorum))


def majority(validators: int) -> int:
    return validators // 2 + 1


@pytest.mark.parametrize(
    ("rules", "cell", "fault"),
    [
        (Rules(rushed=True), Cell(3, "rusher", liars=1, late=0.0, differ=False), "emptied"),
        (Rules(quorum=majority), Cell(7, "two-faced"), "forked"),
        (Rules(FirstWordStands), Cell(4, "two-faced"), "stuck"),
        (Rules(LastBallot), Cell(4, "far"), "stuck"),
        (Rules(CountsWhoSpoke), Cell(3, "rusher", liars=1, late=0.0), "emptied"),
        (Rules(CountsWhoSpoke), Cell(4, "rusher", late=0.0), "emptied"),
        (Rules(ShowsNothing), Cell(4, "two-faced", lost=0.2), "stuck"),
        (Rules(NeverAgain), Cell(4, lost=0.2), "stuck"),
        (Rules(ClosesOldBallots), Cell(4, "lister"), "forked"),
    ],
    ids=lambda one: one.agreement.__name__ if isinstance(one, Rules) else None,
)
def test_without_one_of_the_rules_the_model_finds_a_fault(rules: Rules, cell: Cell, fault: str) -> None:
    assert finds(fault, cell, range(120), rules)
    assert not rates(cell, range(20))["faults"], "the control"


# rule by rule


def test_the_first_word_waits_for_the_own_clock_whoever_has_spoken() -> None:
    one = book(3, own=0)
    for ballot in (0, 1):
        for closed in (False, True):
            one.hear(PEOPLE[1], Word(ballot, closed, listed()))
    assert one.next_word(None, 5.0) is None
    assert one.next_word(listed(1), 9.0) == Word(0, False, listed(1))


def test_all_that_agree_decide_at_once_and_without_a_quorum_nobody_does() -> None:
    one = book(4, own=0)
    assert say(one, 0, listed(1, 2), 0.0) == Word(0, False, listed(1, 2))
    for author in (1, 2):
        one.hear(PEOPLE[author], Word(0, False, listed(1, 2)))
    assert say(one, 0, None, 0.0) == Word(0, True, listed(1, 2))
    one.hear(PEOPLE[1], Word(0, True, listed(1, 2)))
    assert one.decided is None
    one.hear(PEOPLE[2], Word(0, True, listed(1, 2)))
    assert one.decided == listed(1, 2)


def test_a_ballot_waits_for_a_quorum_and_longer_each_time() -> None:
    one = book(4, own=0)
    say(one, 0, listed(1), 0.0)
    one.hear(PEOPLE[1], Word(0, False, listed(2)))
    assert one.next_word(None, 1e6) is None, "two of four"
    one.hear(PEOPLE[2], Word(0, False, listed(2, 3)))
    assert say(one, 0, None, BALLOT_SECONDS - 0.1) is None
    assert say(one, 0, None, BALLOT_SECONDS) == Word(1, False, listed(2)), "with the fourth it may be a quorum's"
    for author in (1, 2):
        one.hear(PEOPLE[author], Word(1, False, listed(2 + author)))
    assert one.next_word(None, BALLOT_SECONDS + seconds_of(1) - 0.1) is None
    assert one.next_word(None, BALLOT_SECONDS + seconds_of(1)) == Word(2, False, listed(2))
    assert seconds_of(1) == 2 * BALLOT_SECONDS and seconds_of(10**9) == seconds_of(64)


def test_what_a_quorum_named_first_is_in() -> None:
    one = book(4, own=0)
    say(one, 0, listed(1, 2), 0.0)
    for author, files in ((1, (1, 3)), (2, (1, 2, 4)), (3, (2,))):
        one.hear(PEOPLE[author], Word(0, False, listed(*files)))
    assert say(one, 0, None, 3.0) == Word(1, False, listed(1, 2))


def test_of_three_the_one_who_is_late_takes_nothing_out_for_a_ballot() -> None:
    one = book(3, own=0)
    say(one, 0, listed(1, 2), 0.0)
    one.hear(PEOPLE[1], Word(0, False, listed()))
    assert say(one, 0, None, BALLOT_SECONDS) == Word(1, False, listed(1, 2))
    one.hear(PEOPLE[1], Word(1, False, listed()))
    assert say(one, 0, None, 9.0) == Word(2, False, listed()), "and one that never comes does not hold it up"
    one.hear(PEOPLE[2], Word(0, False, listed(1)))
    one.hear(PEOPLE[2], Word(2, False, listed(5)))
    assert one.next_word(None, 99.0) == Word(3, False, listed(1))


def test_a_closed_word_shows_what_it_rests_on_and_who_has_missed_that_is_bound_by_it_too() -> None:
    one, other = book(4, own=0), book(4, own=3)
    one.hear(PEOPLE[0], Word(0, False, listed(1)), b"zero")
    for author, proof in ((1, b"one"), (2, b"two")):
        one.hear(PEOPLE[author], Word(0, False, listed(1)), proof)
    closed = one.next_word(None, 0.0)
    assert closed is not None and one.shown(closed) == (b"one", b"two", b"zero")
    assert one.shown(Word(0, False, listed(1))) == () and one.knows(closed) and not other.knows(closed)
    for author in range(3):
        other.hear(PEOPLE[author], Word(0, False, listed(1)))
    assert other.knows(closed)


def test_who_waits_says_its_words_again() -> None:
    one = book(4, own=0)
    assert one.again(99.0) == []
    say(one, 0, listed(1), 0.0)
    assert one.again(AGAIN_SECONDS - 0.1) == [] and one.again(AGAIN_SECONDS) == [Word(0, False, listed(1))]
    assert one.again(AGAIN_SECONDS + 1) == []


def test_a_node_knows_when_it_may_have_to_speak_though_nobody_else_does() -> None:
    one = book(4, own=0)
    assert one.due(5.0) == math.inf, "before its own word the round's clock decides"
    say(one, 0, listed(1), 10.0)
    ends, repeats = 10.0 + seconds_of(0), 10.0 + AGAIN_SECONDS
    assert one.due(10.0) == min(ends, repeats)
    late = max(ends, repeats)
    assert one.due(late) == math.inf and one.again(late)
    assert one.due(late) == late + AGAIN_SECONDS, "a ballot that is over waits for others"


def test_who_says_two_lists_counts_for_what_others_say_and_shows_itself() -> None:
    one = book(4, own=0)
    say(one, 0, listed(1, 2), 0.0)
    one.hear(PEOPLE[1], Word(0, False, listed(1)))
    one.hear(PEOPLE[2], Word(0, False, listed(1)))
    assert one.hear(PEOPLE[3], Word(0, False, listed(3)))
    assert one.hear(PEOPLE[3], Word(0, False, listed(3))), "the same once more is no other one"
    assert one.next_word(None, 0.0) is None
    assert not one.hear(PEOPLE[3], Word(0, False, listed(4)))
    assert say(one, 0, None, 0.0) == Word(0, True, listed(1))


def test_replicas_that_differ_decide_nothing() -> None:
    wants = [listed(1, outer=0), listed(1, outer=1), listed(1, outer=2)]
    assert Round(Cell(3, late=0.0), 1, wants=wants).play().fault == "stuck"


def test_who_closed_a_list_names_it_again_until_a_quorum_names_another() -> None:
    one = book(4, own=0)
    say(one, 0, listed(1), 0.0)
    for author in (1, 2):
        one.hear(PEOPLE[author], Word(0, False, listed(1)))
    assert say(one, 0, None, 0.0) == Word(0, True, listed(1))
    assert say(one, 0, None, BALLOT_SECONDS) == Word(1, False, listed(1))
    for author in (1, 2, 3):
        one.hear(PEOPLE[author], Word(1, False, listed(2)))
    assert say(one, 0, None, 3.0) == Word(1, True, listed(2))


def test_nobody_closes_a_list_in_a_ballot_that_it_has_left() -> None:
    one = book(4, own=0)
    say(one, 0, listed(1), 0.0)
    for author in (1, 2):
        one.hear(PEOPLE[author], Word(0, False, listed(2)))
    say(one, 0, None, BALLOT_SECONDS)
    one.hear(PEOPLE[3], Word(0, False, listed(2)))
    assert one.next_word(None, BALLOT_SECONDS) is None
    for author in (1, 2):
        one.hear(PEOPLE[author], Word(1, False, listed(2 + author)))
    assert say(one, 0, None, 9.0) == Word(2, False, listed(2)), "and names it from the next one on"


def test_who_has_decided_says_so_to_whoever_goes_on() -> None:
    one = book(4, own=0)
    for author in (1, 2, 3):
        one.hear(PEOPLE[author], Word(0, True, listed(1)))
    assert one.decided == listed(1)
    assert say(one, 0, listed(2), 0.0) == Word(0, False, listed(1))
    assert one.next_word(None, 1e6) is None, "nobody goes on"
    one.hear(PEOPLE[1], Word(1, False, listed(2)))
    assert say(one, 0, None, 1e6) == Word(1, False, listed(1))


def test_a_validator_jumps_where_more_are_than_can_lie() -> None:
    one = book(4, own=0)
    say(one, 0, listed(1), 0.0)
    one.hear(PEOPLE[1], Word(2**60, False, listed(2)))
    assert one.next_word(None, 1.0) is None
    one.hear(PEOPLE[2], Word(5, False, listed(2)))
    assert say(one, 0, None, 1.0) == Word(5, False, listed(1))
    assert one.next_word(None, 1e6) == Word(6, False, listed(1)), "three are there"


def test_a_flood_of_one_author_takes_no_room_and_none_from_others() -> None:
    one = book(4, own=0)
    one.hear(PEOPLE[1], Word(3, False, listed(1)))
    one.hear(PEOPLE[2], Word(3, False, listed(1)))
    for number in range(3000):
        lie = proposal(number.to_bytes(32, "big"))
        for ballot in (0, 3, number, 2**61 - number):
            one.hear(PEOPLE[3], Word(ballot, bool(number % 2), lie))
    assert len(one._said[PEOPLE[3]]) <= 2 * (3 + AHEAD + 2)
    assert say(one, 0, listed(1), 0.0) == Word(0, False, listed(1))
    assert say(one, 0, None, 0.0) == Word(3, False, listed(1)), "the honest words of the ballot are all there"
    assert say(one, 0, None, 0.0) == Word(3, True, listed(1))


def test_what_a_node_signed_binds_it_after_a_restart_wherever_the_others_are() -> None:
    one = book(4, own=0)
    for ballot in range(40):
        one.hear(PEOPLE[0], Word(ballot, False, listed(2)))
    one.hear(PEOPLE[0], Word(20, True, listed(1)))
    for author in (1, 2, 3):
        one.hear(PEOPLE[author], Word(41, False, listed(author + 1)))
    assert one.next_word(listed(2), 0.0) == Word(41, False, listed(1))


def test_others_take_office_in_the_middle_of_a_round() -> None:
    one = book(4)
    for author in (0, 1):
        one.hear(PEOPLE[author], Word(0, True, listed(1)))
    assert one.decided is None
    one.seat(RoundCommittee(PEOPLE[1:4], 2))
    assert one.decided is None, "one of the two has left office"
    one.hear(PEOPLE[0], Word(0, True, listed(1)))
    assert one.decided is None
    one.seat(RoundCommittee(PEOPLE[1:2], 1))
    assert one.decided == listed(1)
