"""The trainer: publish each policy, gather verified rollouts, hand the learner one batch per step.

A rollout is used once its quorum is reached, with the values that validators recomputed: nothing that the
worker said about itself enters a batch. Staleness is counted from the policy that made the tokens and
enforced here. Publishing and batching are journaled, so a restart neither repeats nor loses anything.
"""

import time
from collections import Counter, OrderedDict, deque
from pathlib import Path

import msgspec
import structlog
import trio

from node.roles.common import Rate, Station
from node.training.batch import Batch, BatchHeader, BatchRow, encode_batch
from node.training.client import TrainerProcess
from node.training.spool import Spool
from node.weights.publish import Publisher
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address
from protocol.messages import RolloutCommitted, VerdictIssued
from protocol.rollout import MAX_FILE_BYTES, MAX_REPORT_BYTES, decode, decode_report
from protocol.statements import Outcome

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0
POLL = 0.05
AHEAD = 1
PENDING = 256
FETCHERS = 4
HISTORY = 400


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
        self._commitments: OrderedDict[bytes, RolloutCommitted] = OrderedDict()
        self._votes: OrderedDict[bytes, dict[Address, VerdictIssued]] = OrderedDict()
        self._verified: deque[Verified] = deque()
        self._taken: set[bytes] = set()
        self._accepted_send, self._accepted = trio.open_memory_channel[bytes](PENDING)
        self.rate = Rate(30.0)
        self.step = -1
        self.done = False
        self.staleness: Counter[int] = Counter()
        self.dropped = 0
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
        await self._recall()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._learner.run)
            nursery.start_soon(self._note_commitments)
            nursery.start_soon(self._count_votes)
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
            self._commitments[message.commitment.file_root] = message
            if len(self._commitments) > 8192:
                self._commitments.popitem(last=False)
            self._decide(message.commitment.file_root)

    async def _count_votes(self) -> None:
        async for signed in self._station.board.subscribe(VerdictIssued):
            message = signed.message
            assert isinstance(message, VerdictIssued)  # noqa: S101 - the subscription's type
            root = message.verdict.file_root
            self._votes.setdefault(root, {})[signed.author] = message
            if len(self._votes) > 8192:
                self._votes.popitem(last=False)
            self._decide(root)

    def _decide(self, root: bytes) -> None:
        """Once a quorum accepts a file whose commitment is known, fetch it."""
        accepting = [vote for vote in self._votes.get(root, {}).values() if vote.verdict.outcome == Outcome.ACCEPT]
        if root in self._taken or root not in self._commitments or len(accepting) < self._station.quorum:
            return
        self._taken.add(root)
        try:
            self._accepted_send.send_nowait(root)
        except trio.WouldBlock:
            self._taken.discard(root)
            self.dropped += 1

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
        """Tokens from the worker's file, rewards and log-probs from an accepting validator's report."""
        message = self._commitments[root]
        commitment = message.commitment
        step = self._steps.get(commitment.policy_root)
        if step is None or not self._fresh(step):
            return None
        voters = list(self._votes[root].items())
        vote_by, vote = next((a, v) for a, v in voters if v.verdict.outcome == Outcome.ACCEPT)
        holders = [commitment.node, *(address for address, _ in voters)]
        blobs = self._station.blobs
        file = await blobs.fetch(root, holders, max_size=min(message.size, MAX_FILE_BYTES), timeout=FETCH_TIMEOUT)
        report = await blobs.fetch(
            vote.report_root, [vote_by], max_size=min(vote.report_size, MAX_REPORT_BYTES), timeout=FETCH_TIMEOUT
        )
        return await trio.to_thread.run_sync(self._join, root, step, file, report)

    def _join(self, root: bytes, step: int, file: Path, report: Path) -> Verified:
        """Pair the samples of a file with their recomputed values."""
        limit = self._spec.rollout.samples_per_file
        batch = decode(file.read_bytes(), limit)
        values = decode_report(report.read_bytes(), limit)
        if values.header.file_root != root.hex() or len(values.rows) != len(batch.rows):
            raise ProtocolError("unusable report", "it is not about this file")
        key = int.from_bytes(root[:6]) << 14
        rows: list[BatchRow] = []
        for sample, value in zip(batch.rows, values.rows, strict=True):
            if (sample.group, sample.sample) != (value.group, value.sample):
                raise ProtocolError("unusable report", "its rows are in another order")
            if len(value.logprobs) != len(sample.output):
                raise ProtocolError("unusable report", "it has another number of log-probs than tokens")
            rows.append(BatchRow(key + sample.group, sample.prompt, sample.output, value.logprobs, value.reward, step))
        return Verified(root, step, tuple(rows), batch.units)

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
