"""What validators said of rounds: which words are remembered, whoever speaks of how many."""

from itertools import cycle, islice

from node.swarm.round_votes import RoundBook
from protocol.agreement import RoundCommittee, Word
from tests.protocol.agreement_model import FILES, PEOPLE, proposal

REMEMBERED = 256

LISTED = proposal(FILES[0])


def book(last: int = 3 * REMEMBERED) -> RoundBook:
    return RoundBook(RoundCommittee(PEOPLE[:4], 3), PEOPLE[0], last)


def test_words_on_hundreds_of_other_rounds_make_nobody_forget_the_round_that_runs() -> None:
    rounds, others = book(), cycle(range(9, 3 * REMEMBERED))
    rounds.begin(7)
    for at, closed in ((7, False), (7, True), (8, False), (8, True)):
        for author in PEOPLE[:3]:
            rounds.hear(author, at, Word(0, closed, LISTED))
            for other in islice(others, REMEMBERED):
                rounds.hear(PEOPLE[3], other, Word(0, False, LISTED))
    assert rounds.decided() == {7: LISTED, 8: LISTED}


def test_a_round_that_is_long_over_keeps_what_it_came_to_and_no_words() -> None:
    rounds = book()
    for at in range(6):
        for author in PEOPLE[:3]:
            rounds.hear(author, at, Word(0, True, LISTED))
    rounds.begin(5)
    assert set(rounds.decided()) == set(range(6))
    assert [bool(rounds.of(at)._said) for at in range(6)] == [False] * 4 + [True] * 2


def test_words_beyond_the_runs_last_round_are_not_kept() -> None:
    rounds = book(last=9)
    assert rounds.hear(PEOPLE[1], 10, Word(0, True, LISTED))
    assert not rounds._rounds


def test_another_bench_decides_what_is_not_decided() -> None:
    rounds = book()
    rounds.hear(PEOPLE[1], 3, Word(0, True, LISTED))
    rounds.seat(RoundCommittee(PEOPLE[1:2], 1))
    assert rounds.decided() == {3: LISTED}
