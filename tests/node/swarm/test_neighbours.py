"""Whom a node stays connected with."""

from collections import Counter
from collections.abc import Iterable

from node.swarm.neighbours import MOST, SUITORS, VALIDATORS, Neighbours
from protocol.identity import Address

MEMBERS = [Address(f"0x{number:040x}") for number in range(300)]
OWN, TRAINER, *OTHERS = MEMBERS
JUDGES = OTHERS[:50]


def choose(own: Address, validators: Iterable[Address], members: Iterable[Address]) -> set[Address]:
    neighbours = Neighbours(own, TRAINER, validators)
    for member in members:
        neighbours.add(member)
    return neighbours.chosen()


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
    before = neighbours.chosen()
    neighbours.add(MEMBERS[-1])
    assert len(before - neighbours.chosen()) <= 1
    neighbours.discard(MEMBERS[-1])
    assert neighbours.chosen() == before


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
