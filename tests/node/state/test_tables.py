"""Databases are whole and of this program's form, or are refused at once with what to do."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cli.errors import describe
from node.errors import StateError
from node.state.journal import FORM as JOURNAL
from node.state.journal import Journal
from node.state.tables import SchemaForm, check_head, explained, open_table

ONE = SchemaForm("the book", 1, "CREATE TABLE IF NOT EXISTS said (slot TEXT PRIMARY KEY, raw BLOB);", care="keep it")
STEPS = {1: "ALTER TABLE said ADD COLUMN at REAL", 2: "UPDATE said SET at = 7; CREATE TABLE more (x)"}
THREE = SchemaForm("the book", 3, "CREATE TABLE IF NOT EXISTS said (slot TEXT PRIMARY KEY, raw BLOB, at REAL);", STEPS)
CACHE = ONE._replace(what="what was read", cache=True)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """One with a row, closed."""
    path = tmp_path / "book.sqlite"
    with closing(open_table(path, ONE)) as db:
        db.execute("INSERT INTO said VALUES ('a', x'01')")
    return path


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def test_a_form_is_numbered_and_opened_again_with_what_is_in_it(book: Path) -> None:
    assert version_of(book) == 1
    with closing(open_table(book, ONE)) as db:
        assert db.execute("SELECT * FROM said").fetchall() == [("a", b"\x01")]


def test_an_earlier_form_is_brought_forward_all_steps_or_none(book: Path) -> None:
    broken = THREE._replace(steps={**STEPS, 2: "UPDATE said SET at = 7; NONSENSE"})
    with pytest.raises(StateError):
        open_table(book, broken)
    assert version_of(book) == 1
    with closing(open_table(book, THREE)) as db:
        assert db.execute("SELECT * FROM said").fetchall() == [("a", b"\x01", 7.0)]
    assert version_of(book) == 3


def test_a_later_form_is_refused_with_both_numbers_before_anything_is_written(book: Path) -> None:
    open_table(book, THREE).close()
    before = book.read_bytes()
    for refuse in (lambda: check_head(book, ONE), lambda: open_table(book, ONE)):
        with pytest.raises(StateError) as caught:
            refuse()
        assert "form 3" in caught.value.why and "up to 1" in caught.value.why and "newer" in caught.value.remedy
        assert "keep it" in caught.value.remedy
    assert book.read_bytes() == before


@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        (ONE.schema, True),
        ("CREATE TABLE other (x);", True),  # a table that lacks is made
        ("CREATE TABLE said (slot TEXT, raw BLOB, PRIMARY KEY (slot, raw));", False),
        ("CREATE TABLE said (slot TEXT PRIMARY KEY);", False),
    ],
)
def test_a_file_without_a_number_is_taken_if_it_looks_right_and_else_refused_at_once(
    tmp_path: Path, schema: str, taken: bool
) -> None:
    path = tmp_path / "old.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(schema)
    if taken:
        open_table(path, ONE).close()
        assert version_of(path) == 1
    else:
        with pytest.raises(StateError, match="form 0 .* knows form 1"):
            open_table(path, ONE)
        assert version_of(path) == 0


def test_a_step_that_nobody_wrote_is_refused(book: Path) -> None:
    with pytest.raises(StateError, match="nothing leads from 1 to 2"):
        open_table(book, THREE._replace(steps={}))


def damaged_page(path: Path) -> None:
    with closing(open_table(path, ONE)) as db:
        db.executemany("INSERT INTO said VALUES (?, zeroblob(500))", [(str(n),) for n in range(200)])
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    data[8192:8200] = b"\xff" * 8
    path.write_bytes(data)


def other_bytes(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 300)


@pytest.mark.parametrize("damage", [damaged_page, other_bytes])
def test_damage_is_found_at_the_start_and_what_can_be_had_again_is_made_anew(
    book: Path, damage: Callable[[Path], None]
) -> None:
    damage(book)
    with pytest.raises(StateError, match="damaged|no SQLite") as caught:
        open_table(book, ONE)
    assert ".dump" in caught.value.remedy and "free" not in caught.value.remedy
    with closing(open_table(book, CACHE)) as db:
        assert db.execute("SELECT count(*) FROM said").fetchone() == (0,)
    assert book.with_name("book.sqlite.damaged").exists(), "it is set aside, not thrown away"


def test_a_file_that_another_program_holds_is_not_damaged(book: Path) -> None:
    with (
        closing(sqlite3.connect(book, isolation_level=None)) as other,
        closing(open_table(book, CACHE, locked_seconds=0.1)) as db,
    ):
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError) as caught:
            db.execute("INSERT INTO said VALUES ('b', x'')")
        why, remedy = explained(caught.value)
        assert "another program" in why and "fuser" in remedy
        assert describe(caught.value).remedy == remedy
        other.execute("ROLLBACK")
    assert not book.with_name("book.sqlite.damaged").exists()


async def test_the_journal_tells_a_full_disk_from_damage_and_from_a_reader(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    journal._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(StateError, match="the disk is full") as caught:
        await journal.do(journal.remember, "much", bytes(10**6))
    assert "free some space" in caught.value.remedy
    journal._db.execute("PRAGMA query_only = 1")
    with pytest.raises(StateError, match="cannot be written"):
        await journal.do(journal.remember, "x", b"")
    journal.close()
    assert version_of(tmp_path / "journal.sqlite") == JOURNAL.version
    assert "older copy" in JOURNAL.care, "one that is put in its place would sign twice"
