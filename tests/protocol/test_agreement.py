"""A round's cut: one list for everybody, without a leader, however words are delayed, lost and repeated."""

import random

import pytest

from protocol.agreement import BALLOT_SECONDS, Agreement, Proposal, Word, quorum_of
from protocol.identity import Address, NodeKey

PEOPLE = [NodeKey(bytes([n]) * 32).address for n in range(1, 6)]
FILES = [bytes([n]) * 32 for n in range(6)]


def proposal(*files: int, outer: int = 0) -> Proposal:
    return Proposal(bytes([outer]) * 32, bytes(32), 1, tuple(FILES[n] for n in files))


class Pool:
    """Validators whose words take random times to each other; `silent` say nothing, `lost`: share of words that come
    only when they are said again."""

    def __init__(self, seed: int, wants: list[Proposal], silent: tuple[int, ...] = (), lost: float = 0.2) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a simulation
        self.wants, self.people = wants, PEOPLE[: len(wants)]
        self.alive = [one for i, one in enumerate(self.people) if i not in silent]
        self.views = {one: Agreement(quorum_of(len(wants), 1)) for one in self.people}
        self.mail: list[tuple[float, Address, Address, Word]] = []
        self.lost, self.now = lost, 0.0

    def run(self, seconds: float = 60.0) -> set[Proposal | None]:
        while self.now < seconds and not all(self.views[one].decided for one in self.alive):
            self.now += 0.25
            due, self.mail = [m for m in self.mail if m[0] <= self.now], [m for m in self.mail if m[0] > self.now]
            for _, to, author, word in due:
                assert self.views[to].hear(author, word, self.now)
            for own, wanted in zip(self.people, self.wants, strict=True):
                word = self.views[own].next_word(own, wanted, self.alive, self.now) if own in self.alive else None
                if word is not None:
                    self.views[own].hear(own, word, self.now)
                    for to in self.people:
                        late = 10.0 if self.random.random() < self.lost else 0.0
                        self.mail.append((self.now + late + 2 * self.random.random(), to, own, word))
        return {self.views[one].decided for one in self.alive}


def test_all_that_agree_decide_at_once_and_without_a_quorum_nobody_does() -> None:
    assert Pool(0, [proposal(1, 2)] * 3, lost=0).run(8) == {proposal(1, 2)}
    assert Pool(0, [proposal(1, 2)] * 3, silent=(0,)).run() == {proposal(1, 2)}
    assert Pool(0, [proposal(1, 2)] * 3, silent=(0, 1)).run() == {None}
    assert Pool(0, [proposal(1)]).run(3) == {proposal(1)}


def test_where_validators_differ_what_a_quorum_named_is_in() -> None:
    pool = Pool(1, [proposal(1, 2), proposal(1, 3), proposal(1, 2, 4)], lost=0)
    pool.random.random = lambda: 0.5  # type: ignore[method-assign] - all words take a second
    assert pool.run() == {proposal(1, 2)}


@pytest.mark.parametrize("validators", [3, 4, 5])
def test_never_two_lists_whatever_is_late_or_lost(validators: int) -> None:
    for seed in range(60):
        source = random.Random(seed)  # noqa: S311 - a simulation
        wants = [proposal(*sorted(source.sample(range(6), source.randint(0, 6)))) for _ in range(validators)]
        silent = tuple(source.sample(range(validators), source.randint(0, (validators - 1) // 2)))
        found = Pool(seed, wants, silent).run(120)
        assert len(found) == 1 and None not in found, (seed, found)


def test_replicas_that_differ_decide_nothing() -> None:
    assert Pool(2, [proposal(1, outer=0), proposal(1, outer=1), proposal(1, outer=2)]).run() == {None}


def test_two_words_in_one_ballot_are_told_apart_from_one_said_twice() -> None:
    agreement = Agreement(2)
    assert agreement.hear(PEOPLE[0], Word(0, False, proposal(1)), 0.0)
    assert agreement.hear(PEOPLE[0], Word(0, False, proposal(1)), 1.0)
    assert not agreement.hear(PEOPLE[0], Word(0, False, proposal(2)), 1.0)


def test_who_closed_a_list_names_it_again_until_a_quorum_names_another() -> None:
    agreement, own, other, third = Agreement(2), *PEOPLE[:3]
    for author in (own, other):
        agreement.hear(author, Word(0, False, proposal(1)), 0.0)
    assert agreement.next_word(own, proposal(1), PEOPLE[:3], 0.0) == Word(0, True, proposal(1))
    agreement.hear(own, Word(0, True, proposal(1)), 0.0)
    agreement.hear(third, Word(1, False, proposal(2)), 0.0)
    assert agreement.next_word(own, proposal(2), PEOPLE[:3], BALLOT_SECONDS) == Word(1, False, proposal(1))
    agreement.hear(own, Word(1, False, proposal(1)), 1.0)
    agreement.hear(other, Word(1, False, proposal(2)), 1.0)
    assert agreement.next_word(own, proposal(1), PEOPLE[:3], 1.0) == Word(1, True, proposal(2))
