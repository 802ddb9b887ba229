"""The trainer: publish each policy, gather verified rollouts, hand the learner one batch per step.

A rollout is used once its quorum is reached (`audit.trust` 'verified') or the first validator has accepted it
('optimistic'), with the values that validators recomputed: nothing that the worker said about itself enters a
batch, nor a group that no validator put through the model. What is rejected after it was trained on is recorded.
Staleness is counted from the policy that made the tokens and enforced here. Publishing and batching are
journaled, so a restart neither repeats nor loses anything.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog
import trio

from node.roles.common import Rate, Station
from node.swarm.ballots import FileState
from node.training.batch import Batch, BatchHeader, BatchRow, encode_batch
from node.training.client import TrainerProcess
from node.training.spool import Spool
from node.weights.publish import Publisher
from protocol.errors import IntellectError, ProtocolError
from protocol.lots import unpack_groups
from protocol.messages import CheckRequested, RolloutCommitted, Signed, VerdictIssued
from protocol.rollout import MAX_FILE_BYTES, MAX_REPORT_BYTES, Report, ReportRow, RolloutBatch, decode, decode_report
from protocol.statements import WorkCommitment
from protocol.values import report_fault

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0
POLL = 0.05
AHEAD = 1
PENDING = 256
FETCHERS = 4
HISTORY = 400
WATCH_POLL = 0.5
REMEMBERED = 8192


class Verified(msgspec.Struct, frozen=True):
    """An accepted file, ready for a batch."""

    root: bytes
    policy_step: int
    rows: tuple[BatchRow, ...]
    tokens: int


class StepMetrics(msgspec.Struct):
    """What the learner says of one step; further fields are ignored here and kept in the spool's file."""

    step: int
    eval_reward: float | None = None
    reward_mean: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None


class Trainer:
    """Drives one learner until the run's last step."""

    def __init__(self, station: Station, learner: TrainerProcess, spool: Spool, publisher: Publisher) -> None:
        self._station = station
        self._learner = learner
        self._spool = spool
        self._publisher = publisher
        self._spec = station.run.spec
        self._steps: dict[bytes, int] = {}
        self._commitments: OrderedDict[bytes, Signed] = OrderedDict()
        self._open: OrderedDict[bytes, float] = OrderedDict()
        self._asked: set[bytes] = set()
        self._verified: deque[Verified] = deque()
        self._taken: set[bytes] = set()
        self._accepted_send, self._accepted = trio.open_memory_channel[bytes](PENDING)
        self.rate = Rate(30.0)
        self.step = -1
        self.done = False
        self.staleness: Counter[int] = Counter()
        self.dropped = 0
        self.invalidated = 0
        self.metrics: deque[StepMetrics] = deque(maxlen=HISTORY)
        self.began_at: float | None = None
        self.seconds = 0.0

    @property
    def queued(self) -> int:
        """Verified rollouts that wait for a batch."""
        return sum(len(file.rows) for file in self._verified)

    async def run(self) -> None:
        journal = self._station.journal
        await journal.do(journal.forget_consumed, self._spool.next_batch())
        self._taken = set(await journal.do(journal.consumed))
        self.invalidated = len(await journal.do(journal.invalidated))
        await self._recall()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._learner.run)
            nursery.start_soon(self._note_commitments)
            nursery.start_soon(self._follow_jury)
            nursery.start_soon(self._watch_clock)
            for _ in range(FETCHERS):
                nursery.start_soon(self._fetch_accepted)
            nursery.start_soon(self._feed)
            nursery.start_soon(self._publish)

    # policies out

    async def _publish(self) -> None:
        """Publish each completed step in order; the newest ones again after a restart."""
        first = max(0, self._spool.newest_step() - self._spec.recipe.max_staleness)
        for step in range(first, self._spec.recipe.steps + 1):
            while not self._spool.is_complete(step):  # noqa: ASYNC110 - another process writes the spool
                await trio.sleep(POLL)
            metrics = await trio.to_thread.run_sync(self._read_metrics, step)
            held = await self._publisher.publish(step, self._spool.policy_path(step))
            self._steps[held.root] = step
            self._station.shelf.put(held)
            await self._count_time()
            self._spool.forget_policies(step - self._spec.recipe.max_staleness - 1)
            self.step = step
            if not self.metrics or metrics.step > self.metrics[-1].step:
                self.metrics.append(metrics)
            if self._reached_target():
                log.info("run.target_reached", step=step)
                break
        self.done = True
        self._learner.finish()
        log.info("run.finished", step=self.step, seconds=round(self.seconds, 1))

    async def _recall(self) -> None:
        """After a restart: the curve so far, and when training began."""
        journal = self._station.journal
        began = await journal.do(journal.recall, "training_began")
        self.began_at = float(began) if began else None
        last = self._spool.newest_step()
        for step in range(max(0, last + 1 - HISTORY), last + 1):
            self.metrics.append(await trio.to_thread.run_sync(self._read_metrics, step))

    async def _count_time(self) -> None:
        """Training time runs from the first policy, through restarts."""
        now = time.time()
        if self.began_at is None:
            self.began_at = now
            journal = self._station.journal
            await journal.do(journal.remember, "training_began", repr(now).encode())
        self.seconds = now - self.began_at

    def _read_metrics(self, step: int) -> StepMetrics:
        return msgspec.json.decode(self._spool.metrics_path(step).read_bytes(), type=StepMetrics)

    def _reached_target(self) -> bool:
        """The mean held-back reward of the last ten evaluations has reached the run's target."""
        target = self._spec.recipe.target_reward
        recent = [m.eval_reward for m in self.metrics if m.eval_reward is not None][-10:]
        return target is not None and len(recent) == 10 and sum(recent) / 10 >= target

    # verdicts in

    async def _note_commitments(self) -> None:
        async for signed in self._station.board.subscribe(RolloutCommitted):
            message = signed.message
            assert isinstance(message, RolloutCommitted)  # noqa: S101 - the subscription's type
            root = message.commitment.file_root
            self._commitments[root] = signed
            self._open.setdefault(root, trio.current_time())
            while len(self._commitments) > REMEMBERED:
                self._commitments.popitem(last=False)
            while len(self._open) > REMEMBERED:
                self._open.popitem(last=False)
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
        self._asked = {*list(self._asked)[-REMEMBERED:], root}
        signed = self._commitments.get(root)
        step = self._steps.get(_commitment(signed).policy_root) if signed else None
        if signed is None or step is None or not self._fresh(step):
            self._open.pop(root, None)
            return
        await self._station.board.post(CheckRequested(pool=self._station.pool, commitment=signed.raw))
        log.info("verdict.wanted", root=root.hex()[:16])

    async def _decide(self, root: bytes) -> None:
        """Fetch a file as soon as the run's rule lets it be used; note one that was used and is rejected now."""
        ballots = self._station.jury.ballots
        state = ballots.state(root)
        if root in self._taken:
            if state is FileState.REJECTED:
                await self._invalidate(root)
            return
        if state is FileState.REJECTED:
            self._open.pop(root, None)
            return
        believed = self._spec.audit.optimistic and state is FileState.OPEN and bool(ballots.accepting(root))
        if root not in self._commitments or not (believed or state is FileState.ACCEPTED):
            return
        self._taken.add(root)
        self._open.pop(root, None)
        try:
            self._accepted_send.send_nowait(root)
        except trio.WouldBlock:
            self._taken.discard(root)
            self.dropped += 1

    async def _invalidate(self, root: bytes) -> None:
        """A file that was taken is rejected after all: out of the queue, or on record if it trained a step already."""
        waiting = [file for file in self._verified if file.root == root]
        for file in waiting:
            self._verified.remove(file)
        journal = self._station.journal
        if await journal.do(journal.invalidate, root, "rejected by the quorum after it was used"):
            self.invalidated += 1
            log.warning("rollout.invalidated", root=root.hex()[:16])

    async def _fetch_accepted(self) -> None:
        async for root in self._accepted:
            try:
                file = await self._obtain(root)
            except IntellectError as error:
                log.warning("rollout.lost", root=root.hex()[:16], why=error.why)
                continue
            if file is None:
                self.dropped += 1
                continue
            self._verified.append(file)
            self.rate.add(file.tokens)

    async def _obtain(self, root: bytes) -> Verified | None:
        """Tokens from the worker's file, rewards and log-probs from the reports of the validators that accepted it."""
        signed = self._commitments[root]
        message, commitment = signed.message, _commitment(signed)
        assert isinstance(message, RolloutCommitted)  # noqa: S101 - what was noted
        step = self._steps.get(commitment.policy_root)
        if step is None or not self._fresh(step):
            return None
        votes = {a: vote for a, vote in self._station.jury.ballots.accepting(root).items() if vote.report_root}
        blobs = self._station.blobs
        reports: list[tuple[VerdictIssued, Path]] = []
        for author, vote in votes.items():
            limit = min(vote.report_size, MAX_REPORT_BYTES)
            try:
                path = await blobs.fetch(vote.report_root, [author], max_size=limit, timeout=FETCH_TIMEOUT)
            except IntellectError as error:
                log.info("report.unavailable", validator=author, why=error.why)
                continue
            reports.append((vote, path))
            if len(self._covered(reports)) == self._spec.rollout.prompts_per_file:
                break
        if not reports:
            return None
        holders = [commitment.node, *votes]
        file = await blobs.fetch(root, holders, max_size=min(message.size, MAX_FILE_BYTES), timeout=FETCH_TIMEOUT)
        return await trio.to_thread.run_sync(self._join, root, step, file, reports)

    def _covered(self, reports: list[tuple[VerdictIssued, Path]]) -> set[int]:
        groups = self._spec.rollout.prompts_per_file
        return {group for vote, _ in reports for group in unpack_groups(vote.checked, groups) or ()}

    def _join(self, root: bytes, step: int, path: Path, reports: list[tuple[VerdictIssued, Path]]) -> Verified | None:
        """Pair the samples of a file with their recomputed values; samples that nobody recomputed are left out."""
        batch = decode(path.read_bytes(), self._spec.rollout.samples_per_file)
        values: dict[tuple[int, int], ReportRow] = {}
        for vote, where in reports:
            for row in self._read_report(root, vote, where).rows:
                values.setdefault((row.group, row.sample), row)
        rows = _pair(batch, values, int.from_bytes(root[:6]) << 14, step)
        return Verified(root, step, rows, batch.units) if rows else None

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

    # batches in

    async def _feed(self) -> None:
        """Hand the learner batch N as soon as it has policy N (or is about to), from fresh files, oldest first."""
        while not self.done:
            step = self._spool.next_batch()
            if step >= self._spec.recipe.steps:
                return
            if step <= self.step + AHEAD:
                self._drop_stale(step)
                chosen = self._choose()
                if chosen:
                    await self._hand_over(step, chosen)
                    continue
            await trio.sleep(POLL)

    def _fresh(self, policy_step: int) -> bool:
        return self._spool.next_batch() - policy_step <= self._spec.recipe.max_staleness

    def _drop_stale(self, step: int) -> None:
        fresh = [file for file in self._verified if step - file.policy_step <= self._spec.recipe.max_staleness]
        self.dropped += len(self._verified) - len(fresh)
        self._verified = deque(fresh)

    def _choose(self) -> list[Verified]:
        """Enough whole files for one step, the oldest policies first; empty while there are too few."""
        wanted = self._spec.rollout.prompts_per_step * self._spec.rollout.group_size
        chosen: list[Verified] = []
        rows = 0
        for file in sorted(self._verified, key=lambda file: file.policy_step):
            if rows >= wanted:
                break
            chosen.append(file)
            rows += len(file.rows)
        return chosen if rows >= wanted else []

    async def _hand_over(self, step: int, chosen: list[Verified]) -> None:
        batch = Batch(BatchHeader(step), tuple(row for file in chosen for row in file.rows))
        encoded = await trio.to_thread.run_sync(encode_batch, batch)
        roots = [file.root for file in chosen]
        await self._station.journal.do(self._station.journal.consume, roots, step)
        await trio.to_thread.run_sync(self._spool.write_batch, step, encoded)
        for file in chosen:
            self._verified.remove(file)
            self.staleness[step - file.policy_step] += 1
        log.info("batch.written", step=step, files=len(chosen), rows=len(batch.rows))


def _commitment(signed: Signed) -> WorkCommitment:
    assert isinstance(signed.message, RolloutCommitted)  # noqa: S101 - what was subscribed to
    return signed.message.commitment


def _pair(
    batch: RolloutBatch, values: Mapping[tuple[int, int], ReportRow], key: int, step: int
) -> tuple[BatchRow, ...]:
    """Rows for the learner, of every sample that has recomputed values."""
    rows: list[BatchRow] = []
    for sample in batch.rows:
        value = values.get((sample.group, sample.sample))
        if value is None:
            continue
        if len(value.logprobs) != len(sample.output):
            raise ProtocolError("unusable report", "it has another number of log-probs than tokens")
        rows.append(BatchRow(key + sample.group, sample.prompt, sample.output, value.logprobs, value.reward, step))
    return tuple(rows)
