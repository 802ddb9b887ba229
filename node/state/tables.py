"""SQLite files of this node: opened whole and in the form that this program writes, or refused with what to do.

A form has a number (`user_version`). One of before is brought forward by its steps in one transaction; one of later, or
one that nothing leads on from, is refused at once with both numbers. What can be had again (`cache`) is set aside and
made anew instead. Errors are told apart by SQLite's code, not by its words.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog
from blake3 import blake3

from node.errors import StateError

HEAD = b"SQLite format 3\0"
VERSION_AT = slice(60, 64)
"""Where the file's head has `user_version`, big-endian: to SQLite a look at it would be writing."""
AFTERWARDS = ("", "-wal", "-shm")
log = structlog.get_logger()


class SchemaForm(NamedTuple):
    """what: completes "cannot use ..."; version: of this program; schema: its statements, which leave alone what is
    there; steps: version -> statements that lead to the next one; cache: whether all of it can be had again; care: what
    not to do about a file that cannot be used; counts: tables whose rows nobody misses, if the disk changes some."""

    what: str
    version: int
    schema: str
    steps: Mapping[int, str] = {}
    cache: bool = False
    care: str = ""
    counts: tuple[str, ...] = ()


SEAL = "row_seal"


def sealed(columns: str) -> str:
    """A column of a table's statement: 8 bytes of BLAKE3 over these others, which SQLite computes as it writes a row.
    Its own check sees no bit that flips inside a cell."""
    return f"seal BLOB GENERATED ALWAYS AS ({SEAL}({columns})) STORED"


def resealed(schema: str) -> str:
    """Statements that copy each sealed table of this schema into one with seals."""
    found: list[str] = []
    for statement in filter(lambda one: SEAL in one, schema.split(";")):
        name, columns = re.search(r"EXISTS (\w+)", statement)[1], re.search(rf"{SEAL}\(([^)]*)\)", statement)[1]  # type: ignore[index]
        every = columns if "WITHOUT ROWID" in statement else f"rowid, {columns}"
        found += [
            f"ALTER TABLE {name} RENAME TO before_{name}",
            statement,
            f"INSERT INTO {name} ({every}) SELECT {every} FROM before_{name}",  # noqa: S608 - the schema's own words
            f"DROP TABLE before_{name}",
        ]
    return ";".join(found)


def _seal(*cells: object) -> bytes:
    # Each with its kind: a number and the text of it are not the same.
    return blake3(b"\0".join(f"{type(cell).__name__}:{cell!r}".encode() for cell in cells)).digest(8)


def _check_rows(db: sqlite3.Connection, path: Path | str, form: SchemaForm) -> None:
    """Compare all rows with their seals. Raises StateError."""
    for statement in filter(lambda one: SEAL in one, form.schema.split(";")):
        name, seal = re.search(r"EXISTS (\w+)", statement)[1], re.search(rf"{SEAL}\([^)]*\)", statement)[0]  # type: ignore[index]
        (wrong,) = db.execute(f"SELECT count(*) FROM {name} WHERE seal IS NOT {seal}").fetchone()  # noqa: S608 - ours
        if wrong and name in form.counts:
            log.warning("state.rows_dropped", file=str(path), table=name, rows=wrong, why="this disk has changed them")
            db.execute(f"DELETE FROM {name} WHERE seal IS NOT {seal}")  # noqa: S608 - ours
        elif wrong:
            raise _unusable(path, form, f"this disk has changed {wrong} rows of its table {name}", _MEND_DAMAGE)


def open_table(
    path: Path | str, form: SchemaForm, *, durable: bool = True, locked_seconds: float = 30.0
) -> sqlite3.Connection:
    """A connection in autocommit, for one thread at a time. durable: each commit is on the disk when it returns.
    locked_seconds: for which another program may hold the file: a backup copies some hundred megabytes.
    Blocking; raises StateError."""
    if str(path) == ":memory:":
        return _opened(path, form, durable, locked_seconds)
    place = Path(path)
    try:
        return _opened(place, form, durable, locked_seconds)
    except (StateError, sqlite3.DatabaseError) as error:
        if not form.cache or _is_passing(error):
            raise _told(error, place, form) from error
        log.warning("state.set_aside", file=str(place), why=str(error))
        for ending in AFTERWARDS:
            part = place.with_name(place.name + ending)
            if part.exists():
                os.replace(part, place.with_name(f"{place.name}.damaged{ending}"))
    try:
        return _opened(place, form, durable, locked_seconds)
    except sqlite3.DatabaseError as error:
        raise refusal(error, place, form) from error


def check_head(path: Path, form: SchemaForm) -> None:
    """Refuse a file that is no database, or is of a later form. Opens nothing with SQLite. Raises StateError."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(path, form, error.strerror or str(error), "make it readable") from error
    if head and not head.startswith(HEAD):
        raise _unusable(path, form, "it is no SQLite database", _MEND_DAMAGE)
    version = int.from_bytes(head[VERSION_AT])
    if head and version > form.version:
        raise _later(path, form, version)


def refusal(error: sqlite3.DatabaseError, path: Path | str, form: SchemaForm) -> StateError:
    """The error to raise instead of SQLite's."""
    return _unusable(path, form, *explained(error))


def explained(error: sqlite3.Error) -> tuple[str, str]:
    """Why a database cannot be used, and what to do about it."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    why, remedy = _CODES.get(code, ("", "look at the disk and at who owns the file, then start again"))
    return f"{why} ({error})" if why else str(error), remedy


_MEND_DAMAGE = "look at the disk; what is left of the file is read by: sqlite3 FILE .dump"
_CODES = {
    sqlite3.SQLITE_CORRUPT: ("the file is damaged", _MEND_DAMAGE),
    sqlite3.SQLITE_NOTADB: ("the file is no SQLite database, or its head is damaged", _MEND_DAMAGE),
    sqlite3.SQLITE_BUSY: (
        "another program has held the file for too long",
        "end the program that reads or copies it (fuser FILE names it), then start again",
    ),
    sqlite3.SQLITE_LOCKED: ("another connection holds the file", "start again"),
    sqlite3.SQLITE_FULL: ("the disk is full", "free some space and start again: nothing that was promised is lost"),
    sqlite3.SQLITE_READONLY: ("the file cannot be written", "give this user access, or mount the disk for writing"),
    sqlite3.SQLITE_PERM: ("the file cannot be used by this user", "give this user access"),
    sqlite3.SQLITE_CANTOPEN: ("the file cannot be opened", "give this user access to the file and its directory"),
    sqlite3.SQLITE_IOERR: ("the disk failed", "look at the disk (dmesg), then start again"),
    sqlite3.SQLITE_NOMEM: ("there is no memory left", "give the node more memory"),
}


@contextmanager
def refused(path: Path | str, form: SchemaForm) -> Iterator[None]:
    """SQLite's errors as StateErrors; a broken constraint, which callers count on, stays what it is."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        raise refusal(error, path, form) from error


def _is_passing(error: Exception) -> bool:
    """Whether the file may be sound: what is locked, full or not permitted says nothing of what stands in it."""
    if isinstance(error, StateError):
        return False
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)


def _told(error: Exception, path: Path, form: SchemaForm) -> Exception:
    return refusal(error, path, form) if isinstance(error, sqlite3.DatabaseError) else error


def _opened(path: Path | str, form: SchemaForm, durable: bool, locked_seconds: float) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=locked_seconds)
    try:
        db.create_function(SEAL, -1, _seal, deterministic=True)
        # WAL lets other programs read while the node writes.
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        _bring_forward(db, path, form)
    except BaseException:
        db.close()
        raise
    return db


def _bring_forward(db: sqlite3.Connection, path: Path | str, form: SchemaForm) -> None:
    there = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if there:
        if version > form.version:
            raise _later(path, form, version)
        # The quick one does not look whether an index leads to each row.
        said = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if said != "ok":
            raise _unusable(path, form, f"the file is damaged ({said})"[:300], _MEND_DAMAGE)
        if version < form.version:
            _step(db, path, form, version)
        if version == form.version:
            return _check_rows(db, path, form)
    # At once: two programs that make one file wait for each other.
    db.executescript(f"BEGIN IMMEDIATE; {form.schema} PRAGMA user_version={form.version}; COMMIT;")


def _step(db: sqlite3.Connection, path: Path | str, form: SchemaForm, version: int) -> None:
    """From one number to that of this program, all or nothing. A file without a number is of the first form, if it
    looks so."""
    if version == 0:
        if (lacks := _differs(db, form)) is not None:
            raise _earlier(path, form, version, lacks)
        version = 1
    with db:
        db.execute("BEGIN IMMEDIATE")
        for number in range(version, form.version):
            if number not in form.steps:
                raise _earlier(path, form, version, f"nothing leads from {number} to {number + 1}")
            for statement in filter(str.strip, form.steps[number].split(";")):
                db.execute(statement)
        db.execute(f"PRAGMA user_version={form.version}")


def _differs(db: sqlite3.Connection, form: SchemaForm) -> str | None:
    """In what a file is not of the first form: None if it has its tables, their columns and keys. Tables that lack are
    made."""
    with closing(sqlite3.connect(":memory:")) as wanted:
        wanted.create_function(SEAL, -1, _seal, deterministic=True)
        wanted.executescript(form.schema)
        for (name,) in wanted.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            found, right = (_columns(one, name) for one in (db, wanted))
            if found and found != right:
                return f"its table {name} is another"
    return None


def _columns(db: sqlite3.Connection, table: str) -> set[tuple[str, int]]:
    """(column, place in the key)."""
    return {(row[1], row[5]) for row in db.execute(f"PRAGMA table_info({table})")}


def _later(path: Path | str, form: SchemaForm, version: int) -> StateError:
    why = f"it has form {version}, and this program knows forms up to {form.version}"
    return _unusable(path, form, why, "go on with the program that wrote it, which is a newer one")


def _earlier(path: Path | str, form: SchemaForm, version: int, lacks: str) -> StateError:
    why = f"it has form {version} ({lacks}), and this program knows form {form.version}"
    return _unusable(path, form, why, "go on with the program that wrote it, or begin with another --state-dir")


def _unusable(path: Path | str, form: SchemaForm, why: str, remedy: str) -> StateError:
    return StateError(f"cannot use {form.what} {path}", why, f"{remedy}; {form.care}" if form.care else remedy)
