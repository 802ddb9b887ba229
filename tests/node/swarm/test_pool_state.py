"""What a pool's state comes to, whatever it is fed, in whatever order: thousands of inputs a second, drawn by seeds.

`python -m benchmarks.orders` goes on with other seeds.
"""

import pytest

from node.swarm.counts import COUNTS
from protocol.messages import Message
from tests.node.swarm import pool_plays as plays
from tests.node.swarm.pools import Pool, differing, stands

SEEDS = range(12)


def test_the_same_inputs_give_the_same_facts_in_the_same_order() -> None:
    for seed in SEEDS:
        inputs = plays.everything(seed)
        one, other = Pool().play(inputs), Pool().play(inputs)
        assert one.news == other.news and not differing(stands(one), stands(other))
        assert len(one.news) > 200


@pytest.mark.parametrize("most", [0.5, 8.0, 50.0])
def test_in_whatever_order_words_arrive_the_same_stands(most: float) -> None:
    """Late by up to so many seconds, some of them twice: an order that no honest network makes."""
    for seed in SEEDS:
        assert plays.reordered(seed, most) == {}, f"seed {seed}"


def test_a_term_whose_block_is_replaced_leaves_what_a_replay_without_it_gives() -> None:
    for seed in SEEDS:
        assert plays.phantom(seed) == {}, f"seed {seed}"


def test_what_a_chain_took_back_and_tells_again_is_as_if_it_had_stood() -> None:
    for seed in SEEDS:
        assert plays.told_again(seed) == {}, f"seed {seed}"


def test_who_has_no_right_moves_nothing_and_nobody_honest_is_blamed() -> None:
    for seed in range(60):
        assert plays.without_right(seed) == {}, f"seed {seed}"


def test_whoever_lies_what_stands_is_by_authors_who_had_the_right() -> None:
    for seed in range(30):
        assert plays.unrightful(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("kind", COUNTS, ids=lambda one: one.__name__)
def test_no_table_grows_with_what_one_author_says(kind: type[Message]) -> None:
    assert plays.growth(kind) <= 0


@pytest.mark.parametrize("fault", plays.FAULTS, ids=lambda one: one.__name__)
def test_a_fault_that_is_put_back_is_found(fault: plays.Planted) -> None:
    finds = plays.FAULTS[fault]
    plays.honest()  # without the fault
    with fault():
        assert any(finds(seed) for seed in range(40))
