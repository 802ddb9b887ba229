# pyright: basic
"""Writes the one Arrow IPC stream that the protocol knows, by Arrow's own library; arrow_stream.py reads it without.

Alone with that import: the library takes 25 MB of a process, and most that read such files never write one.
"""

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from protocol.arrow_stream import Column

_PLAIN = {
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
}


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The schema of columns as arrow_stream names them; none of them may be null."""
    return pa.schema([pa.field(name, _type(kind), nullable=False) for name, kind in columns])


def write_stream(columns: Sequence[Column], header_key: bytes, header: bytes, rows: Sequence[msgspec.Struct]) -> bytes:
    """Structs whose fields are the columns -> a schema with `header` in its metadata, one record batch, the end."""
    schema = schema_of(columns).with_metadata({header_key: header})
    arrays = [pa.array([getattr(row, field.name) for row in rows], type=field.type) for field in schema]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes()


def _type(kind: str) -> pa.DataType:
    if not kind.startswith("list<"):
        return _PLAIN[kind]
    return pa.list_(pa.field("item", _PLAIN[kind.removeprefix("list<").removesuffix(">")], nullable=False))
