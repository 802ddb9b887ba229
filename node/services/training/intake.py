"""What the trainer may train on: files that the jury accepts, with the values that validators recomputed.

A file is used once its quorum is reached (`audit.trust` 'verified') or the first validator has accepted it
('optimistic'). Nothing that the worker said about itself leaves this module, nor a group that no validator put
through the model. What is rejected after it was used is forgotten where it waits, and recorded where it trained a step.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog
import trio

from node.recipe.join import join
from node.recipe.pool import Group
from node.services.station import Station
from node.services.training.journeys import Journeys
from node.swarm.ballots import FileState
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address
from protocol.lots import unpack_groups
from protocol.messages import CheckRequested, RolloutCommitted, Signed, VerdictIssued
from protocol.rollout import MAX_FILE_BYTES, MAX_REPORT_BYTES, Report, ReportHeader, ReportRow, decode, decode_report
from protocol.statements import WorkCommitment
from protocol.values import report_fault

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0
PENDING = 256
FETCHERS = 4
WATCH_POLL = 0.5
REMEMBERED = 8192


class Intake:
    """A service. step_of: the step of one of our policies, awaited if it may still be published; fresh: whether
    groups of a step may still be trained on; taken_in, taken_back: what becomes of groups, and of a file's root;
    journeys: hears how far each file has come."""

    def __init__(
        self,
        station: Station,
        *,
        step_of: Callable[[bytes], Awaitable[int | None]],
        fresh: Callable[[int], bool],
        taken_in: Callable[[list[Group]], None],
        taken_back: Callable[[bytes], int],
        journeys: Journeys | None = None,
    ) -> None:
        self._station = station
        self._spec = station.run.spec
        self._step_of = step_of
        self._fresh = fresh
        self._taken_in = taken_in
        self._taken_back = taken_back
        self._journeys = journeys or Journeys()
        self._commitments: OrderedDict[bytes, Signed] = OrderedDict()
        self._open: OrderedDict[bytes, float] = OrderedDict()
        self._asked: OrderedDict[bytes, None] = OrderedDict()
        self._taken: set[bytes] = set()
        self._trained: set[bytes] = set()  # before this start; what is left of them may still be taken in
        self._accepted_send, self._accepted = trio.open_memory_channel[bytes](PENDING)
        self.lost = 0
        self.invalidated = 0

    async def run(self) -> None:
        """Take in files until cancelled."""
        journal = self._station.journal
        self._trained = {name[:32] for name in await journal.do(journal.consumed)}
        self.invalidated = len(await journal.do(journal.invalidated))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_commitments)
            nursery.start_soon(self._follow_jury)
            nursery.start_soon(self._watch_clock)
            for _ in range(FETCHERS):
                nursery.start_soon(self._fetch_accepted)

    async def _note_commitments(self) -> None:
        async for signed in self._station.board.subscribe(RolloutCommitted):
            root = _commitment(signed).file_root
            self._commitments[root] = signed
            self._journeys.reached(root, "commit")
            self._open.setdefault(root, trio.current_time())
            for table in (self._commitments, self._open):
                while len(table) > REMEMBERED:
                    table.popitem(last=False)
            await self._decide(root)

    async def _follow_jury(self) -> None:
        async for root in self._station.jury.watch():
            await self._decide(root)

    async def _watch_clock(self) -> None:
        """What only time decides: silent validators are asked again, then gone without."""
        patience = self._spec.audit.verdict_seconds
        while True:
            await trio.sleep(WATCH_POLL)
            for root, heard in list(self._open.items()):
                waited = trio.current_time() - heard
                if waited > patience / 2 and root not in self._asked:
                    await self._ask_again(root)
                if waited > patience:
                    await self._decide(root)
                if waited > 4 * patience:
                    self._open.pop(root, None)

    async def _ask_again(self, root: bytes) -> None:
        """Ask every validator for its verdict on a file that waits too long."""
        self._asked[root] = None
        while len(self._asked) > REMEMBERED:
            self._asked.popitem(last=False)
        signed = self._commitments.get(root)
        step = await self._step_of(_commitment(signed).policy_root) if signed else None
        if signed is None or step is None or not self._fresh(step):
            self._open.pop(root, None)
            return
        await self._station.board.post(CheckRequested(pool=self._station.pool, commitment=signed.raw))
        log.info("verdict.wanted", root=root.hex()[:16])

    async def _decide(self, root: bytes) -> None:
        """Fetch a file as soon as the run's rule lets it be used; note one that was used and is rejected now."""
        ballots = self._station.jury.ballots
        state = ballots.state(root)
        if state is FileState.REJECTED:
            self._open.pop(root, None)
            if root in self._taken or root in self._trained:
                await self._invalidate(root)
            return
        believed = self._spec.audit.optimistic and state is FileState.OPEN and bool(ballots.accepting(root))
        if root in self._taken or root not in self._commitments or not (believed or state is FileState.ACCEPTED):
            return
        self._taken.add(root)
        self._open.pop(root, None)
        self._journeys.reached(root, "verify")
        try:
            self._accepted_send.send_nowait(root)
        except trio.WouldBlock:
            self._taken.discard(root)
            self.lost += 1

    async def _invalidate(self, root: bytes) -> None:
        """A file that was taken is rejected after all: out of the queue, and on record if it trained a step already."""
        self._taken_back(root)
        journal = self._station.journal
        if await journal.do(journal.invalidate, root, "rejected by the quorum after it was used"):
            self.invalidated += 1
            log.warning("rollout.invalidated", root=root.hex()[:16])

    async def _fetch_accepted(self) -> None:
        async for root in self._accepted:
            try:
                groups = await self._obtain(root)
            except IntellectError as error:
                log.warning("rollout.lost", root=root.hex()[:16], why=error.why)
                groups = []
            if not groups:
                self.lost += 1
            elif self._station.jury.ballots.state(root) is not FileState.REJECTED:
                self._journeys.reached(root, "fetch")
                self._taken_in(groups)

    async def _obtain(self, root: bytes) -> list[Group]:
        """Tokens from the worker's file, rewards and log-probs from the reports of validators that accepted it; nothing
        if it is stale, or nobody's report can be had."""
        signed = self._commitments[root]
        message, commitment = signed.message, _commitment(signed)
        assert isinstance(message, RolloutCommitted)  # noqa: S101 - what was noted
        step = await self._step_of(commitment.policy_root)
        if step is None or not self._fresh(step):
            return []
        votes = {a: vote for a, vote in self._station.jury.ballots.accepting(root).items() if vote.report_root}
        reports = await self._fetch_reports(votes)
        if not reports:
            return []
        holders = [commitment.node, *votes]
        limit = min(message.size, MAX_FILE_BYTES)
        file = await self._station.blobs.fetch(root, holders, max_size=limit, timeout=FETCH_TIMEOUT)
        return await trio.to_thread.run_sync(self._join, root, step, file, reports)

    async def _fetch_reports(self, votes: Mapping[Address, VerdictIssued]) -> list[tuple[VerdictIssued, Path]]:
        """Reports until every group of the file is covered."""
        reports: list[tuple[VerdictIssued, Path]] = []
        for author, vote in votes.items():
            limit = min(vote.report_size, MAX_REPORT_BYTES)
            try:
                path = await self._station.blobs.fetch(
                    vote.report_root, [author], max_size=limit, timeout=FETCH_TIMEOUT
                )
            except IntellectError as error:
                log.info("report.unavailable", validator=author, why=error.why)
                continue
            reports.append((vote, path))
            if len(self._covered(reports)) == self._spec.rollout.prompts_per_file:
                break
        return reports

    def _covered(self, reports: list[tuple[VerdictIssued, Path]]) -> set[int]:
        groups = self._spec.rollout.prompts_per_file
        return {group for vote, _ in reports for group in unpack_groups(vote.checked, groups) or ()}

    def _join(self, root: bytes, step: int, path: Path, reports: list[tuple[VerdictIssued, Path]]) -> list[Group]:
        """Pair the samples of a file with their recomputed values; groups that nobody recomputed are left out."""
        batch = decode(path.read_bytes(), self._spec.rollout.samples_per_file)
        values: dict[int, list[ReportRow]] = {}
        for vote, where in reports:
            found: dict[int, list[ReportRow]] = {}
            for row in self._read_report(root, vote, where).rows:
                found.setdefault(row.group, []).append(row)
            values = {**found, **values}  # the first report that has a group is the one
        header = ReportHeader(root.hex(), batch.header.policy_root)
        merged = Report(header, tuple(row for group in sorted(values) for row in values[group]))
        return join(self._spec, root, step, batch, merged)

    def _read_report(self, root: bytes, vote: VerdictIssued, path: Path) -> Report:
        """A report that is about this file and holds what its author signed; raises ProtocolError."""
        rollout = self._spec.rollout
        report = decode_report(path.read_bytes(), rollout.samples_per_file)
        if report.header.file_root != root.hex():
            raise ProtocolError("unusable report", "it is not about this file")
        fault = report_fault(report, vote, rollout.prompts_per_file, rollout.group_size)
        if fault is not None:
            raise ProtocolError("unusable report", fault)
        return report


def _commitment(signed: Signed) -> WorkCommitment:
    assert isinstance(signed.message, RolloutCommitted)  # noqa: S101 - what was subscribed to
    return signed.message.commitment
