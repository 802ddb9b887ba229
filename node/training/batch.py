"""The spool's batch file: what one optimiser step learns from, as an Arrow IPC stream.

Written by the daemon from accepted rollouts (tokens) and validators' reports (rewards, log-probs).
Decoding is as strict as for files from strangers; see protocol.rollout.
"""

import msgspec
import pyarrow as pa

from node.training.errors import TrainingError
from protocol.rollout import MalformedRollout, decode_table, encode_table

MAX_BATCH_ROWS = 1 << 20
MAX_BATCH_BYTES = 1 << 32


class BatchHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """step: the optimiser step that the batch is for (it turns policy `step` into policy `step + 1`)."""

    step: int
    version: int = 1


class BatchRow(msgspec.Struct, frozen=True):
    """One completion.

    group_key: equal for the samples of one problem in one file; output: at least one token;
    sampler_logprobs: float32, one per output token, of the policy `policy_step` that sampled it.
    """

    group_key: int
    prompt: list[int]
    output: list[int]
    sampler_logprobs: list[float]
    reward: float
    policy_step: int


class Batch(msgspec.Struct, frozen=True):
    header: BatchHeader
    rows: tuple[BatchRow, ...]


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", kind, nullable=False))


_SCHEMA = pa.schema(
    [
        pa.field("group_key", pa.int64(), nullable=False),
        pa.field("prompt", _list(pa.int32()), nullable=False),
        pa.field("output", _list(pa.int32()), nullable=False),
        pa.field("sampler_logprobs", _list(pa.float32()), nullable=False),
        pa.field("reward", pa.float32(), nullable=False),
        pa.field("policy_step", pa.int64(), nullable=False),
    ]
)


def encode_batch(batch: Batch) -> bytes:
    return encode_table(_SCHEMA, msgspec.json.encode(batch.header), batch.rows)


def decode_batch(data: bytes) -> Batch:
    """Raises TrainingError if the bytes are not a batch or a row makes no sense."""
    try:
        header, rows = decode_table(data, _SCHEMA, MAX_BATCH_ROWS, MAX_BATCH_BYTES)
        batch = Batch(msgspec.json.decode(header, type=BatchHeader), tuple(BatchRow(**row) for row in rows))
    except (MalformedRollout, msgspec.MsgspecError) as error:
        raise _broken(str(error)) from None
    for number, row in enumerate(batch.rows):
        if not row.prompt or not row.output or len(row.output) != len(row.sampler_logprobs):
            raise _broken(f"row {number} has {len(row.output)} tokens and {len(row.sampler_logprobs)} log-probs")
    return batch


def _broken(why: str) -> TrainingError:
    return TrainingError("a training batch cannot be used", why, "delete the batch file; the daemon writes it anew")
