"""From an accepted file and a validator's report to groups that may be trained on.

Tokens come from the worker's file, rewards and log-probs from the report, targets from the draw; nothing that the
worker says about its own success is read. Pure.
"""

import math

from node.environments.mix import label_of
from node.recipe.pool import Group, PoolSample
from node.training.batch import BatchRow
from protocol.budgets import draw_targets, task_reward
from protocol.errors import ProtocolError
from protocol.manifest import lot_of
from protocol.rollout import ReportRow, RolloutBatch, SampleRow, ValidatorReport
from protocol.run import RunSpec
from protocol.segments import objection

MAX_LOGPROB = 1e-3
"""A log-probability may exceed 0 by no more than rounding."""


def join(
    run: RunSpec, root: bytes, policy_step: int, batch: RolloutBatch, report: ValidatorReport, *, name: bytes = b""
) -> list[Group]:
    """The groups of one file that the report recomputes, in order. root: of the file (32 bytes); name: what the groups
    go by (32 bytes, the id of its work), the root where there is none. Raises ProtocolError for a report that is not
    about it, holds part of a group, or whose numbers are not finite."""
    values = _values(root, batch, report)
    header = batch.header
    try:
        targets = draw_targets(run, bytes.fromhex(header.policy_root), header.node, header.index, header.capacity)
    except ValueError as error:
        # The capacity class stands in the worker's file, and may be none that the run has.
        raise _unusable(str(error)) from None
    name = name or root
    lot = lot_of(header.pool, bytes.fromhex(header.policy_root), header.node, header.index)
    # 48 bits of the name and room for 16,384 groups: a number that SQLite, Arrow and torch hold as int64.
    key = int.from_bytes(name[:6]) << 14
    rows: dict[int, list[tuple[BatchRow, PoolSample]]] = {}
    labels: dict[int, str] = {}
    for sample in batch.rows:
        value = values.get((sample.group, sample.sample))
        if value is None:
            continue
        # Before it reaches the learner: one NaN in a batch is a NaN in every weight.
        _check_numbers(sample, value.reward, value.logprobs)
        target = targets[sample.group] if targets else None
        length = sample.units
        task = task_reward(run.length_budget, value.reward, length, target)
        labels[sample.group] = label = label_of(run.environment, sample.problem_id)
        row = BatchRow(
            group_key=key + sample.group,
            prompt=sample.prompt,
            output=sample.output,
            sampler_logprobs=value.logprobs,
            reward=value.reward,
            policy_step=policy_step,
            environment=label,
            task_reward=task,
            target_length=target or 0,
            finished=sample.finished,
            segments=sample.segments,
            experts=sample.experts,
        )
        rows.setdefault(sample.group, []).append((row, PoolSample(length, value.reward, task, sample.finished, target)))
    return [
        Group(
            key=(name, group),
            policy_step=policy_step,
            rows=tuple(row for row, _ in members),
            samples=tuple(sample for _, sample in members),
            label=labels[group],
            order=(policy_step, lot),
        )
        for group, members in rows.items()
    ]


def _values(root: bytes, batch: RolloutBatch, report: ValidatorReport) -> dict[tuple[int, int], ReportRow]:
    """(group, sample) -> what was recomputed of it."""
    if report.header.file_root != root.hex() or report.header.policy_root != batch.header.policy_root:
        raise _unusable("it is not about this file")
    values = {(row.group, row.sample): row for row in report.rows}
    # Named twice, a sample would have two rewards, and the last one would win.
    if len(values) != len(report.rows):
        raise _unusable("it names a sample twice")
    checked = {group for group, _ in values}
    if {(row.group, row.sample) for row in batch.rows if row.group in checked} != values.keys():
        raise _unusable("a group of it is not the file's, or not whole")
    return values


def _check_numbers(sample: SampleRow, reward: float, logprobs: list[float]) -> None:
    place = f"group {sample.group} sample {sample.sample}"
    if not sample.prompt or not sample.output:
        raise _unusable(f"{place} has an empty prompt or output")
    if objection(sample.segments, len(sample.output)):
        raise _unusable(f"{place} has {objection(sample.segments, len(sample.output))}")
    if len(logprobs) != sample.units:
        raise _unusable(f"{place} has {len(logprobs)} log-probs for {sample.units} tokens")
    if not math.isfinite(reward) or not all(math.isfinite(p) and p <= MAX_LOGPROB for p in logprobs):
        raise _unusable(f"{place} has a reward or log-prob that is no such number")


def _unusable(why: str) -> ProtocolError:
    return ProtocolError("unusable report", why)
