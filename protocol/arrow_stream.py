"""A strict reader of the one Arrow IPC stream that the protocol knows: a schema, one plain record batch, the end.

Arrow's own reader is made for files that one wrote oneself: two changed bytes in a schema end the process
(found by scripts/fuzz_proofs.py). This one reads the flatbuffers by hand, looks at every offset before it uses it, and
allocates nothing that the bytes at hand do not fill. Types: int32, int64, float32, bool, string, binary, lists of
numbers; no nulls, no dictionaries, no compression. Source: Arrow columnar format 1.x, Schema.fbs, Message.fbs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from protocol.errors import ProtocolError

_CONTINUATION = b"\xff\xff\xff\xff"
_END = _CONTINUATION + bytes(4)
# A schema of ten columns has some 2 KiB; the rest is for headers.
MAX_METADATA = 64 * 1024
_TYPE_CODES = {"int32": 2, "int64": 2, "float": 3, "binary": 4, "string": 5, "bool": 6, "list": 12}
_NUMBERS = {"int32": np.dtype("<i4"), "int64": np.dtype("<i8"), "float": np.dtype("<f4")}

Column = tuple[str, str]
"""(name, type): a type of _TYPE_CODES, or 'list<...>' of a number."""


class MalformedStream(ProtocolError):
    """Bytes that are not such a stream."""

    def __init__(self, why: str) -> None:
        super().__init__("malformed file", why)


def read_stream(
    data: bytes,
    columns: Sequence[Column],
    header_key: bytes,
    max_rows: int,
    max_metadata: int = MAX_METADATA,
    *,
    optional: Sequence[Column] = (),
    most_values: int | None = None,
) -> tuple[bytes, list[dict[str, Any]]]:
    """(value of the only metadata entry, rows). max_metadata: bytes of a message's metadata, the header among them;
    optional: columns behind the others, each of which may be there or not; most_values: in the lists of one column.
    Raises MalformedStream."""
    # Always at the first byte: a file has one beginning, and so one root.
    schema, schema_body, at = _message(data, 0, max_metadata)
    if len(schema_body):
        raise MalformedStream("a schema with a body")
    of_schema, of_record_batch = 1, 3  # kinds of messages
    found = _header(schema, of_schema)
    columns = [*columns, *_there(found, len(columns), optional)]
    header = _read_schema(found, columns, header_key)
    batch, body, at = _message(data, at, max_metadata)
    # Nothing may follow: bytes that no reader looks at would give one file many roots.
    if data[at:] not in (b"", _END):
        raise MalformedStream("it must hold one record batch and nothing after it")
    return header, _read_batch(_header(batch, of_record_batch), body, columns, max_rows, most_values)


class _Table:
    """A flatbuffer table: bounds are checked at every step."""

    def __init__(self, raw: bytes, at: int) -> None:
        self.raw, self.at = raw, at
        self._vtable = at - _number(raw, at, 4, signed=True)
        # A table may point to any vtable in the message: `_number` checks each place that follows from it.
        self._slots = (_number(raw, self._vtable, 2) - 4) // 2

    def place(self, field: int) -> int | None:
        """Where a field's value stands, None if it has none."""
        # A flatbuffer leaves out fields that have their default, from the end of the table.
        if field >= self._slots:
            return None
        offset = _number(self.raw, self._vtable + 4 + 2 * field, 2)
        return self.at + offset if offset else None

    def number(self, field: int, size: int, default: int = 0) -> int:
        place = self.place(field)
        return default if place is None else _number(self.raw, place, size, signed=size > 1)

    def table(self, field: int) -> "_Table":
        place = self._required(field)
        return _Table(self.raw, place + _number(self.raw, place, 4))

    def vector(self, field: int, size: int) -> tuple[int, int]:
        """(start, count) of a vector of elements of `size` bytes; (0, 0) if there is none."""
        place = self.place(field)
        if place is None:
            return 0, 0
        start = place + _number(self.raw, place, 4)
        count = _number(self.raw, start, 4)
        # Multiplied as whole numbers of Python, so a count near 2^32 cannot wrap to something small.
        if start + 4 + count * size > len(self.raw):
            raise MalformedStream("a vector beyond its message")
        return start + 4, count

    def tables(self, field: int, expected: int) -> list["_Table"]:
        """A vector of exactly that many tables."""
        start, count = self.vector(field, 4)
        if count != expected:
            raise MalformedStream("its columns are not those of the format")
        places = range(start, start + 4 * count, 4)
        return [_Table(self.raw, place + _number(self.raw, place, 4)) for place in places]

    def text(self, field: int) -> bytes:
        self._required(field)
        start, count = self.vector(field, 1)
        return self.raw[start : start + count]

    def _required(self, field: int) -> int:
        place = self.place(field)
        if place is None:
            raise MalformedStream("a message that lacks a field")
        return place


def _number(raw: bytes, at: int, size: int, signed: bool = False) -> int:
    if not 0 <= at <= len(raw) - size:
        raise MalformedStream("an offset beyond its message")
    return int.from_bytes(raw[at : at + size], "little", signed=signed)


def _message(data: bytes, at: int, most: int) -> tuple[_Table, memoryview, int]:
    """(Message, its body, where the next one starts)."""
    if data[at : at + 4] != _CONTINUATION:
        raise MalformedStream("no message where one must be")
    length = _number(data, at + 4, 4)
    start = at + 8
    # A length beyond the file would be a slice of less, and every offset in it wrong.
    if not 8 <= length <= most or start + length > len(data):
        raise MalformedStream(f"a message of {length} bytes")
    raw = data[start : start + length]
    message = _Table(raw, _number(raw, 0, 4))
    size = message.number(3, 8)
    end = start + length + size
    if size < 0 or end > len(data):
        raise MalformedStream("a body beyond the file")
    return message, memoryview(data)[start + length : end], end


def _header(message: _Table, kind: int) -> _Table:
    if message.number(1, 1) != kind:
        raise MalformedStream("a message of another kind")
    return message.table(2)


def _read_schema(schema: _Table, columns: Sequence[Column], header_key: bytes) -> bytes:
    """The metadata's value, once the columns are those of the format."""
    fields = schema.tables(1, len(columns))
    if schema.number(0, 2) != 0:
        raise MalformedStream("its byte order is not that of the format")
    for field, (name, kind) in zip(fields, columns, strict=True):
        _check_field(field, name.encode(), kind)
    # Exactly one: further entries would be bytes that no check reads, and many files would say the same.
    (entry,) = schema.tables(2, 1)
    if entry.text(0) != header_key:
        raise MalformedStream("its header is not that of the format")
    return entry.text(1)


def _there(schema: _Table, certain: int, optional: Sequence[Column]) -> list[Column]:
    """Which of the optional columns the schema names behind so many others."""
    count = schema.vector(1, 4)[1]
    if not certain < count <= certain + len(optional):
        return []
    names = [field.text(0) for field in schema.tables(1, count)[certain:]]
    return [column for column in optional if column[0].encode() in names]


def _check_field(field: _Table, name: bytes | None, kind: str) -> None:
    outer, _, inner = kind.rstrip(">").partition("<")
    children = field.tables(5, bool(inner))
    # Field 4 is a dictionary: values by reference, which could be any size once unpacked.
    right = field.number(2, 1) == _TYPE_CODES[outer] and field.place(4) is None
    if not right or field.number(1, 1) or (name is not None and field.text(0) != name):
        raise MalformedStream("its columns are not those of the format")
    type_table = field.table(3)
    if outer.startswith("int") and (type_table.number(0, 4), type_table.number(1, 1)) != (int(outer[3:]), 1):
        raise MalformedStream(f"its integers are not of {outer[3:]} bits")
    if outer == "float" and type_table.number(0, 2) != 1:
        raise MalformedStream("its floats are not of 32 bits")
    if inner:
        _check_field(children[0], None, inner)


class _Batch:
    """The buffers of a record batch, taken in order. nodes: (length, nulls); buffers: (offset, length)."""

    def __init__(self, batch: _Table, body: memoryview) -> None:
        self._body = body
        self._nodes, self._buffers = _pairs(batch, 1), _pairs(batch, 2)
        self._node, self._buffer = 0, 0

    def length(self) -> int:
        """Of the next column or child."""
        if self._node >= len(self._nodes):
            raise MalformedStream("a column is missing")
        length, nulls = self._nodes[self._node]
        self._node += 1
        # A null would be no number where all checks expect one.
        if nulls or length < 0:
            raise MalformedStream("it has nulls")
        return length

    def buffer(self, least: int) -> memoryview:
        """The next buffer, of at least that many bytes."""
        if self._buffer >= len(self._buffers):
            raise MalformedStream("a buffer is missing")
        offset, length = self._buffers[self._buffer]
        self._buffer += 1
        # Buffers may overlap or stand in any order; what matters is that each read stays inside.
        if offset < 0 or length < least or offset + length > len(self._body):
            raise MalformedStream("a buffer beyond the body")
        return self._body[offset : offset + length]

    def finish(self) -> None:
        if self._node != len(self._nodes) or self._buffer != len(self._buffers):
            raise MalformedStream("it holds more than its columns")


def _pairs(batch: _Table, field: int) -> list[tuple[int, int]]:
    start, count = batch.vector(field, 16)
    raw = batch.raw
    return [
        (_number(raw, at, 8, signed=True), _number(raw, at + 8, 8, signed=True))
        for at in range(start, start + 16 * count, 16)
    ]


def _read_batch(
    batch: _Table, body: memoryview, columns: Sequence[Column], max_rows: int, most_values: int | None
) -> list[dict[str, Any]]:
    rows = batch.number(0, 8)
    # Compressed buffers could unpack to any size.
    if batch.place(3) is not None:
        raise MalformedStream("it must hold one plain record batch, uncompressed")
    # Before a column is read: 10^9 rows of no bytes would be lists of 10^9 objects.
    if not 0 <= rows <= max_rows:
        raise MalformedStream(f"{rows} rows instead of at most {max_rows}")
    source = _Batch(batch, body)
    values = [_read_column(source, kind, rows, most_values) for _, kind in columns]
    source.finish()
    names = [name for name, _ in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _read_column(source: _Batch, kind: str, rows: int, most_values: int | None) -> list[Any]:
    if source.length() != rows:
        raise MalformedStream("its columns have different lengths")
    source.buffer(0)  # validity: there are no nulls
    if kind in _NUMBERS:
        return _numbers(source, kind, rows).tolist()
    if kind == "bool":
        bits = np.frombuffer(source.buffer(-(-rows // 8)), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[:rows].astype(bool).tolist()
    offsets = _offsets(source, rows)
    if kind in ("string", "binary"):
        data = source.buffer(offsets[-1])
        parts = [bytes(data[start:end]) for start, end in zip(offsets, offsets[1:], strict=False)]
        return parts if kind == "binary" else [_text(part) for part in parts]
    inner = kind[len("list<") : -1]
    count = source.length()
    # The child column's length is a number of its own, which the file may have wrong.
    if offsets[-1] > count:
        raise MalformedStream("a list beyond its values")
    # A number of four bytes becomes an object of forty, and columns may share their bytes.
    if most_values is not None and offsets[-1] - offsets[0] > most_values:
        raise MalformedStream(f"lists of {offsets[-1] - offsets[0]} values instead of at most {most_values}")
    source.buffer(0)
    items = _numbers(source, inner, count)
    return [items[start:end].tolist() for start, end in zip(offsets, offsets[1:], strict=False)]


def _numbers(source: _Batch, kind: str, count: int) -> np.ndarray[Any, Any]:
    dtype = _NUMBERS[kind]
    return np.frombuffer(source.buffer(count * dtype.itemsize), dtype=dtype, count=count)


def _offsets(source: _Batch, rows: int) -> list[int]:
    """rows + 1 rising positions; of no rows, Arrow may write none."""
    raw = source.buffer(4 * (rows + 1) if rows else 0)
    offsets = np.frombuffer(raw, dtype="<i4", count=rows + 1) if rows else np.zeros(1, dtype="<i4")
    # As int64: differences of int32 wrap, and falling offsets could look as if they rose.
    if offsets[0] < 0 or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise MalformedStream("offsets that do not rise")
    return offsets.tolist()


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise MalformedStream("a text that is not UTF-8") from None
