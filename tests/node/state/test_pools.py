"""A state directory that goes from pool to pool: nothing that was promised is lost, nothing is said to strangers."""

from pathlib import Path

from node.state.directory import JOURNAL_NAME, journal_of
from node.state.journal import Journal


def promise(journal: Journal, word: bytes) -> None:
    journal.say("commitment", b"policy 0, index 0", word)


def promised(journal: Journal) -> bytes | None:
    return journal.said("commitment", b"policy 0, index 0")


def opened(directory: Path, pool: str) -> Journal:
    return journal_of(directory, Journal(directory / JOURNAL_NAME), pool)


def test_a_journal_of_before_belongs_to_the_pool_that_is_joined_first(tmp_path: Path) -> None:
    journal = Journal(tmp_path / JOURNAL_NAME)
    promise(journal, b"a")
    assert promised(journal_of(tmp_path, journal, "pool 1")) == b"a"


def test_another_pool_knows_nothing_and_the_first_one_everything_when_the_node_comes_back(tmp_path: Path) -> None:
    first = opened(tmp_path, "pool 1")
    promise(first, b"one")
    first.close()
    second = opened(tmp_path, "pool 2")
    assert promised(second) is None
    promise(second, b"two")
    second.close()
    for pool, word in (("pool 1", b"one"), ("pool 1", b"one"), ("pool 2", b"two")):
        journal = opened(tmp_path, pool)
        assert promised(journal) == word
        journal.close()


def test_a_crash_between_the_two_moves_costs_nothing(tmp_path: Path) -> None:
    for pool, word in (("pool 1", b"one"), ("pool 2", b"two")):
        journal = opened(tmp_path, pool)
        promise(journal, word)
        journal.close()
    (tmp_path / JOURNAL_NAME).rename(tmp_path / "journal-of-pool-2-set-aside.sqlite")  # and pool 1's is not yet back
    journal = opened(tmp_path, "pool 1")
    assert promised(journal) == b"one"
    journal.close()
