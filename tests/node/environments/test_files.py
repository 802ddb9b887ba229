"""Files of rows: what is read, and what is told as one mistake of the file."""

import bz2
import gzip
import json
import lzma
import pickle
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.environments.dataset import Arguments, _read
from node.environments.errors import DatasetError
from node.environments.files import read_rows

ROWS = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(30)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = "question,answer\n" + "".join(f"q{i},#### {i}\n" for i in range(30))


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.jsonl", LINES)


def arrow(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


KINDS = {
    "gzip": lambda path: path.write_bytes(gzip.compress(LINES.encode())),
    "bzip2": lambda path: path.write_bytes(bz2.compress(LINES.encode())),
    "xz": lambda path: path.write_bytes(lzma.compress(LINES.encode())),
    "zip": zipped,
    "arrow": arrow,
    "pickle": lambda path: path.write_bytes(pickle.dumps(ROWS)),
    "array": lambda path: path.write_text("\n " + json.dumps(ROWS)),
    "several lines": lambda path: path.write_text(json.dumps({"rows": ROWS}, indent=1)),
    "csv": lambda path: path.write_text("\ufeff" + CSV),
    "tsv": lambda path: path.write_text(CSV.replace(",", "\t")),
    "semicolons": lambda path: path.write_text(CSV.replace(",", ";")),
    "utf-16 ": lambda path: path.write_bytes(LINES.encode("utf-16")),
    "utf-16le": lambda path: path.write_bytes(LINES.encode("utf-16-le")),
    "utf-16be": lambda path: path.write_bytes(LINES.encode("utf-16-be")),
    "html": lambda path: path.write_text("<!doctype html>\n<html></html>"),
    "git lfs": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "no parquet": lambda path: path.write_text(LINES),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [False, True])
def test_a_file_of_another_kind_is_one_mistake_that_says_what_it_is(tmp_path: Path, kind: str, *, skip: bool) -> None:
    file = tmp_path / ("rows.parquet" if kind == "no parquet" else "rows.jsonl")
    KINDS[kind](file)
    with pytest.raises(DatasetError) as told:
        _read(file, Arguments(path=file.name, on_bad_row="skip" if skip else "error"))
    assert kind.strip() in f"{told.value.why} {told.value.remedy}".lower()
    assert "on_bad_row" not in told.value.remedy and told.value.findings is None


def test_a_byte_order_mark_and_other_line_ends_are_no_part_of_a_row(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for data in (LINES, "\ufeff" + LINES, "\ufeff\n" + LINES, LINES.replace("\n", "\r\n"), LINES.rstrip("\n")):
        file.write_bytes(data.encode())
        assert [row for _, row in read_rows(file)] == ROWS


def test_parquet_is_known_by_its_bytes(tmp_path: Path) -> None:
    for name in ("rows.parquet", "rows", "rows.jsonl"):
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / name)
        assert [row for _, row in read_rows(tmp_path / name)] == ROWS


@pytest.mark.parametrize("first", ["not json", '["a", 1]', "question: 1, 2", ""])
def test_one_wrong_line_is_a_mistake_of_its_own(tmp_path: Path, first: str) -> None:
    """Only what makes all rows wrong is one of the file."""
    file = tmp_path / "rows.jsonl"
    file.write_text(f"{first}\n{LINES}" if not first.startswith("[") else f"{LINES}{first}\n")
    told: list[int] = []
    assert len(list(read_rows(file, lambda line, what: told.append(line)))) == 30
    assert len(told) == bool(first)


@pytest.mark.parametrize(
    "row",
    [
        {"question": "q", "answer": "#### 7"},
        {"problem": "q", "answer": "7"},
        {"prompt": "q", "solution": "7"},
        {"question": "q", "answer": "7"},
    ],
)
def test_equal_rows_are_one_problem_in_every_form(tmp_path: Path, row: dict[str, str]) -> None:
    asked, truth = list(row)
    rows = [{**row, asked: f"q{i}"} for i in range(20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in [*rows, rows[0], rows[0]]))
    found = _read(file, Arguments(path=file.name))
    assert len(found.training) + len(found.held_back) == 20 and found.repeats == 2
    other = {**rows[0], truth: row[truth].replace("7", "8")}
    file.write_text("".join(json.dumps(one) + "\n" for one in [*rows, other]))
    with pytest.raises(DatasetError, match="a second time"):
        _read(file, Arguments(path=file.name))
