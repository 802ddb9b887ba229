# pyright: basic
"""The rollout file (what a worker commits to) and the report (what a validator recomputed): Arrow IPC streams.

A rollout file carries tokens and proofs, and no reward, log-prob or advantage: nobody would believe them. Where a
rollout took several turns, a further column says which tokens were sampled; a file of single answers lacks it, as ever.
Where turns were played with a machine that remembers, another one has its states. Of a model with experts the last one
says which of them computed each token (protocol.routing): such a file is of version 2, all others are of version 1.
Files come from strangers. The decoder accepts one schema and one uncompressed record batch within bounds, and reads
them by itself (arrow_stream.py): Arrow's own reader can be made to crash.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from protocol.arrow_stream import MAX_METADATA, Column, MalformedStream, read_stream
from protocol.codec import decode_json
from protocol.engines import DEFAULT_CLASS
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.segments import sampled_count, sampled_tokens

# As many bytes may stand in memory for one stranger's file; rows have bounds of their own behind that.
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_REPORT_BYTES = 256 * 1024 * 1024
MAX_HEADER_BYTES = 4096
_HEADER_KEY = b"intellect-node"
# Half a hash: what is compared is what the validator's own machine comes to, and nobody gains by a collision with it.
STATE_BYTES = 16
VERSION, VERSION_OF_EXPERTS = 1, 2
H = TypeVar("H", bound=msgspec.Struct)


class MalformedRollout(ProtocolError):
    """A rollout file or report that is not in the agreed form."""


class RolloutHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """policy_root: 32 bytes as hex; capacity: class of the machine, which bounds its length budgets
    (protocol.budgets); freshness: see protocol.freshness; engine: class of the engine that made the file
    (protocol.engines); heard: tag (protocol.values) of the rewards that servers gave for it, as hex, empty where none
    is asked; the rest as in the WorkCommitment."""

    pool: int
    node: Address
    policy_root: str
    index: int
    version: int = VERSION
    capacity: int = 0
    freshness: str = ""
    engine: str = DEFAULT_CLASS
    heard: str = ""


class SampleRow(msgspec.Struct, frozen=True):
    """One completion. group: 0..prompts_per_file-1; sample: 0..group_size-1; output: all tokens after the prompt, those
    of the environment among them; proofs: concatenated TOPLOC proofs; segments: see protocol.segments; states:
    STATE_BYTES of the hash of the session's machine for each time that the environment spoke, empty without one;
    experts: see protocol.routing, empty of a model without."""

    group: int
    sample: int
    problem_id: str
    prompt: list[int]
    output: list[int]
    finished: bool
    proofs: bytes
    segments: list[int] = []
    states: bytes = b""
    experts: bytes = b""

    @property
    def fed(self) -> int:
        """Tokens that went through the model: those that the record of experts is of."""
        return len(self.prompt) + len(self.output) - 1

    @property
    def sampled(self) -> Sequence[int]:
        """The tokens that the policy said."""
        return sampled_tokens(self.output, self.segments)

    @property
    def units(self) -> int:
        """How many those are."""
        return sampled_count(self.segments, len(self.output))


class RolloutBatch(msgspec.Struct, frozen=True):
    """A whole file."""

    header: RolloutHeader
    rows: tuple[SampleRow, ...]

    @property
    def units(self) -> int:
        """Sampled tokens."""
        return sum(row.units for row in self.rows)


class ReportHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which file was recomputed; roots as hex."""

    file_root: str
    policy_root: str
    version: int = 1


class ReportRow(msgspec.Struct, frozen=True):
    """reward: recomputed by the validator, NaN where it is a matter of opinion; logprobs: float32, one per sampled
    token, of the sampling policy."""

    group: int
    sample: int
    reward: float
    logprobs: list[float]


class ValidatorReport(msgspec.Struct, frozen=True):
    """What a validator recomputed for one accepted file: the samples of the groups that it drew, in order."""

    header: ReportHeader
    rows: tuple[ReportRow, ...]


Columns = tuple[Column, ...]
_TOKENS = "list<int32>"
_ROLLOUT: Columns = (
    ("group", "int32"),
    ("sample", "int32"),
    ("problem_id", "string"),
    ("prompt", _TOKENS),
    ("output", _TOKENS),
    ("finished", "bool"),
    ("proofs", "binary"),
)
SEGMENTS: Column = ("segments", _TOKENS)
EXPERTS: Column = ("experts", "binary")
_OPTIONAL: Columns = (SEGMENTS, ("states", "binary"), EXPERTS)
"""Columns that stand behind the others where a row has something in them."""
_REPORT: Columns = (("group", "int32"), ("sample", "int32"), ("reward", "float"), ("logprobs", "list<float>"))


def encode(batch: RolloutBatch) -> bytes:
    header = msgspec.to_builtins(batch.header)
    # Only one spelling: with the field empty in some files, equal work would have two roots.
    if not batch.header.heard:
        del header["heard"]  # programs of before know no such field
    header["version"] = VERSION_OF_EXPERTS if any(row.experts for row in batch.rows) else VERSION
    return encode_table(with_optional(_ROLLOUT, _OPTIONAL, batch.rows), msgspec.json.encode(header), batch.rows)


def with_optional(columns: Columns, optional: Columns, rows: Sequence[msgspec.Struct]) -> Columns:
    """The columns with those of `optional` behind them that have something in one of the rows.

    Without, a file's bytes, its content digest and the bindings of its proofs are as if there were no such thing.
    """
    return (*columns, *(column for column in optional if any(getattr(row, column[0]) for row in rows)))


def decode(data: bytes, max_rows: int, most_tokens: int | None = None) -> RolloutBatch:
    """Parse a worker's file of at most `max_rows` samples; raises MalformedRollout. most_tokens: of all their prompts,
    and of all their outputs."""
    header, rows = decode_table(data, _ROLLOUT, max_rows, MAX_FILE_BYTES, optional=_OPTIONAL, most_values=most_tokens)
    parsed = _header(header, RolloutHeader)
    version = VERSION_OF_EXPERTS if rows and "experts" in rows[0] else VERSION
    # The version follows from the columns: a header that says otherwise would be read differently by older programs.
    if parsed.version != version:
        raise MalformedRollout("malformed file", f"version {parsed.version} in a file of the form of {version}")
    return RolloutBatch(parsed, tuple(SampleRow(**row) for row in rows))


def encode_report(report: ValidatorReport) -> bytes:
    return encode_table(_REPORT, msgspec.json.encode(report.header), report.rows)


def decode_report(data: bytes, max_rows: int) -> ValidatorReport:
    """Parse a validator's report; raises MalformedRollout."""
    header, rows = decode_table(data, _REPORT, max_rows, MAX_REPORT_BYTES)
    parsed = _header(header, ReportHeader)
    return ValidatorReport(parsed, tuple(ReportRow(**row) for row in rows))


def _header(data: bytes, kind: type[H]) -> H:
    return decode_json(data, kind, limit=MAX_HEADER_BYTES, error=MalformedRollout, what="malformed file header")


def encode_table(columns: Columns, header: bytes, rows: Sequence[msgspec.Struct]) -> bytes:
    """Structs whose fields are the columns -> an Arrow IPC stream with `header` in its metadata."""
    from protocol.arrow_writer import write_stream  # who only reads does without Arrow's library

    return write_stream(columns, _HEADER_KEY, header, rows)


def decode_table(
    data: bytes,
    columns: Columns,
    max_rows: int,
    max_bytes: int,
    max_metadata: int = MAX_METADATA,
    *,
    optional: Columns = (),
    most_values: int | None = None,
) -> tuple[bytes, list[dict]]:
    """(header bytes, rows as dicts) of a stream with exactly these columns, and those of `optional` that have something
    in a row; raises MalformedRollout. most_values: in the lists of one column."""
    # Before anything is parsed.
    if len(data) > max_bytes:
        raise MalformedRollout("malformed file", f"{len(data)} bytes is more than {max_bytes}")
    try:
        header, rows = read_stream(
            data, columns, _HEADER_KEY, max_rows, max_metadata, optional=optional, most_values=most_values
        )
    except MalformedStream as error:
        raise MalformedRollout("malformed file", error.why) from None
    for name, _ in optional:
        # An empty column changes the bytes and says nothing: a second encoding of the same file.
        if rows and name in rows[0] and not any(row[name] for row in rows):
            raise MalformedRollout("malformed file", f"a column of {name} where no rollout has any")
    return header, rows
