"""Parquet files of strangers: what they unpack to is bounded, and whoever reads one reads it here."""

import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.environments import parquet
from node.environments.dataset import read_rows
from node.environments.errors import DatasetError
from node.environments.parquet import ParquetError, most_of, rows_of
from node.errors import RunFileError
from node.run.text import _documents

MAX_ROW_BYTES = 4 * 1024**2
"""Of a row of a data set."""
PLAIN = {"use_dictionary": False}
ROOT = Path(__file__).resolve().parents[3]


def written(place: Path, table: pa.Table, **settings: Any) -> Path:
    pq.write_table(table, place / "t.parquet", compression="zstd", **settings)
    return place / "t.parquet"


def pointers(rows: int, size: int) -> pa.Table:
    """So many rows that are one and the same value."""
    places = pa.array([0] * rows, pa.int32())
    return pa.table({"text": pa.DictionaryArray.from_arrays(places, pa.array(["x" * size]))})


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick bomb needs small rooms."""
    monkeypatch.setattr(parquet, "MEMORY_BYTES", 64 << 20)
    monkeypatch.setattr(parquet, "LEAST_BYTES", 4 << 20)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("codec", "make", "settings", "why"),
    [
        *((codec, lambda: pointers(3000, 1_000_000), {}, "more than") for codec in ("zstd", "gzip", "snappy", "none")),
        *((codec, lambda: pa.table({"text": ["x" * (90 << 20)]}), PLAIN, "of memory") for codec in ("zstd", "brotli")),
        ("zstd", lambda: pointers(9000, 1000), {}, "unpacks to more than"),
        ("lz4", lambda: pa.table({"text": pa.nulls(1_000_000, pa.string())}), {}, "unpacks to more than"),
    ],
)
def test_a_bomb_takes_no_memory_here(
    tmp_path: Path, codec: str, make: Callable[[], pa.Table], settings: dict[str, Any], why: str
) -> None:
    pq.write_table(make(), tmp_path / "t.parquet", compression=codec, **settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ParquetError, match=why):
        for _ in rows_of(tmp_path / "t.parquet", most_row=MAX_ROW_BYTES):
            pass
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # in KiB


@pytest.mark.usefixtures("narrow")
def test_whoever_reads_one_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    bomb = written(tmp_path, pointers(9000, 1000))
    assert bomb.stat().st_size < 5000
    with pytest.raises(DatasetError, match="unpacks to more than"):
        list(read_rows(bomb))
    with pytest.raises(RunFileError, match="unpacks to more than"):
        list(_documents(bomb))


def test_rows_are_what_arrow_says(tmp_path: Path) -> None:
    """The control: all that a row of a data set may hold, in order, over several groups."""
    rows = [
        {"id": n, "text": "é" * n, "none": None, "share": n / 3, "yes": n % 2 == 0, "raw": bytes([n % 256])}
        | {"chat": [{"role": "user", "content": str(n)}] * (n % 3), "info": {"a": [n], "b": {"c": None}}}
        for n in range(500)
    ]
    path = written(tmp_path, pa.Table.from_pylist(rows), row_group_size=100)
    assert list(rows_of(path, most_row=MAX_ROW_BYTES)) == pq.read_table(path).to_pylist() == rows
    assert list(rows_of(path, most_row=MAX_ROW_BYTES, columns=["id"]))[7] == {"id": 7}
    assert len(list(read_rows(path))) == 500


def test_text_that_is_packed_well_is_read(tmp_path: Path) -> None:
    """The control: a long prompt that each row repeats."""
    path = written(tmp_path, pointers(2000, 20_000))
    assert path.stat().st_size < 1000 < 2000 * 20_000 < most_of(1000)
    assert sum(row is not None for row in rows_of(path, most_row=MAX_ROW_BYTES)) == 2000


def test_a_row_that_is_too_long_is_a_bad_row(tmp_path: Path) -> None:
    path = written(tmp_path, pa.table({"text": ["a", "x" * MAX_ROW_BYTES, "b"]}))
    told: list[int] = []
    assert [row["text"] for _, row in read_rows(path, lambda line, _: told.append(line))] == ["a", "b"]
    assert told == [2]


@pytest.mark.parametrize("data", [b"PAR1", b"PAR1 no", b"PAR1" + b"\0" * 64 + b"\xff\xff\xff\x7fPAR1", b"", b"\0" * 99])
def test_what_is_no_parquet_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(data)
    with pytest.raises(ParquetError):
        list(rows_of(tmp_path / "t.parquet", most_row=100))


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParquetError, match="text"):
        list(rows_of(written(tmp_path, pa.table({"other": [1]})), most_row=100, columns=["text"]))


def test_whoever_stops_reading_leaves_no_child(tmp_path: Path) -> None:
    rows = rows_of(written(tmp_path, pa.table({"text": ["a"] * 100_000})), most_row=100)
    assert next(rows) == {"text": "a"}
    rows.close()  # type: ignore[attr-defined] - a generator; an unreaped child would be a warning, and an error here


# What unpacks: whoever does stands here, with what bounds it

UNPACKS = re.compile(
    r"\b(?:pq\.(?:ParquetFile|read_table|read_pandas|ParquetDataset)|ipc\.(?:open|read)|pyarrow\.dataset|feather|csv\.read"
    r"|gzip\.(?:decompress|open|GzipFile)|zlib\.(?:decompress|decompressobj)|bz2|lzma|zipfile\.ZipFile|tarfile\.open"
    r"|ZstdDecompressor|stream_reader|brotli|lz4|snappy|iter_bytes|decode_content|shutil\.unpack_archive"
    r"|np\.load|numpy\.load|torch\.load|pickle\.loads?|Image\.open)\b"
)
BOUNDED = {
    "node/environments/parquet_child.py": "a child with little memory, whose rows are counted",
    "node/environments/task_types/shapes/tests.py": "zlib, at most MAX_TEXT bytes",
    "node/chain/endpoints.py": "gzip of 64 KiB at a time, a thousandfold at most, counted",
    "node/chain/devnet.py": "the state of this machine's own chain, at most MAX_STATE bytes",
    "node/blobs/http/fetch.py": "what says that nothing is decoded",
    "node/sandbox/runtime.py": "one member, at most SIZE bytes, compared with its hash",
    "node/sandbox/shelf.py": "wheels whose hashes stand in the program",
    "node/sandbox/guest/attacks.py": "runs in the sandbox, and is to fail",
    "protocol/packed.py": "zstd: the frame promises what the reader asked for, and no more is taken",
    "cli/doctor.py": "writes",
}


def test_whoever_unpacks_is_bounded() -> None:
    """A reader that is added tomorrow fails here until somebody has said what bounds it."""
    paths = sorted(path for room in ("node", "protocol", "cli") for path in (ROOT / room).rglob("*.py"))
    found = {str(path.relative_to(ROOT)) for path in paths if UNPACKS.search(path.read_text(encoding="utf-8"))}
    assert found == BOUNDED.keys()
