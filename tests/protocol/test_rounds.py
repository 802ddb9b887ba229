"""Rounds: who is in, when one is over, and an outer step with the same bits for everybody."""

from itertools import permutations

import numpy as np
import pytest

from protocol.pretraining import Diloco
from protocol.rounds import Mean, chosen, closes_at, digest_of, outer_step, state_root, too_large

RULES = Diloco(round_seconds=600, grace_seconds=60, min_contributions=2, max_contributions=4)


def test_a_round_is_over_when_its_time_and_the_grace_are_and_enough_is_there() -> None:
    assert closes_at(100, [], RULES) is None
    assert closes_at(100, [250], RULES) is None
    assert closes_at(100, [250, 300], RULES) == 760  # the round's own time, and the grace
    assert closes_at(100, [900, 250, 1000], RULES) == 960  # since the second was accepted


def test_the_order_is_that_of_the_ids_and_a_lot_by_author_chooses_among_too_many() -> None:
    authors = {bytes([i]) * 32: bytes([i]) * 20 for i in (9, 3, 7, 1, 5, 2)}
    seed = b"c" * 32
    found = chosen(authors, 4, seed)
    assert found == sorted(found) and len(found) == 4
    assert all(chosen(dict(order), 4, seed) == found for order in list(permutations(authors.items()))[::97])
    assert chosen({bytes([99 - i]) * 32: author for i, author in enumerate(authors.values())}, 6, seed)
    others = {
        author: name for name, author in authors.items()
    }  # other bytes of the same authors: the same authors are in
    again = chosen({b"x" + one[1:]: author for one, author in authors.items()}, 4, seed)
    assert len(again) <= 4 and len(others) == 6
    assert [chosen(authors, 4, bytes([i]) * 32) for i in range(20)].count(found) < 20


def test_the_authors_that_are_in_do_not_depend_on_what_they_sent() -> None:
    seed, people = b"c" * 32, [bytes([i]) * 20 for i in range(8)]
    first = {bytes([i]) * 32: person for i, person in enumerate(people)}
    second = {bytes([200 - i]) * 32: person for i, person in enumerate(people)}
    named = [{contributions[one] for one in chosen(contributions, 3, seed)} for contributions in (first, second)]
    assert named[0] == named[1]


def test_a_norm_beyond_four_times_the_median_is_out_and_so_is_none() -> None:
    norms = {b"a": 1.0, b"b": 1.1, b"c": 0.9, b"d": 4.5, b"e": float("nan")}
    assert too_large({k: v for k, v in norms.items() if k != b"e"}) == {b"d"}
    assert b"e" in too_large(norms)
    assert too_large({}) == set()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_outer_step_is_a_weighted_mean_with_nesterovs_momentum(momentum: float) -> None:
    rules, source = Diloco(outer_rate=0.7, outer_momentum=momentum), np.random.default_rng(0)
    outer = source.normal(size=1000).astype(np.float32)
    ours, reference, kept, velocity = outer, outer.astype(np.float64), None, np.zeros(1000)
    for _ in range(5):
        tensors, tokens = source.normal(size=(3, 1000)).astype(np.float32), (100, 200, 50)
        mean = Mean(1000)
        for values, count in zip(tensors, tokens, strict=True):
            mean.add(values, count)
        ours, kept = outer_step(ours, kept, mean.result(), rules)
        exact = np.average(tensors.astype(np.float64), axis=0, weights=tokens)
        velocity = momentum * velocity + exact
        reference = reference - 0.7 * (exact + momentum * velocity)
    assert ours.dtype == np.float32 and np.abs(ours - reference).max() < 1e-5
    assert (kept is None) == (momentum == 0)


def test_a_round_without_contributions_leaves_the_state_as_it_is() -> None:
    outer = np.arange(5, dtype=np.float32)
    assert (outer_step(outer, None, Mean(5).result(), Diloco())[0] == outer).all()


def test_a_root_names_round_names_shapes_and_numbers() -> None:
    values = np.arange(6, dtype=np.float32)
    root = state_root(3, [("a", (2, 3), digest_of(values))])
    assert root.hex() == "9752f669fce438a1fc20b35b7819d2cd20a0ae27ddd0ec02fe91cba9873b9d7b"
    others = [
        state_root(4, [("a", (2, 3), digest_of(values))]),
        state_root(3, [("b", (2, 3), digest_of(values))]),
        state_root(3, [("a", (3, 2), digest_of(values))]),
        state_root(3, [("a", (2, 3), digest_of(values + 1))]),
    ]
    assert len({root, *others}) == 5
