# pyright: basic
"""The rollout file (what a worker commits to) and the report (what a validator recomputed): Arrow IPC streams.

A rollout file carries tokens and proofs, and no reward, log-prob or advantage: nobody would believe them.
Files come from strangers. The decoder accepts one schema, one uncompressed record batch and lists within
bounds, and checks all of that before Arrow allocates anything.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa

from protocol.codec import decode_json
from protocol.errors import ProtocolError
from protocol.identity import Address

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_REPORT_BYTES = 256 * 1024 * 1024
MAX_HEADER_BYTES = 4096
_HEADER_KEY = b"intellect-node"
H = TypeVar("H", bound=msgspec.Struct)


class MalformedRollout(ProtocolError):
    """A rollout file or report that is not in the agreed form."""


class RolloutHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """policy_root: 32 bytes as hex; capacity: class of the machine, which bounds its length budgets
    (protocol.budgets); freshness: see protocol.freshness; the rest as in the WorkCommitment."""

    pool: int
    node: Address
    policy_root: str
    index: int
    version: int = 1
    capacity: int = 0
    freshness: str = ""


class SampleRow(msgspec.Struct, frozen=True):
    """One completion. group: 0..prompts_per_file-1; sample: 0..group_size-1; proofs: concatenated TOPLOC proofs."""

    group: int
    sample: int
    problem_id: str
    prompt: list[int]
    output: list[int]
    finished: bool
    proofs: bytes


class RolloutBatch(msgspec.Struct, frozen=True):
    """A whole file."""

    header: RolloutHeader
    rows: tuple[SampleRow, ...]

    @property
    def units(self) -> int:
        """Output tokens."""
        return sum(len(row.output) for row in self.rows)


class ReportHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which file was recomputed; roots as hex."""

    file_root: str
    policy_root: str
    version: int = 1


class ReportRow(msgspec.Struct, frozen=True):
    """reward: recomputed by the validator; logprobs: float32, one per output token, of the sampling policy."""

    group: int
    sample: int
    reward: float
    logprobs: list[float]


class Report(msgspec.Struct, frozen=True):
    """What a validator recomputed for one accepted file: the samples of the groups that it drew, in order."""

    header: ReportHeader
    rows: tuple[ReportRow, ...]


_TOKENS = pa.list_(pa.field("item", pa.int32(), nullable=False))
_ROLLOUT = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("problem_id", pa.string(), nullable=False),
        pa.field("prompt", _TOKENS, nullable=False),
        pa.field("output", _TOKENS, nullable=False),
        pa.field("finished", pa.bool_(), nullable=False),
        pa.field("proofs", pa.binary(), nullable=False),
    ]
)
_REPORT = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("reward", pa.float32(), nullable=False),
        pa.field("logprobs", pa.list_(pa.field("item", pa.float32(), nullable=False)), nullable=False),
    ]
)


def encode(batch: RolloutBatch) -> bytes:
    return encode_table(_ROLLOUT, msgspec.json.encode(batch.header), batch.rows)


def decode(data: bytes, max_rows: int) -> RolloutBatch:
    """Parse a worker's file of at most `max_rows` samples; raises MalformedRollout."""
    header, rows = decode_table(data, _ROLLOUT, max_rows, MAX_FILE_BYTES)
    parsed = _header(header, RolloutHeader)
    return RolloutBatch(parsed, tuple(SampleRow(**row) for row in rows))


def encode_report(report: Report) -> bytes:
    return encode_table(_REPORT, msgspec.json.encode(report.header), report.rows)


def decode_report(data: bytes, max_rows: int) -> Report:
    """Parse a validator's report; raises MalformedRollout."""
    header, rows = decode_table(data, _REPORT, max_rows, MAX_REPORT_BYTES)
    parsed = _header(header, ReportHeader)
    return Report(parsed, tuple(ReportRow(**row) for row in rows))


def _header(data: bytes, kind: type[H]) -> H:
    return decode_json(data, kind, limit=MAX_HEADER_BYTES, error=MalformedRollout, what="malformed file header")


def encode_table(schema: pa.Schema, header: bytes, rows: Sequence[msgspec.Struct]) -> bytes:
    """Structs whose fields are the schema's columns -> an Arrow IPC stream with `header` in its metadata."""
    stamped = schema.with_metadata({_HEADER_KEY: header})
    columns = [pa.array([getattr(row, f.name) for row in rows], type=f.type) for f in schema]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stamped, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_batch(pa.record_batch(columns, schema=stamped))
    return sink.getvalue().to_pybytes()


def decode_table(data: bytes, schema: pa.Schema, max_rows: int, max_bytes: int) -> tuple[bytes, list[dict]]:
    """(header bytes, rows as dicts) of a stream with exactly this schema; raises MalformedRollout."""
    if len(data) > max_bytes:
        raise MalformedRollout("malformed file", f"{len(data)} bytes is more than {max_bytes}")
    try:
        return _decode_stream(data, schema, max_rows)
    except (pa.ArrowException, ValueError, TypeError, IndexError, EOFError, OSError, StopIteration) as error:
        raise MalformedRollout("malformed file", str(error)[:200]) from error


def _decode_stream(data: bytes, schema: pa.Schema, max_rows: int) -> tuple[bytes, list[dict]]:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    stamped = pa.ipc.read_schema(messages.read_next_message())
    metadata = stamped.metadata or {}
    if not stamped.equals(schema) or set(metadata) != {_HEADER_KEY}:
        raise MalformedRollout("malformed file", "its columns are not those of the format")
    message = messages.read_next_message()
    if message.type != "record batch" or _is_compressed(message.metadata):
        raise MalformedRollout("malformed file", "it must hold one plain record batch")
    batch = pa.ipc.read_record_batch(message, stamped)
    if batch.num_rows > max_rows:
        raise MalformedRollout("malformed file", f"{batch.num_rows} rows instead of at most {max_rows}")
    batch.validate(full=True)
    if any(_null_count(column) for column in batch.columns):
        raise MalformedRollout("malformed file", "it has nulls")
    return metadata[_HEADER_KEY], batch.to_pylist()


def _null_count(column: pa.Array) -> int:
    inner = column.flatten().null_count if pa.types.is_list(column.type) else 0
    return column.null_count + inner


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch message names a codec (field 3 of the flatbuffer RecordBatch, Arrow's Message.fbs).

    pyarrow offers no way to ask, and decompression would allocate whatever the sender claims.
    """
    raw = metadata.to_pybytes()
    header_at = _field(raw, _u32(raw, 0), 2)
    if header_at is None:
        raise MalformedRollout("malformed file", "a message without a header")
    batch_at = header_at + _u32(raw, header_at)
    return _field(raw, batch_at, 3) is not None


def _field(raw: bytes, table: int, index: int) -> int | None:
    """Position of a flatbuffer table's field, None if absent."""
    vtable = table - int.from_bytes(raw[table : table + 4], "little", signed=True)
    slot = vtable + 4 + 2 * index
    if vtable < 0 or slot + 2 > len(raw):
        raise MalformedRollout("malformed file", "a broken message")
    if 4 + 2 * index >= int.from_bytes(raw[vtable : vtable + 2], "little"):
        return None
    offset = int.from_bytes(raw[slot : slot + 2], "little")
    return table + offset if offset else None


def _u32(raw: bytes, at: int) -> int:
    if not 0 <= at <= len(raw) - 4:
        raise MalformedRollout("malformed file", "a broken message")
    return int.from_bytes(raw[at : at + 4], "little")
