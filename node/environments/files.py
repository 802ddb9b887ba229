"""The files that rows of data stand in: JSON lines and parquet.

A file of another kind is one mistake, told with what it is and how to make rows of it. Told row by row, it would read
as if each of them were wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from node.environments.errors import DatasetError
from node.environments.parquet import ParquetError, rows_of
from protocol.errors import UNREADABLE

MAX_FILE_BYTES = 8 * 1024**3
MAX_ROW_BYTES = 4 * 1024**2
MAX_ROWS = 5_000_000
Bad = Callable[[int, str], None]
"""Told (line, what is wrong with it)."""
_MARK = b"\xef\xbb\xbf"
"""What some programs write before UTF-8."""
_LINES = "with pandas: .to_json('rows.jsonl', orient='records', lines=True)"
_BEGINNINGS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x1f\x8b", "compressed with gzip", "unpack it: gunzip"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "unpack it: zstd -d"),
    (b"BZh", "compressed with bzip2", "unpack it: bunzip2"),
    (b"\xfd7zXZ\x00", "compressed with xz", "unpack it: unxz"),
    (b"PK\x03\x04", "a zip archive", "unpack it, and name the file in it"),
    (b"ARROW1", "an Arrow file", "write it as parquet: datasets.load_from_disk(folder).to_parquet('rows.parquet')"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "write it as parquet: datasets.Dataset.from_file(file).to_parquet(...)"),
    (b"SQLite format 3", "an SQLite database", f"read the table {_LINES}"),
    (b"\x80\x04", "a pickle, which is never opened here", "write its rows as JSON lines"),
    (b"\x80\x05", "a pickle, which is never opened here", "write its rows as JSON lines"),
    (b"version https://git-lfs", "a pointer of Git LFS, not the file itself", "fetch the file: git lfs pull"),
    (b"\xff\xfe", "UTF-16 text", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "write it as UTF-8: iconv -f UTF-16 -t UTF-8"),
)
"""(how a file begins, what it is, what to do)."""


def data_file(assets: Path, name: str) -> Path:
    """A data file, or the directory of several. Raises DatasetError for one outside a run's assets."""
    path = assets / name
    # Resolved: a link inside of the assets may lead out of them.
    if not path.resolve().is_relative_to(assets.resolve()):
        raise DatasetError("the dataset cannot be read", f"{name!r} leaves the run's assets", "correct path")
    return path


def files_of(path: Path | Sequence[Path]) -> Sequence[Path]:
    """A data set's files in the order in which everybody numbers their rows."""
    if not isinstance(path, Path):
        return path
    return sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]


def read_rows(path: Path, bad: Bad | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line or row number from 1 of its file, row as a dict), of a directory those of all its files. bad: told of lines
    that are no rows, else they raise DatasetError, as does a file that cannot be read."""
    if path.is_dir():
        for file in files_of(path):
            yield from read_rows(file, bad)
        return

    def refuse(line: int, what: str) -> NoReturn:
        raise DatasetError("the dataset cannot be used", f"{path}, line {line}: {what}", "correct or remove the row")

    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DatasetError("the dataset cannot be read", f"{path} is larger than 8 GiB", "split the file")
        count = 0
        parquet = _is_parquet(path)
        rows = (_parquet_rows if parquet else _json_rows)(path, bad or refuse)
        for line, row in rows:
            count += 1
            if count > MAX_ROWS:
                refuse(line, f"more than {MAX_ROWS} rows")
            yield line, row
    except (OSError, ParquetError) as error:
        raise DatasetError(
            "the dataset cannot be read", f"{path}: {error}", "check environment.args.path and the file"
        ) from None


def _is_parquet(path: Path) -> bool:
    """By how it begins: a blob has no name. Raises DatasetError for a file that holds no rows."""
    with path.open("rb") as file:
        head = file.read(4096)  # bytes by which a file's kind is told
    kind = None if head.startswith(b"PAR1") else _other_kind(head, path)
    if kind is not None:
        raise DatasetError(
            "the dataset cannot be read", f"{path} is {kind[0]}, neither JSON lines nor parquet", kind[1]
        )
    return head.startswith(b"PAR1")


def _other_kind(head: bytes, path: Path) -> tuple[str, str] | None:
    """(what it is, what to do) of a file that is neither JSON lines nor parquet."""
    for beginning, kind, remedy in _BEGINNINGS:
        if head.startswith(beginning):
            return kind, remedy
    if path.suffix == ".parquet":
        return "no parquet file, although it is named so", "fetch it again, or give it the ending .jsonl"
    text = head.removeprefix(_MARK).lstrip()
    if b"\0" in text:
        little = text[1:2] == b"\0"
        utf16 = f"write it as UTF-8: iconv -f UTF-16{'LE' if little else 'BE'} -t UTF-8"
        return ("UTF-16 text", utf16) if text[:2].count(b"\0") == 1 else ("binary", "name a file of rows")
    first, _, rest = text.partition(b"\n")
    if text.startswith(b"<"):
        return "a page of HTML or XML", "fetch the file itself: a site's download link, not its page"
    if text.startswith(b"["):
        return "one JSON array", f"write one object a line: jq -c '.[]', or {_LINES}"
    if first.strip() == b"{":
        return "one JSON object over several lines", "write one object a line: jq -c '.rows[]', by its key of the rows"
    return _table(first, rest.partition(b"\n")[0], path)


def _table(first: bytes, second: bytes, path: Path) -> tuple[str, str] | None:
    """A table of text: by its name, or where both of its first lines are no objects and have as many columns."""
    for mark, name in ((b"\t", "TSV"), (b",", "CSV"), (b";", "CSV with semicolons")):
        named = path.suffix.lower() in (".csv", ".tsv") and not first.startswith(b"{")
        alike = b"{" not in first + second[:1] and mark in first and mark in second
        if mark in first and (named or alike):
            return f"{name}, a table of text", f"read it with pandas.read_csv and write it {_LINES}"
    return None


def _json_rows(path: Path, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        line = 0
        if file.read(len(_MARK)) != _MARK:
            file.seek(0)
        # One byte beyond the bound shows that a line is too long, without reading all of it.
        while text := file.readline(MAX_ROW_BYTES + 1):
            line += 1
            if len(text) > MAX_ROW_BYTES:
                bad(line, f"longer than {MAX_ROW_BYTES} bytes")
                # The rest of a long line would be taken for rows, and all later line numbers would be wrong.
                while text and not text.endswith(b"\n"):
                    text = file.readline(MAX_ROW_BYTES)
                continue
            if not text.strip():
                continue
            try:
                row = msgspec.json.decode(text, type=dict[str, Any])
            except UNREADABLE as error:
                bad(line, f"not a JSON object: {error}")
                continue
            yield line, row


def _parquet_rows(path: Path, bad: Bad) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, row in enumerate(rows_of(path, most_row=MAX_ROW_BYTES), 1):
        if row is None:
            bad(line, f"longer than {MAX_ROW_BYTES} bytes")
        else:
            yield line, row
