import sqlite3

import pytest

from node.errors import StateError
from node.state.journal import MOST_SAID, Journal
from protocol.statements import Accepted


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
    assert journal.files.own_works(7) == [(b"work a", 10), (b"work c", 10)]
    journal.files.judge_file(b"a", "rejected")
    assert journal.files.work_done(b"").counts == {"rejected": 2, "pending": 1}


def test_a_damaged_journal_is_a_clear_error(tmp_path) -> None:
    (tmp_path / "j.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(StateError, match="journal"):
        Journal(tmp_path / "j.sqlite")


def accepted(work: int, epoch: int = 1, units: int = 10, node: str = "worker") -> Accepted:
    return Accepted(1, node, epoch, work.to_bytes(32), units)  # type: ignore[arg-type]


def test_a_work_is_certified_once_and_the_signature_is_remembered(tmp_path) -> None:
    first = Journal(tmp_path / "j.sqlite")
    assert first.pay.certify("me", accepted(1), b"signature") == b"signature"
    first.close()
    again = Journal(tmp_path / "j.sqlite")
    assert again.pay.certify("me", accepted(1), b"another") == b"signature"
    assert again.pay.certify("me", accepted(1, units=11), b"another") is None
    assert again.pay.certificate("me", 1, accepted(1).work) == (accepted(1), b"signature")
    again.pay.forget_epochs(1)
    assert again.pay.certificate("me", 1, accepted(1).work) is None
    again.close()


def test_certificates_are_bounded_by_validator_and_old_epochs_go_first(journal: Journal) -> None:
    journal.pay.take_certificates([("honest", accepted(n), b"h") for n in range(3)], most=4)
    journal.pay.take_certificates([("flood", accepted(n, epoch=n), b"f") for n in range(100)], most=4)
    assert journal.pay.certified_units("worker", 1).keys() == {1, 96, 97, 98, 99}
    assert journal.pay.certified_units("worker", 2) == {}, "no work has two signatures that agree"
    journal.pay.take_certificates([("other", accepted(2), b"o"), ("liar", accepted(1, units=99), b"l")], most=4)
    assert journal.pay.certified_units("worker", 2) == {1: 10}


def test_earned_works_count_once_the_less_of_two_claims_and_none_that_was_refused(journal: Journal) -> None:
    one, two = (b"1" * 32, 10), (b"2" * 32, 20)
    assert journal.earned.note_earned(5, "worker", [one], (b"r" * 32, 9), 100)
    assert not journal.earned.note_earned(5, "worker", [one], (b"s" * 32, 9), 100)
    assert journal.earned.note_earned(5, "worker", [one, two], (b"t" * 32, 9), 100)
    assert journal.earned.sources(0, 9) == [(5, "worker", b"t" * 32, 9)], (
        "the blob that holds all took the other's place"
    )
    journal.earned.note_earned(5, "worker", [(two[0], 7)], (b"u" * 32, 9), 100)
    assert journal.earned.earned_between(0, 9) == [(5, "worker", 17)] and len(journal.earned.sources(0, 9)) == 2
    assert journal.earned.refuse(two[0], 5, b"proof") and not journal.earned.refuse(two[0], 5, b"again")
    assert journal.earned.earned_between(0, 9) == [(5, "worker", 10)] and journal.earned.refusals(0, 9) == [b"proof"]
    assert journal.earned.note_earned(6, "flood", [(n.to_bytes(32), 1) for n in range(1000)], (b"r" * 32, 9), 100)
    assert journal.earned.earned_between(6, 6) == [(6, "flood", 100)]


def test_when_a_word_was_said_first_is_remembered(journal: Journal) -> None:
    journal.say("verdict", b"\x03", b"word", 7.5)
    journal.say("verdict", b"\x03", b"word", 9.0)  # the first time counts
    assert (journal.said_at("verdict", b"\x01"), journal.said_at("verdict", b"\x03")) == (None, 7.5)
