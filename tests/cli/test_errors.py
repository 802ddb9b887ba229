"""What a person reads when something of the machine fails under the program."""

import errno
import sqlite3
from pathlib import Path

import pytest

from cli.errors import CONFIGURATION, USAGE, describe, exit_code
from cli.join import MACHINE
from cli.main import main
from node.blobs.errors import StoreBusy, StoreFull


def test_a_full_disk_under_a_database_is_no_bug(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "small.sqlite", isolation_level=None)
    database.execute("PRAGMA max_page_count = 2")
    database.execute("CREATE TABLE facts (value BLOB)")
    with pytest.raises(sqlite3.OperationalError) as full:
        database.execute("INSERT INTO facts VALUES (zeroblob(100000))")
    database.close()
    group = BaseExceptionGroup("tasks", [full.value])
    assert exit_code(group) == CONFIGURATION
    told = describe(group)
    assert "the disk is full" in told.why and "free some space" in told.remedy


@pytest.mark.parametrize(
    ("words", "why", "command"),
    [
        (["statsu"], "No such command 'statsu'", "intellect-node"),
        (["task", "ad"], "No such command 'ad'", "intellect-node task"),
        (["status", "--jsn"], "--jsn", "intellect-node status"),
        (["devnet", "up", "--port", "high"], "unable to parse string as an integer", "intellect-node devnet up"),
        (["devnet", "up", "--port", "70000"], "less than or equal to 65535", "intellect-node devnet up"),
        (["weights", "fetch"], "Missing option '--out'", "intellect-node weights fetch"),
        (["weights", "export"], "Missing argument 'OUT'", "intellect-node weights export"),
        (["status", "more"], "unexpected extra argument", "intellect-node status"),
        (["status", "--state-dir"], "requires an argument", "intellect-node"),
    ],
)
def test_what_the_parser_finds_is_three_lines(
    words: list[str], why: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == USAGE
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert not told.out and lines[0] == "error: the command is not understood" and len(lines) == 3
    assert why.lower() in lines[1].lower()
    assert lines[2].strip() == f"do:  see what it takes: {command} --help"
    # The remedy was tried: it shows what the command takes.
    assert main(lines[2].split(": ", 2)[2].split()[1:]) == 0 and "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["top"], "status --watch"),
        (["update", "--check"], "git pull"),
        (["join", "--share-engine", "2"], "each node has an engine of its own"),
        (["contract", "join", "1", "--invitation", "x"], "intellect-node join theirs.toml"),
    ],
)
def test_of_a_retired_word_its_successor_is_named(
    words: list[str], instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == USAGE
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: the command is retired" and instead in lines[2]


def test_a_group_that_is_named_alone_shows_what_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["task"]) == USAGE
    told = capsys.readouterr()
    assert "error" not in told.err and "Usage: intellect-node task" in told.out + told.err


def test_a_question_that_is_answered_by_no_ends_in_three_lines() -> None:
    class Abort(RuntimeError):
        """As typer's copy of click names it."""

    assert describe(Abort()).what == "nothing was done"


def test_a_disk_that_takes_nothing_more_is_told_as_the_machines_fault() -> None:
    """By exit code 3 a guardian knows that another start may help."""
    for error in (
        StoreFull("the disk has no space left"),
        StoreBusy("no descriptor"),
        OSError(errno.EROFS, "read-only"),
    ):
        assert exit_code(ExceptionGroup("services", [error])) == CONFIGURATION in MACHINE
