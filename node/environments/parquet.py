"""Rows of a parquet file, read in a child with little memory.

A parquet file is a stranger's, and its own word for how large it becomes is worth nothing: one value of a megabyte that
two thousand rows point at makes two gigabytes out of 500 bytes, and Arrow takes the memory before anybody can count.
So the child counts (`parquet_child.py`), under a limit of memory that the system holds; where it dies, the file is
refused, and what crashes Arrow's reader crashes nothing here. What comes out is bounded by what the file weighs.
"""

import os
import selectors
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from protocol.errors import UNREADABLE

CHILD = Path(__file__).with_name("parquet_child.py")
MEMORY_BYTES = 2 * 1024**3
"""More than Arrow's library itself: for a page, what it unpacks to, and the rows of a batch."""
LEAST_BYTES = 256 * 1024**2
_LENGTH = struct.Struct(">I")
_MOST_WORDS = 4096
Row = dict[str, Any]


class ParquetError(Exception):
    """A file that is no parquet, or becomes too large."""


def most_of(size: int) -> int:
    """Bytes that the rows of a file of `size` bytes may have."""
    # A file's rows have so many times its bytes, or LEAST_BYTES: text that is packed well grows tenfold.
    return max(LEAST_BYTES, 100 * size)


def rows_of(path: Path, *, most_row: int, columns: Sequence[str] = ()) -> Iterator[Row | None]:
    """Every row in order; None for one of more than `most_row` bytes. columns: all if none is named. Raises
    ParquetError, OSError."""
    left = most_of(path.stat().st_size)
    with _reading(path, most_row, columns) as stream:
        while (frame := stream.frame(most_row)) is not None:
            left -= max(len(frame), 64)  # bytes that a row counts for, however empty
            if left < 0:
                raise ParquetError(f"it unpacks to more than {most_of(path.stat().st_size)} bytes")
            row = msgspec.msgpack.decode(frame)
            if isinstance(row, list):
                raise ParquetError(str(row[0])[:_MOST_WORDS])
            yield row


class _Stream:
    """Frames from a child, a length before each, and none waits for ever."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(pipe, selectors.EVENT_READ)
        self._read = bytearray()

    def frame(self, most: int) -> bytes | None:
        """None after the last one."""
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size))
        if length > most + _MOST_WORDS:
            raise ParquetError(f"a row of {length} bytes came")
        return bytes(self._take(length)) if length else None

    def _take(self, count: int, *, silent_seconds: float = 120.0) -> bytearray:
        while len(self._read) < count:
            if not self._waiting.select(silent_seconds):
                raise ParquetError(f"it cannot be read within {silent_seconds:g} s")
            data = os.read(self._pipe.fileno(), 1 << 20)
            if not data:
                raise ParquetError(f"it takes more than {MEMORY_BYTES} bytes of memory to read, or is damaged")
            self._read += data
        taken, self._read = self._read[:count], self._read[count:]
        return taken

    def close(self) -> None:
        self._waiting.close()


@contextmanager
def _reading(path: Path, most_row: int, columns: Sequence[str]) -> Iterator[_Stream]:
    argv = [sys.executable, "-P", str(CHILD), str(path.resolve()), str(most_row), str(MEMORY_BYTES), *columns]
    # Its own environment: what it reads is a stranger's, and ours may hold keys.
    child = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"PATH": os.defpath}
    )
    assert child.stdout is not None  # it was asked for
    stream = _Stream(child.stdout)
    try:
        yield stream
    except UNREADABLE as error:
        raise ParquetError(f"a row cannot be read: {error}") from None
    finally:
        stream.close()
        child.kill()
        child.stdout.close()
        child.wait()
