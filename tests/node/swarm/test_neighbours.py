"""Whom a node stays connected with."""

from node.swarm.neighbours import MOST, VALIDATORS, choose
from protocol.identity import Address

MEMBERS = [Address(f"0x{number:040x}") for number in range(300)]
OWN, TRAINER, *OTHERS = MEMBERS
JUDGES = OTHERS[:50]


def test_in_a_small_swarm_everybody_is_dialled() -> None:
    few = MEMBERS[: MOST + 1]
    assert choose(OWN, TRAINER, (), few) == set(few) - {OWN}


def test_in_a_large_one_a_few_are_the_trainer_and_validators_among_them() -> None:
    chosen = choose(OWN, TRAINER, JUDGES, MEMBERS)
    assert len(chosen) == MOST and TRAINER in chosen
    assert VALIDATORS <= len(chosen & set(JUDGES)) < MOST - 1


def test_who_joins_moves_one_place_and_not_all() -> None:
    before = choose(OWN, TRAINER, JUDGES, MEMBERS[:-1])
    assert len(before - choose(OWN, TRAINER, JUDGES, MEMBERS)) <= 1


def test_everybody_hears_everybody_over_a_few_hops() -> None:
    links = {one: choose(one, TRAINER, (), MEMBERS) - {TRAINER} for one in MEMBERS}
    reached, edge = {OWN}, {OWN}
    hops = 0
    while edge:
        edge = {near for one in edge for near in links[one]} - reached
        reached |= edge
        hops += bool(edge)
    assert len(reached) >= len(MEMBERS) - 1 and hops <= 4
