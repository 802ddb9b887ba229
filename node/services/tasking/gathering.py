"""One accepted result, from those who have it into the task's folder: file, a report that fits a verdict, record."""

import time
from pathlib import Path

import trio

from node.services.context import Context
from node.services.training.values import check_report
from node.state.files import as_named
from node.swarm.register import RegisteredWork
from node.tasks.records import ShardRecord, TaskFolder, VerdictRecord
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address
from protocol.messages import Judgement
from protocol.rollout import MAX_REPORT_BYTES, decode_report
from protocol.tasks import MAX_SHARD_SAMPLES

FETCH_TIMEOUT = 30.0


async def gather(context: Context, folder: TaskFolder, work: RegisteredWork) -> None:
    """Keep the result of a shard. Raises IntellectError where the file, or every report, cannot be had or is none."""
    votes = context.state.vote_set.accepting(work.id)
    report = await _report(context, work, votes)
    commitment = work.commitment
    file = await context.blobs.fetch(
        commitment.file_root,
        [work.node, *votes],
        max_size=work.most_bytes,
        timeout=FETCH_TIMEOUT,
    )
    context.state.register.was_delivered(work)
    record = ShardRecord(
        shard=commitment.index,
        node=work.node,
        work=work.id.hex(),
        file_root=commitment.file_root.hex(),
        units=commitment.units,
        signature=work.signed.message.signature.hex(),
        verdicts=tuple(_recorded(author, vote) for author, vote in votes.items()),
        at=time.time(),
        epoch=commitment.epoch,
    )
    await trio.to_thread.run_sync(folder.add, record, file, report)


async def _report(context: Context, work: RegisteredWork, votes: dict[Address, Judgement]) -> bytes:
    """The report that decides most groups: what one validator could not score in time another one may have. Empty where
    nobody could decide about any."""
    best, most, groups = b"", -1, work.groups
    if votes and not any(vote.report_root for vote in votes.values()):
        return b""
    for author, vote in votes.items():
        if not vote.report_root:
            continue
        try:
            limit = min(vote.report_size, MAX_REPORT_BYTES)
            path = await context.blobs.fetch(vote.report_root, [author], max_size=limit, timeout=FETCH_TIMEOUT)
            data, decided = await trio.to_thread.run_sync(_read, work, vote, path)
        except IntellectError:
            continue
        if decided > most:
            best, most = data, decided
        if most == groups:
            break
    if most < 0:
        raise ProtocolError("no report", f"none of {len(votes)} validators hands a fitting one over")
    return best


def _read(work: RegisteredWork, vote: Judgement, path: Path) -> tuple[bytes, int]:
    """(a report that is about this file and holds what its author signed, groups in it). Raises ProtocolError."""
    data = as_named(path.read_bytes(), vote.report_root, "a report")
    report = decode_report(data, MAX_SHARD_SAMPLES)
    size = work.task.spec.samples if work.task else 1
    check_report(report, work.commitment.file_root, vote, work.groups, size)
    return data, len({row.group for row in report.rows})


def _recorded(author: Address, vote: Judgement) -> VerdictRecord:
    verdict = vote.verdict
    return VerdictRecord(author, verdict.outcome, verdict.reason, vote.signature.hex(), vote.report_root.hex())
