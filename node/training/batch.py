"""The spool's batch file: what one optimiser step learns from, as an Arrow IPC stream.

Written by the daemon from accepted rollouts (tokens) and validators' reports (rewards, log-probs).
Decoding is as strict as for files from strangers; see protocol.rollout.
"""

from collections.abc import Sequence

import msgspec

from node.training.errors import TrainingError
from protocol.errors import UNREADABLE
from protocol.rollout import EXPERTS, SEGMENTS, Columns, MalformedRollout, decode_table, encode_table, with_optional
from protocol.segments import sampled_count, sampled_tokens

MAX_BATCH_ROWS = 1 << 20
MAX_BATCH_BYTES = 1 << 32
MAX_HEADER_BYTES = 1 << 24
"""The names of all groups stand in the header."""


class BatchHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """step: the rollout step that the batch is for (it turns policy `step` into policy `step + 1`).

    files: names of the groups (or whole rollout files) in it, by root: none is ever learnt from twice.
    """

    step: int
    files: tuple[str, ...] = ()
    version: int = 2


class BatchRow(msgspec.Struct, frozen=True):
    """One completion.

    group_key: equal for the samples of one problem in one file; output: at least one token; segments: which of them
    were sampled (protocol.segments): only these are learnt from; sampler_logprobs: float32, one per sampled token, of
    the policy `policy_step` that sampled it, as validators recomputed them; reward: what is learnt from; task_reward:
    the same before any length term (None: no such term); environment: the name of the part of a mix, or "";
    target_length: tokens that the prompt asked for (0: none); finished: False if the output was cut at the limit;
    experts: those that computed it, and that learning computes it with (protocol.routing), none of a model without;
    teacher_logprobs: float32, one per sampled token, of the run's teacher, where a task brought them.
    """

    group_key: int
    prompt: list[int]
    output: list[int]
    sampler_logprobs: list[float]
    reward: float
    policy_step: int
    environment: str = ""
    task_reward: float | None = None
    target_length: int = 0
    finished: bool = True
    segments: list[int] = []
    experts: bytes = b""
    teacher_logprobs: list[float] = []

    @property
    def sampled(self) -> Sequence[int]:
        """The tokens that are learnt from."""
        return sampled_tokens(self.output, self.segments)

    @property
    def length(self) -> int:
        """How many those are: what every term of a length means."""
        return sampled_count(self.segments, len(self.output))

    @property
    def fed(self) -> int:
        """Tokens that a forward pass over the row is given."""
        return len(self.prompt) + len(self.output) - 1

    @property
    def solved(self) -> float:
        """The reward of the task itself."""
        return self.reward if self.task_reward is None else self.task_reward


class Batch(msgspec.Struct, frozen=True):
    header: BatchHeader
    rows: tuple[BatchRow, ...]


_COLUMNS: Columns = (
    ("group_key", "int64"),
    ("prompt", "list<int32>"),
    ("output", "list<int32>"),
    ("sampler_logprobs", "list<float>"),
    ("reward", "float"),
    ("policy_step", "int64"),
    ("environment", "string"),
    ("task_reward", "float"),
    ("target_length", "int32"),
    ("finished", "bool"),
)
_OPTIONAL: Columns = (SEGMENTS, EXPERTS, ("teacher_logprobs", "list<float>"))


def encode_batch(batch: Batch) -> bytes:
    # A number in every row: what reads the stream refuses nulls.
    rows = [msgspec.structs.replace(row, task_reward=row.solved) for row in batch.rows]
    return encode_table(with_optional(_COLUMNS, _OPTIONAL, rows), msgspec.json.encode(batch.header), rows)


def decode_batch(data: bytes) -> Batch:
    """Raises TrainingError if the bytes are not a batch. Whether its rows make sense: node.training.rows."""
    try:
        header, rows = decode_table(
            data, _COLUMNS, MAX_BATCH_ROWS, MAX_BATCH_BYTES, MAX_HEADER_BYTES, optional=_OPTIONAL
        )
        return Batch(msgspec.json.decode(header, type=BatchHeader), tuple(BatchRow(**row) for row in rows))
    except (MalformedRollout, *UNREADABLE) as error:
        raise unusable("a training batch", str(error)) from None


def unusable(which: str, why: str) -> TrainingError:
    return TrainingError(f"{which} cannot be used", why, "delete the batch file; the daemon writes it anew")
