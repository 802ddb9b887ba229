"""The bar on a node's books, on a tenth of its scale."""

from benchmarks.books import EVERY, Books
from node.swarm.pool_state import Passed
from node.swarm.register import CLOSED_AFTER
from tests.node.swarm.pools import weight

BAR = 7 * 2**20
"""Bytes, of fifty workers' works with five validators' verdicts."""
WORKERS, POLICIES = 5, 80
TABLES = ("_works", "_slots", "_nodes", "_of", "_early", "_read")


def test_books_of_eighty_policies_are_those_of_the_last_sixteen() -> None:
    books, weights = Books(WORKERS, 5), list[int]()
    vote_set = books.state.vote_set
    for step in range(POLICIES):
        books.policy(step)
        for number, worker in enumerate(books.workers):
            books.now += EVERY / WORKERS
            books.file(step, worker, number)
        books.facts.tell(books.state.apply(Passed()))
        if not (step + 1) % (POLICIES // 2):
            weights.append(weight([vars(books.state.register)[name] for name in TABLES]) + weight(vote_set._cases))
    assert len(books.state.register._works) == CLOSED_AFTER * WORKERS == len(vote_set._cases)
    assert 0 < weights[1] <= min(BAR * WORKERS / 50, 1.05 * weights[0]), weights
