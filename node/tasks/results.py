"""The answers of a task's shards with the scores that validators recomputed: tokens from the file, scores from the
report. Nothing that a worker says about its own success is read. Pure over bytes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from node.tasks.records import ShardRecord
from protocol.errors import ProtocolError
from protocol.rollout import ReportRow, RolloutBatch, decode, decode_report
from protocol.tasks import MAX_SHARD_SAMPLES


class TaskAnswer(msgspec.Struct, frozen=True):
    """One answer. output, segments: as in a rollout file; score: None where no validator could decide; logprob:
    mean per sampled token."""

    shard: int
    group: int
    sample: int
    problem_id: str
    prompt: list[int]
    output: list[int]
    segments: list[int]
    finished: bool
    score: float | None
    logprob: float | None
    engine: str


def read_answers(record: ShardRecord, file: bytes, report: bytes) -> list[TaskAnswer]:
    """Those of one shard, in order. report: empty where nobody could score. Raises ProtocolError if the report is not
    about the file."""
    batch = decode(file, MAX_SHARD_SAMPLES)
    if not report:
        return list(_answers(record.shard, batch, ()))
    values = decode_report(report, MAX_SHARD_SAMPLES)
    if values.header.file_root != record.file_root:
        raise ProtocolError("unusable report", f"it is not about the file of shard {record.shard}")
    return list(_answers(record.shard, batch, values.rows))


def _answers(shard: int, batch: RolloutBatch, values: Sequence[ReportRow]) -> Iterator[TaskAnswer]:
    known = {(row.group, row.sample): row for row in values}
    for row in batch.rows:
        found = known.get((row.group, row.sample))
        mean = sum(found.logprobs) / len(found.logprobs) if found and found.logprobs else None
        yield TaskAnswer(
            shard,
            row.group,
            row.sample,
            row.problem_id,
            row.prompt,
            row.output,
            row.segments,
            row.finished,
            # NaN in a report is a reward that validators left open.
            None if found is None or math.isnan(found.reward) else found.reward,
            mean,
            batch.header.engine,
        )


def scores_by_problem(answers: Iterable[TaskAnswer]) -> dict[str, list[float]]:
    """problem id -> scores of its answers, those that were decided; in the order of the problems."""
    found: dict[str, list[float]] = {}
    for answer in answers:
        scores = found.setdefault(answer.problem_id, [])
        if answer.score is not None:
            scores.append(answer.score)
    return found
