"""What a person reads when something of the machine fails under the program."""

import sqlite3
from pathlib import Path

import pytest

from cli.errors import CONFIGURATION, describe, exit_code


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
