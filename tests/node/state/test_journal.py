import sqlite3
from pathlib import Path
from typing import Any

import pytest

from node.errors import StateError
from node.state.journal import Journal
from protocol.earnings import Accepted, Leaf
from protocol.identity import NodeKey, address_bytes

MOST_SAID = 200_000

NODE = NodeKey(b"n" * 32).address


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


def test_a_slot_takes_one_statement_and_repeats_it(journal: Journal) -> None:
    journal.say("commitment", b"slot", b"first")
    journal.say("commitment", b"slot", b"first")
    with pytest.raises(StateError, match="twice"):
        journal.say("commitment", b"slot", b"second")
    assert journal.said("commitment", b"slot") == b"first"


def test_a_word_said_again_makes_no_verdict_forgotten_however_many_counters_were_kept(journal: Journal) -> None:
    journal.say("verdict", b"work", b"first")
    journal.note_tallies(b"run", [("part", str(number), 0) for number in range(1_024)])
    # As after three hundred thousand writes of counters, each of which is a row with the next number.
    journal._db.execute("UPDATE tallies SET rowid = rowid + ?", (MOST_SAID // 1_024 * 1_024 + 1_024,))
    journal.note_tallies(b"run", [("part", str(number), 1) for number in range(1_024)])
    journal.say("verdict", b"work", b"first")
    assert journal.said("verdict", b"work") == b"first"
    with pytest.raises(StateError, match="twice"):
        journal.say("verdict", b"work", b"second")


def test_submission_indices_go_on_where_they_stopped(journal: Journal) -> None:
    root = b"\xff" * 32
    for index in range(3):
        journal.say("commitment", root + index.to_bytes(8, "big"), bytes([index]))
    journal.say("commitment", b"\x00" * 40, b"another policy")
    assert journal.count_said("commitment", root) == 3
    assert journal.last_said("commitment", 2) == [b"\x02", b"another policy"]


def test_a_file_is_consumed_once_and_survives_reopening(tmp_path) -> None:
    first = Journal(tmp_path / "j.sqlite")
    first.used.consume([b"a", b"b"], 3)
    first.close()
    again = Journal(tmp_path / "j.sqlite")
    assert again.used.consumed() == {b"a": 3, b"b": 3}
    with pytest.raises(sqlite3.IntegrityError):
        again.used.consume([b"a"], 4)
    again.used.consume([b"c"], 2)
    assert sorted(again.used.forget_consumed(3)) == [b"a", b"b"]
    assert again.used.consumed() == {b"c": 2}
    again.close()


def test_what_was_consumed_can_be_asked_for_from_a_step_on(journal: Journal) -> None:
    for step in range(5):
        journal.used.consume([bytes([step]) * 32 + b"\0\0\0\1", bytes([step]) * 32 + b"\0\0\0\2"], step)
    assert set(journal.used.consumed(3).values()) == {3, 4} and len(journal.used.consumed(3)) == 4
    assert journal.used.trained_by(2) == [bytes([4]) * 32, bytes([3]) * 32]


def test_what_was_accepted_may_be_refused_and_never_the_other_way_round(journal: Journal) -> None:
    for name in (b"a", b"b", b"c"):
        journal.files.add_file(name, b"policy", 0, 10, made_at=5.0, epoch=7, work=b"work " + name)
    journal.files.judge_file(b"a", "accepted")
    journal.files.judge_file(b"b", "rejected")
    journal.files.judge_file(b"b", "accepted")
    states = {one.root: one.state for one in journal.files.records(9)}
    assert states == {b"a": "accepted", b"b": "rejected", b"c": "pending"}
    journal.files.judge_file(b"a", "rejected")
    assert journal.files.work_done(b"").counts == {"rejected": 2, "pending": 1}


def test_a_damaged_journal_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "j.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match="journal"):
        Journal(tmp_path / "j.sqlite")


def accepted(work: int, epoch: int = 1, units: int = 10, node: str = "worker") -> Accepted:
    return Accepted(1, node, epoch, work.to_bytes(32), units)  # type: ignore[arg-type]


def test_a_work_is_named_once_and_no_more_after_a_table_has_covered_it(tmp_path: Path) -> None:
    first = Journal(tmp_path / "j.sqlite")
    assert first.pay.name("me", [accepted(1), accepted(2, epoch=2)]) == [accepted(1), accepted(2, epoch=2)]
    first.close()
    again = Journal(tmp_path / "j.sqlite")
    assert again.pay.name("me", [accepted(1, units=11), accepted(3)]) == [accepted(3)], "the first word stands"
    assert again.pay.unsigned("me", 1, 3) == {1: [accepted(1), accepted(3)], 2: [accepted(2, epoch=2)]}
    assert again.pay.unsigned("me", 1, 2).keys() == {1} and not again.pay.unsigned("other", 1, 3)
    again.pay.signed("me", [accepted(1)], 7)
    assert again.pay.unsigned("me", 1, 2) == {1: [accepted(3)]}
    assert again.pay.leaf("me", 1, accepted(1).work) == accepted(1)
    again.pay.forget_epochs(1)
    assert again.pay.leaf("me", 1, accepted(1).work) is None and again.pay.unsigned("me", 1, 9).keys() == {2}
    assert again.pay.name("me", [accepted(1), accepted(4, epoch=2)]) == [accepted(4, epoch=2)]
    again.close()


def test_own_verdicts_that_are_no_leaves_are_found_with_what_was_found_on_looking_again(journal: Journal) -> None:
    for number in (1, 2, 3):
        journal.say("verdict", number.to_bytes(32), b"word %d" % number)
    journal.say("recheck", (3).to_bytes(32), b"looked")
    journal.pay.name("me", [accepted(1)])
    assert journal.pay.unnamed("me", 9) == [(b"word 3", b"looked"), (b"word 2", None)]
    assert journal.pay.unnamed("me", 1) == [(b"word 3", b"looked")]


def test_leaves_are_bounded_by_validator_and_old_epochs_go_first(journal: Journal) -> None:
    journal.pay.take_leaves("honest", 7, [accepted(n) for n in range(3)], most=4)
    journal.pay.take_leaves("flood", 7, [accepted(n, epoch=n) for n in range(100)], most=4)
    assert journal.pay.certified_units("worker", 1).keys() == {1, 96, 97, 98, 99}
    assert journal.pay.certified_units("worker", 2) == {}, "no work is named by two alike"
    journal.pay.take_leaves("other", 7, [accepted(2)], most=4)
    journal.pay.take_leaves("liar", 7, [accepted(1, units=99)], most=4)
    assert journal.pay.certified_units("worker", 2) == {1: 10}
    roots = [(1, "honest", 7), (1, "other", 7), (1, "liar", 7), (1, "other", 8)]
    assert journal.pay.named("worker", roots, 2) == {accepted(2).work: 10}  # type: ignore[arg-type]
    assert not journal.pay.named("worker", roots[:1], 2) and not journal.pay.named("another", roots, 1)  # type: ignore[arg-type]


def leaf(work: int, units: int = 10, node: str = NODE) -> Leaf:
    return Leaf(address_bytes(node), work.to_bytes(32), units)


def test_what_a_quorum_of_those_who_counted_names_alike_is_earned_once_and_nothing_that_was_refused(
    journal: Journal,
) -> None:
    book = journal.earned
    book.note_leaves(5, "one", 1, b"r" * 32, b"raw", [leaf(1), leaf(2, 20), leaf(3)])
    book.note_leaves(5, "one", 2, b"s" * 32, b"more", [leaf(2, 99), leaf(4)])
    book.note_leaves(5, "two", 1, b"t" * 32, b"others", [leaf(1), leaf(2, 20), leaf(3, 11), leaf(4)])
    book.note_leaves(6, "gone", 1, b"t" * 32, b"its", [leaf(5)])
    book.note_leaves(6, "one", 1, b"r" * 32, b"its own", [leaf(5)])

    def earned(epoch: int, quorum: int) -> int:
        bench: Any = ["one", "two"] if epoch == 6 else ["one", "two", "gone"]
        counted = book.counted(epoch, bench, quorum)
        assert {node for node, *_ in counted} <= {NODE}
        return sum(units for *_, units in counted)

    assert (earned(5, 2), earned(6, 2)) == (40, 0), "the first word of each on a work"
    assert earned(5, 3) == 0
    before = book.read(5)
    assert book.refuse(leaf(2).work, 5, b"proof") and not book.refuse(leaf(2).work, 5, b"again")
    assert earned(5, 2) == 20 and book.refusals(0, 9) == [b"proof"]
    assert before != book.read(5) != book.read(6), "what was reckoned is reckoned anew"
    named: Any = ["one", "two"]
    assert {who: len(works) for who, works in book.named_by(5, named).items()} == {"one": 4, "two": 4}
    assert [row[1:3] for row in book.roots(5, 5)] == [("one", 1), ("one", 2), ("two", 1)]


def test_a_root_that_was_read_whole_stays_so_and_its_number_is_known(journal: Journal) -> None:
    book = journal.earned
    assert book.newest_number("me", 5) == 0
    book.note_root(5, "me", 7, b"r" * 32, b"raw", whole=False)
    assert not book.roots(5, 5, True) and book.roots(5, 5) and book.newest_number("me", 5) == 7
    book.note_leaves(5, "me", 7, b"r" * 32, b"raw", [leaf(1)])
    book.note_root(5, "me", 7, b"r" * 32, b"raw", whole=False)
    assert len(book.roots(5, 5, True)) == 1 and book.roots_of("me") == {5: [b"raw"]}  # type: ignore[arg-type]
    journal.pay.forget_epochs(5)
    assert not book.roots_of("me")  # type: ignore[arg-type]


def test_when_a_word_was_said_first_is_remembered(journal: Journal) -> None:
    journal.say("verdict", b"\x03", b"word", 7.5)
    journal.say("verdict", b"\x03", b"word", 9.0)  # the first time counts
    assert (journal.said_at("verdict", b"\x01"), journal.said_at("verdict", b"\x03")) == (None, 7.5)
