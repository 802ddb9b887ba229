"""What a teacher says of a rollout file: how likely it finds each sampled token, in the form of a report.

Its header names the task in place of the policy, so no validator's report can pass for one. Rewards in it are 0 and
nobody reads them. Honest nodes round differently, so two results are compared token by token. Pure.
"""

import math
from collections.abc import Sequence

from protocol.rollout import (
    MalformedRollout,
    ReportHeader,
    ReportRow,
    SampleRow,
    ValidatorReport,
    decode_report,
    encode_report,
)
from protocol.values import rows_differ

Taught = dict[int, list[ReportRow]]
"""Group -> its samples, in the file's order."""


def encode_taught(
    file_root: bytes, task: bytes, rows: Sequence[SampleRow], logprobs: Sequence[Sequence[float]]
) -> bytes:
    """rows: of the file; logprobs: of the sampled tokens of each."""
    said = (ReportRow(row.group, row.sample, 0.0, [*own]) for row, own in zip(rows, logprobs, strict=True))
    return encode_report(ValidatorReport(ReportHeader(file_root.hex(), task.hex()), tuple(said)))


def decode_taught(data: bytes, file_root: bytes, task: bytes, most_rows: int) -> Taught:
    """Raises MalformedRollout for what is of another file or task, or no log-probabilities. Whether its samples are the
    file's is for whoever has these."""
    report = decode_report(data, most_rows)
    if report.header != ReportHeader(file_root.hex(), task.hex()):
        raise _bad("it is of another file or task")
    most_logprob = 1e-3  # rounding by which a log-probability may exceed 0
    if not all(math.isfinite(one) and one <= most_logprob for row in report.rows for one in row.logprobs):
        raise _bad("it has a log-probability that is no such number")
    found: Taught = {}
    for row in report.rows:
        found.setdefault(row.group, []).append(row)
    return found


def taught_otherwise(own: Taught, theirs: Taught, tolerance: float) -> str:
    """How two results on one file differ beyond rounding, in words; empty where they do not. tolerance: as in
    `rows_differ`, for each group by itself: one that is moved is not hidden by the others."""
    if _places(own) != _places(theirs):
        return "its samples are not the file's"
    for group, rows in own.items():
        finding = rows_differ(rows, theirs[group], tolerance)
        if finding is not None:
            return f"group {group}: {finding.what}"
    return ""


def _places(taught: Taught) -> list[tuple[int, int, int]]:
    return [(row.group, row.sample, len(row.logprobs)) for rows in taught.values() for row in rows]


def _bad(why: str) -> MalformedRollout:
    return MalformedRollout("unusable result of a teacher", why)
