"""Whom a node stays connected with."""

from collections import Counter
from collections.abc import Iterable

from node.swarm.neighbours import MOST, Neighbours
from protocol.identity import Address

VALIDATORS = 8
SUITORS = 128
LONELY = 3.0
UNTOLD = 8.0
BLIND = 2
MOST_BARRED_ALIVE = 30.0

MEMBERS = [Address(f"0x{number:040x}") for number in range(300)]
OWN, TRAINER, *OTHERS = MEMBERS
JUDGES = OTHERS[:50]


def choose(own: Address, validators: Iterable[Address], members: Iterable[Address]) -> set[Address]:
    neighbours = Neighbours(own, TRAINER, validators)
    for member in members:
        neighbours.add(member)
    return set(neighbours.chosen())


def test_in_a_small_swarm_everybody_is_dialled() -> None:
    few = MEMBERS[: MOST + 1]
    assert choose(OWN, (), few) == set(few) - {OWN}


def test_in_a_large_one_a_few_are_the_trainer_and_validators_among_them() -> None:
    chosen = choose(OWN, JUDGES, MEMBERS[:SUITORS])
    assert len(chosen) == MOST and TRAINER in chosen
    assert VALIDATORS <= len(chosen & set(JUDGES)) < MOST - 1


def test_who_joins_moves_one_place_and_who_leaves_gives_it_back() -> None:
    neighbours = Neighbours(OWN, TRAINER, ())
    for member in MEMBERS[:-1]:
        neighbours.add(member)
    before = set(neighbours.chosen())
    neighbours.add(MEMBERS[-1])
    assert len(before - neighbours.chosen().keys()) <= 1
    neighbours.discard(MEMBERS[-1])
    assert neighbours.chosen().keys() == before


def test_everybody_hears_everybody_over_a_few_hops() -> None:
    links = {one: choose(one, (), MEMBERS) - {TRAINER} for one in MEMBERS}
    reached, edge = {OWN}, {OWN}
    hops = 0
    while edge:
        edge = {near for one in edge for near in links[one]} - reached
        reached |= edge
        hops += bool(edge)
    assert len(reached) >= len(MEMBERS) - 1 and hops <= 4


def test_the_trainer_and_validators_of_a_large_swarm_are_not_everybodys_neighbours() -> None:
    crowd = [Address(f"0x{number:040x}") for number in range(2000)]
    judges = OTHERS[:4]
    sample = Counter(near for own in crowd[10::10] for near in choose(own, judges, crowd))
    for wanted in (TRAINER, *judges):
        assert 0 < 10 * sample[wanted] < 2 * (SUITORS + MOST)


CROWD = [Address(f"0x{number:040x}") for number in range(3000)]
"""Most are ghosts."""


class Node:
    """One that looks once a second. alive: who is heard; there: who answers a dial."""

    def __init__(self, validators: Iterable[Address] = (), there: Iterable[Address] = ()) -> None:
        self.neighbours = Neighbours(OWN, TRAINER, validators)
        for member in CROWD:
            self.neighbours.add(member)
        self.there, self.links, self.alive = set(there), set[Address](), set[Address]()
        self.failures: Counter[Address] = Counter()
        self.now = 0.0

    def look(self, seconds: float = 1.0) -> set[Address]:
        """Who is dialled after so many seconds, in each of which those who are there answer and the others do not."""
        for _ in range(round(seconds)):
            dialled = self.neighbours.chosen().keys() - self.links
            self.links |= dialled & self.there
            self.failures.update(dialled - self.there)
            for each in self.alive:
                self.neighbours.heard(each)
            self.now += 1
            self.neighbours.note(self.links, self.failures, self.alive, self.now)
        return set(self.neighbours.chosen())


def test_dials_in_vain_make_the_draw_go_on() -> None:
    node = Node()
    first = node.look()
    assert not (first & node.look()) - {TRAINER}, "of those that did not answer none is tried again at once"
    assert len(node.failures) >= 2 * MOST
    node.there = {CROWD[700]}
    node.look(200)
    assert node.links == {CROWD[700]}, "whoever answers is found in the end"


def test_who_is_heard_is_dialled_before_the_thousands_that_are_not() -> None:
    living = set(CROWD[100:140])
    node = Node(there=living)
    node.look()
    node.alive = living
    chosen = node.look(3)
    assert len(chosen) == MOST and chosen <= living == node.there and len(node.links) <= MOST + 1


def test_without_a_link_or_the_trainers_voice_a_node_seeks_trainer_and_validators_whatever_the_chance() -> None:
    judges = set(CROWD[2:6])
    lonely = [wanted_by(own, judges, set(), LONELY) for own in CROWD[10:30]]
    assert all(sought == {TRAINER, *judges} for sought in lonely)
    cut_off = [wanted_by(own, judges, {CROWD[2999]}, UNTOLD) for own in CROWD[10:30]]
    assert all(sought == {TRAINER, *judges} for sought in cut_off)
    among = Counter(one for own in CROWD[10:70] for one in wanted_by(own, judges, {TRAINER, CROWD[2999]}, UNTOLD))
    assert max(among[judge] for judge in judges) < 20


def wanted_by(own: Address, judges: set[Address], links: set[Address], waits: float) -> set[Address]:
    neighbours = Neighbours(own, TRAINER, judges)
    for member in CROWD:
        neighbours.add(member)
    for now in (0.0, waits):
        neighbours.note(links, {}, links, now)
    return set(neighbours.chosen()) & {TRAINER, *judges}


def test_among_the_living_few_ghosts_are_tried_at_once_and_a_living_one_that_did_not_answer_soon_again() -> None:
    shy = CROWD[50]
    living = {TRAINER, *CROWD[40:45]}
    node = Node(there=living)
    node.alive = {*living, shy}
    node.look(10)
    assert living <= node.links
    ghosts = [len(node.look() - living - {shy}) for _ in range(5)]
    assert max(ghosts) <= BLIND
    before = node.failures[shy]
    node.look(MOST_BARRED_ALIVE + 1)
    assert node.failures[shy] > before


def test_a_line_that_stands_is_kept_when_somebody_with_a_better_draw_is_heard() -> None:
    node = Node(there=[TRAINER, *CROWD[100:160]])
    node.alive = {TRAINER, *CROWD[100:130]}
    kept = node.look(5)
    node.alive = {TRAINER, *CROWD[100:160]}
    assert kept - {TRAINER} <= node.look(5)
