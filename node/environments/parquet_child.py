"""The child that reads a parquet file: `python -P parquet_child.py FILE MOST_ROW MEMORY [COLUMN ...]`.

Standard library, pyarrow and msgspec only. Out: for each row a length of four bytes and a mapping in msgpack, nil for
a row of more than MOST_ROW bytes; ["why"] where the file cannot be read; and a length of 0 at the end. MEMORY: bytes
beyond those that the program has before it opens the file. Out of memory, or crashed by the file, it just ends.
"""

# pyright: reportMissingTypeStubs=false

import resource
import struct
import sys
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

_LENGTH = struct.Struct(">I")


def main(path: str, most_row: int, memory: int, columns: list[str], out: BinaryIO) -> None:
    # No pool that takes memory in advance, and no threads, each of which takes a stack and an arena.
    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    limit(memory)
    together = 64  # rows: each may be a few megabytes
    try:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            if missing := [name for name in columns if name not in file.schema_arrow.names]:
                raise ValueError(f"it has no column {missing[0]!r}")
            for batch in file.iter_batches(together, columns=columns or None, use_threads=False):
                for number in range(batch.num_rows):
                    write(out, encoded(batch, number, most_row))
    except MemoryError:
        sys.exit(1)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        write(out, msgspec.msgpack.encode([str(error)[:300]]))
    out.write(_LENGTH.pack(0))
    out.flush()


def limit(memory: int) -> None:
    """Of address space, in a system that tells how much there is already: elsewhere nothing holds it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    # Without the start to count from a limit could be below what the child has already, and it would die at once.
    except OSError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def encoded(batch: pa.RecordBatch, number: int, most_row: int) -> bytes:
    row: dict[str, Any] = {name: batch.column(at)[number].as_py() for at, name in enumerate(batch.schema.names)}
    data = msgspec.msgpack.encode(row)
    return data if len(data) <= most_row else msgspec.msgpack.encode(None)


def write(out: BinaryIO, data: bytes) -> None:
    out.write(_LENGTH.pack(len(data)))
    out.write(data)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:], sys.stdout.buffer)
