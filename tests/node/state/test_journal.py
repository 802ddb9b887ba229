import sqlite3

import pytest

from node.errors import StateError
from node.state.journal import Journal
from protocol.work import Leaf


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


def test_submission_indices_go_on_where_they_stopped(journal: Journal) -> None:
    root = b"\xff" * 32
    for index in range(3):
        journal.say("commitment", root + index.to_bytes(8, "big"), bytes([index]))
    journal.say("commitment", b"\x00" * 40, b"another policy")
    assert journal.count_said("commitment", root) == 3
    assert journal.last_said("commitment", 2) == [b"\x02", b"another policy"]


def test_a_file_is_consumed_once_and_survives_reopening(tmp_path) -> None:
    first = Journal(tmp_path / "j.sqlite")
    first.consume([b"a", b"b"], 3)
    first.close()
    again = Journal(tmp_path / "j.sqlite")
    assert again.consumed() == {b"a": 3, b"b": 3}
    with pytest.raises(sqlite3.IntegrityError):
        again.consume([b"a"], 4)
    again._db.execute("ROLLBACK")
    again.forget_consumed(3)
    assert again.consumed() == {}
    again.close()


def test_what_was_consumed_can_be_asked_for_from_a_step_on(journal: Journal) -> None:
    for step in range(5):
        journal.consume([bytes([step]) * 32 + b"\0\0\0\1", bytes([step]) * 32 + b"\0\0\0\2"], step)
    assert set(journal.consumed(3).values()) == {3, 4} and len(journal.consumed(3)) == 4
    assert journal.trained_by(2) == [bytes([4]) * 32, bytes([3]) * 32]


def test_accepted_files_wait_for_one_epoch_each(journal: Journal) -> None:
    for name in (b"a", b"b", b"c"):
        journal.add_file(name, b"policy", 0, 10, made_at=5.0)
    journal.judge_file(b"a", "accepted")
    journal.judge_file(b"b", "rejected")
    journal.judge_file(b"b", "accepted")  # a verdict is final
    file = Leaf(b"policy", 0, b"a", 10)
    assert journal.unpaid_files(before=6.0) == [file]
    journal.assign_epoch([b"a"], 7)
    assert journal.unpaid_files(before=6.0) == []
    assert journal.files_of_epoch(7) == [file]
    assert journal.file_counts(b"") == {"accepted": 1, "rejected": 1, "pending": 1}


def test_a_damaged_journal_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "j.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match="journal"):
        Journal(tmp_path / "j.sqlite")


def test_what_a_validator_heard_is_bounded_by_node_and_accepted_work_goes_last(journal: Journal) -> None:
    rows = [(bytes([n]), "thief", 10, n, False) for n in range(9)]
    journal.note_heard([(b"x", "other", 7, 0, False), (b"good", "thief", 5, 0, True), *rows], most=4)
    assert journal.heard_of("thief") == {b"good": 5, b"\x08": 10, b"\x07": 10, b"\x06": 10}
    journal.note_heard([(b"x", "other", 7, 3, True), (b"good", "thief", 5, 9, False)], most=4)
    assert journal.note_shown("other", 1, b"r", [b"x", b"y"], 3) == [b"y"]
    assert journal.note_shown("thief", 1, b"r", [b"good", b"\x08"], 3) == [b"\x08"], "accepted stays accepted"
    assert journal.was_shown("other", 1, b"r") and not journal.was_shown("other", 2, b"r")
    assert journal.claims_elsewhere(1, b"r") == []
    journal.note_shown("other", 2, b"s", [b"x"], 4)
    assert journal.claims_elsewhere(2, b"s") == [(1, b"r")] and journal.claims_elsewhere(1, b"r") == [(2, b"s")]
    journal.forget_work(4)
    assert journal.claims_elsewhere(2, b"s") == [] and journal.heard_of("other") == {}
