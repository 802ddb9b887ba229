"""A row that the disk has changed is no row: nobody signed it, so its seal says so."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import structlog.testing

from benchmarks.flips import Flips
from node.errors import StateError
from node.state.journal import FORM, Journal
from node.state.reader import StateFiles
from node.state.tables import SEAL


def changed(path: Path, statement: str) -> None:
    """A row, past its seal: as a disk would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.create_function(SEAL, -1, lambda *_: b"another!", deterministic=True)
        db.execute(statement)


def written(path: Path) -> None:
    journal = Journal(path)
    for number in range(3):
        journal.say("commitment", bytes([number]) * 32, b"said %d" % number, 5.0)
        journal.files.add_file(bytes([number]) * 32, b"p" * 32, number, 10, 1.5, b"r" * 32, 4)
    journal.note_tallies(b"r" * 32, [("work", "files", 3), ("work", "units", 30)])
    journal.remember("lot_master", b"m" * 32)
    journal.close()


def test_no_flipped_bit_of_a_page_is_read_as_a_row(tmp_path: Path) -> None:
    found = Flips(tmp_path, random.Random(3)).pages(24, rows=100)
    assert found.silent == 0 and found.noticed > 12


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("said", "UPDATE said SET at = 6.0 WHERE slot = x'" + "01" * 32 + "'"),
        ("files", "UPDATE files SET units = 1000 WHERE idx = 1"),
        ("facts", "UPDATE facts SET value = x'00' WHERE name = 'lot_master'"),
    ],
)
def test_a_changed_row_is_refused_by_its_table(tmp_path: Path, table: str, statement: str) -> None:
    path = tmp_path / "journal.sqlite"
    written(path)
    Journal(path).close()
    changed(path, statement)
    with pytest.raises(StateError, match=f"this disk has changed 1 rows of its table {table}") as caught:
        Journal(path)
    assert "double signing" in caught.value.remedy


def test_a_counter_that_the_disk_has_changed_is_dropped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    written(path)
    changed(path, "UPDATE tallies SET count = 3000000 WHERE name = 'units'")
    with structlog.testing.capture_logs() as logs:
        journal = Journal(path)
    assert journal.tallies(b"r" * 32) == [("work", "files", 3)]
    assert [(entry["event"], entry["rows"]) for entry in logs] == [("state.rows_dropped", 1)]
    journal.close()


def test_a_journal_of_the_form_before_gets_its_seals_and_keeps_its_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    plain = FORM.schema
    for statement in FORM.schema.split(";"):
        if SEAL in statement:
            lines = [line for line in statement.splitlines() if SEAL not in line]
            bare = "\n".join(lines)
            plain = plain.replace(statement, bare if "PRIMARY KEY (" in bare else bare.replace(",\n)", "\n)"))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"{plain} PRAGMA user_version=1;")
        for number in (7, 3, 5):
            db.execute(
                "INSERT INTO said (rowid, kind, slot, raw) VALUES (?, 'cut', ?, ?)", (number, b"%d" % number, b"r")
            )
        db.execute("INSERT INTO tabled VALUES (4, 10, 10, 1)")
    journal = Journal(path)
    assert journal.said("cut", b"7") == b"r" and [row.epoch for row in journal.pay.tabled(9)] == [4]
    journal.say("cut", b"8", b"new")
    assert journal.last_said("cut", 1) == [b"new"]
    journal.close()
    Journal(path).close()
    with closing(sqlite3.connect(path)) as db:
        assert [row[0] for row in db.execute("SELECT rowid FROM said ORDER BY rowid")] == [3, 5, 7, 8]


def test_other_programs_read_it_without_the_seals_function(tmp_path: Path) -> None:
    written(tmp_path / "journal.sqlite")
    assert len(StateFiles(tmp_path).contributions(10, 0.0)) == 3
