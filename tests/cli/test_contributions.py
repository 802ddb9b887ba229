"""What a node did, as its journal has it, with a daemon and without."""

import json
import time
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len

from cli.contributions import pay_state, row_of
from cli.main import main
from node.state.journal import Journal
from node.state.made import UNCLEAR, FileRecord
from node.state.pay import PayRecord

RUN = b"r" * 32


@pytest.fixture
def state(tmp_path: Path, runtime: Path) -> Path:
    """A worker's state directory with three files, an hour apart."""
    journal = Journal(tmp_path / "journal.sqlite")
    now = time.time()
    for number, name in enumerate(("old", "refused", "new")):
        made_at, epoch = now - 7200 + 3600 * number, 41 + number
        journal.files.add_file(name.encode() * 4, b"policy", number, 1000, made_at, RUN, 7 + number, epoch)
    journal.files.judge_file(b"old" * 4, "accepted")
    journal.files.judge_file(b"refused" * 4, "rejected")
    journal.files.note_reasons(b"refused" * 4, "copied, \x1b[31mlate" + "x" * 200)
    journal.close()
    return tmp_path


def test_each_file_is_told_with_its_verdict_its_reason_and_where_its_pay_is(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contributions", "--state-dir", str(state), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["contributions"]
    assert [(row["step"], row["verdict"], row["pay"], row["epoch"]) for row in rows] == [
        (9, "pending", "waits for verdicts", 43),
        (8, "rejected", "none", 42),
        (7, "accepted", "not looked at yet", 41),
    ]
    assert rows[1]["reason"].startswith("copied") and rows[0]["units"] == 1000


def test_it_can_be_bounded_by_number_and_by_time(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def steps(*words: str) -> list[int]:
        assert main(["contributions", "--state-dir", str(state), "--json", *words]) == 0
        return [row["step"] for row in json.loads(capsys.readouterr().out)["contributions"]]

    assert steps("--limit", "1") == [9] and steps("--since", "90m") == [9, 8]
    assert main(["contributions", "--state-dir", str(state), "--since", "yesterday"]) == 2


def test_the_table_fits_into_80_columns_and_is_clean(
    state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["contributions", "--state-dir", str(state)]) == 0
    shown = capsys.readouterr().out
    assert max(cell_len(line) for line in shown.splitlines()) <= 80 and "\x1b" not in shown
    assert "waits for verdicts" in shown


KNOWN = PayRecord(b"", 40, 41, 0, 30, 20, 2, started_at=1000, epoch_seconds=10, window=100)


@pytest.mark.parametrize(
    ("epoch", "line", "named", "pay"),
    [
        (42, None, 1, "waits for roots"),
        (42, None, 2, "certified"),
        (41, 30, 2, "in the table"),
        (41, 20, 2, "claimed"),
        (41, 0, 2, "missed"),
        (41, UNCLEAR, 2, "unclear"),
        (41, None, 2, "unclear"),
    ],
)
def test_each_file_is_told_where_its_pay_is_and_only_what_is_certified_when_it_can_be_claimed(
    epoch: int, line: int | None, named: int, pay: str
) -> None:
    record = FileRecord(b"", b"", 0, 1, 0.0, "accepted", epoch, 1, None, line, named)
    row = row_of(record, KNOWN, None)
    assert (row["pay"], row["claimable_at"]) == (pay, 1530 if pay == "certified" else None)
    assert pay_state(msgspec.structs.replace(record, epoch=42, line=None), None) == "not looked at yet"


def test_a_directory_without_a_journal_is_a_clear_error(
    tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contributions", "--state-dir", str(tmp_path)]) == 3
    assert "no journal in" in capsys.readouterr().err
