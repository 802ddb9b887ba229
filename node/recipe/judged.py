"""What judges agreed on about a file's answers, from what a manifest names: leader and standbys read the
same. Pure.

Whether the judges were asked about these very answers follows from the bytes; whether the pool accepted their work is
the jury's to say, as it is of rollouts.
"""

import math
from collections.abc import Callable, Iterator, Mapping

from node.inference.opinions import MOST_ANSWERS, agreed
from protocol.manifest import JudgedShard, JudgedTask, MalformedManifest, UsedWork
from protocol.rollout import RolloutBatch, decode, decode_report
from protocol.tasks import MAX_SHARD_SAMPLES, TaskSpec, decode_task

Blobs = Callable[[bytes], bytes]
"""Root -> bytes. Raises for what cannot be had."""
Place = tuple[int, int]
"""(group, sample)."""
Scores = Mapping[Place, float]
"""What judges agreed on."""
PREFIX = "rewards of "
"""Begins the nonce of a judge task for training; the name of the work follows."""


def scores_of(work: UsedWork, name: bytes, batch: RolloutBatch, blobs: Blobs) -> Scores:
    """Of the answers that have one. batch: the work's file. Raises ProtocolError for what breaks a rule."""
    found: dict[Place, float] = {}
    for task in work.judged:
        spec = decode_task(blobs(task.task))
        # The list also holds what a teacher was asked, which is for `TeacherQueue`.
        if spec.kind == "teach":
            continue
        # The nonce names the work, so that opinions about other answers do not serve here.
        if (spec.kind, spec.nonce, spec.subject) != ("judge", PREFIX + name.hex(), task.subject.hex()):
            raise _bad("a task is not for judges of this file")
        places = _places(batch, decode(blobs(task.subject), MOST_ANSWERS))
        opinions: dict[Place, list[float]] = {}
        for one in task.shards:
            for number, score in _opinions(spec, task, one, blobs(one.report_root)):
                if number >= len(places):
                    raise _bad("a judge's work is about an answer that was not asked about")
                opinions.setdefault(places[number], []).append(score)
        agreements = {place: agreed(given, spec.copies) for place, given in opinions.items()}
        found |= {place: score for place, score in agreements.items() if score is not None}
    return found


def _places(batch: RolloutBatch, subject: RolloutBatch) -> list[Place]:
    """Of the answers that judges were given, in their order, which must be the file's own."""
    own = {(row.group, row.sample): row for row in batch.rows}
    for row in subject.rows:
        # All of the row: judges of another answer would score what nobody committed to.
        if own.get((row.group, row.sample)) != row:
            raise _bad("judges were given another answer than the file's")
    return [(row.group, row.sample) for row in subject.rows]


def _opinions(spec: TaskSpec, task: JudgedTask, one: JudgedShard, report: bytes) -> Iterator[tuple[int, float]]:
    """(number of the answer, score) of one judge's work."""
    if one.shard >= spec.shards:
        raise _bad(f"a judge task has no shard {one.shard}")
    values = decode_report(report, MAX_SHARD_SAMPLES)
    # In the files of a task its id stands where a rollout's has the policy root.
    if values.header.file_root != one.file_root.hex() or values.header.policy_root != task.task.hex():
        raise _bad("a report is not about the judge's work")
    numbers = spec.numbers(one.shard)
    for row in values.rows:
        if not (0 <= row.group < len(numbers) and row.sample == 0):
            raise _bad("a report is about an answer that is not the shard's")
        if not math.isnan(row.reward):
            yield numbers[row.group], row.reward


def _bad(why: str) -> MalformedManifest:
    return MalformedManifest("bad batch manifest", why)
