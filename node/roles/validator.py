"""The validator: fetch every committed file, check it, sign a verdict; carry a quorum's verdicts to the chain."""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
import trio

from node.inference.wire import Inspect, Inspected, LoadPolicy
from node.roles.common import LoadedPolicies, Rate, Station
from node.roles.worker import EngineChild
from node.weights.fetch import PolicyFollower
from protocol.checks import Fault, Reason, check_staleness
from protocol.errors import IntellectError
from protocol.messages import MAX_DETAIL, RolloutCommitted, Signed, VerdictIssued
from protocol.rollout import MAX_FILE_BYTES
from protocol.statements import Outcome, Verdict, WorkCommitment, sign

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0
POLICY_TIMEOUT = 30.0
ANNOUNCE_TIMEOUT = 15.0
INSPECT_DEADLINE = 300.0
LOAD_DEADLINE = 120.0
QUEUE = 64
READY = 16
REMEMBERED = 8192
SLASH_TRIES = 20
INSPECT_TRIES = 3


class Judge(Protocol):
    """The part of node.chain that executes a quorum's verdict."""

    async def slash(
        self, commitment: WorkCommitment, node_signature: bytes, reason: int, verdicts: Sequence[bytes]
    ) -> object: ...
    async def evidence(
        self, first: WorkCommitment, first_signature: bytes, second: WorkCommitment, second_signature: bytes
    ) -> object: ...


class Candidate(msgspec.Struct, frozen=True):
    """A committed file on its way to judgement. path: None if it could not be had; already: our verdict of before."""

    message: RolloutCommitted
    path: Path | None
    already: bytes | None


class Judged(msgspec.Struct, frozen=True):
    """One verdict, for the status page. at: monotonic seconds."""

    node: str
    index: int
    step: int
    outcome: int
    reason: int
    detail: str
    at: float


class Validator:
    """Judges files until cancelled."""

    def __init__(
        self, station: Station, engine: EngineChild, policies: PolicyFollower, judge: Judge, scratch: Path
    ) -> None:
        self._station = station
        self._engine = engine
        self._policies = policies
        self._judge = judge
        self._scratch = scratch
        self._loaded = LoadedPolicies(station.run.spec.recipe.max_staleness + 3)
        self._commitments: OrderedDict[tuple[str, bytes, int], RolloutCommitted] = OrderedDict()
        self._executed: set[str] = set()
        self._queues: dict[str, trio.MemorySendChannel[RolloutCommitted]] = {}
        self._ready_send, self._ready = trio.open_memory_channel[Candidate](READY)
        self.rate = Rate()
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.recent: deque[Judged] = deque(maxlen=12)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, nursery)
            nursery.start_soon(self._gather, nursery)
            await self._judge_files()

    # commitments in

    async def _listen(self, nursery: trio.Nursery) -> None:
        async for signed in self._station.board.subscribe(RolloutCommitted):
            await self._consider(signed, nursery)

    async def _consider(self, signed: Signed, nursery: trio.Nursery) -> None:
        message = signed.message
        assert isinstance(message, RolloutCommitted)  # noqa: S101 - the subscription's type
        commitment = message.commitment
        slot = (commitment.node, commitment.policy_root, commitment.index)
        known = self._commitments.get(slot)
        if known is not None:
            if known.commitment.file_root != commitment.file_root:
                await self._report_equivocation(known, message)
            return
        self._commitments[slot] = message
        if len(self._commitments) > REMEMBERED:
            self._commitments.popitem(last=False)
        queue = self._queues.get(commitment.node)
        if queue is None:
            queue, work = trio.open_memory_channel[RolloutCommitted](QUEUE)
            self._queues[commitment.node] = queue
            nursery.start_soon(self._fetch_files, work)
        try:
            queue.send_nowait(message)
        except trio.WouldBlock:
            self.outcomes["skipped"] += 1

    async def _fetch_files(self, work: trio.MemoryReceiveChannel[RolloutCommitted]) -> None:
        """One worker's files, in order. Each worker has its own task: one that does not deliver delays nobody else."""
        async for message in work:
            if self._station.membership.is_member(message.commitment.node):
                await self._ready_send.send(await self._fetch_file(message))

    async def _fetch_file(self, message: RolloutCommitted) -> Candidate:
        commitment = message.commitment
        already = await self._station.journal.do(self._station.journal.said, "verdict", commitment.file_root)
        with trio.move_on_after(ANNOUNCE_TIMEOUT):
            await self._policies.announced(commitment.policy_root)
        if already or self._is_stale(commitment):
            return Candidate(message, None, already)
        try:
            path = await self._station.blobs.fetch(
                commitment.file_root,
                [commitment.node],
                max_size=min(message.size, MAX_FILE_BYTES),
                timeout=FETCH_TIMEOUT,
            )
        except IntellectError as error:
            log.info("rollout.unavailable", node=commitment.node, why=error.why)
            path = None
        return Candidate(message, path, None)

    async def _report_equivocation(self, first: RolloutCommitted, second: RolloutCommitted) -> None:
        """Two contradicting commitments signed by one key are evidence by themselves."""
        node = first.commitment.node
        if node in self._executed:
            return
        self._executed.add(node)
        log.warning("worker.equivocated", node=node, index=first.commitment.index)
        try:
            await self._judge.evidence(first.commitment, first.signature, second.commitment, second.signature)
        except IntellectError as error:
            self._executed.discard(node)
            log.warning("evidence.failed", node=node, why=error.why)

    # judging

    async def _judge_files(self) -> None:
        async for candidate in self._ready:
            commitment = candidate.message.commitment
            if candidate.already:
                await self._station.board.post_raw(candidate.already)
            elif self._station.membership.is_member(commitment.node):
                started = time.monotonic()
                found = await self._inspect(commitment, candidate.path)
                await self._pronounce(candidate.message, found, time.monotonic() - started)

    def _is_stale(self, commitment: WorkCommitment) -> Fault | None:
        step = self._policies.step_of(commitment.policy_root)
        if step is None:
            return Fault(Reason.STALE, "made by a policy that is not among the recent ones")
        return check_staleness(step, self._policies.newest_step, self._station.run.spec)

    async def _inspect(self, commitment: WorkCommitment, path: Path | None) -> Inspected | Fault:
        fault = self._is_stale(commitment)
        if fault:
            return fault
        if path is None:
            return Fault(Reason.UNAVAILABLE, "the worker did not deliver the file")
        fault = Fault(Reason.UNAVAILABLE, "")
        for _ in range(INSPECT_TRIES):  # our own engine's crash must not cost an honest worker its pay
            try:
                return await self._check(commitment, path)
            except IntellectError as error:
                fault = Fault(Reason.UNAVAILABLE, f"{error.what}: {error.why}"[:MAX_DETAIL])
        return fault

    async def _check(self, commitment: WorkCommitment, path: Path) -> Inspected | Fault:
        policy = await self._policies.get(commitment.policy_root, POLICY_TIMEOUT)
        if policy is None:
            return Fault(Reason.UNAVAILABLE, "its policy could not be fetched")
        if self._loaded.needs(policy, self._engine.generation):
            load = LoadPolicy(policy_root=policy.root, step=policy.step, path=str(policy.path))
            await self._engine.ask(load, timeout=LOAD_DEADLINE)
            self._loaded.loaded(policy)
        order = Inspect(
            policy_root=commitment.policy_root,
            node=commitment.node,
            pool=commitment.pool,
            index=commitment.index,
            units=commitment.units,
            file_root=commitment.file_root,
            path=str(path),
            report_path=str(self._scratch / f"report-{commitment.file_root.hex()[:16]}.arrow"),
        )
        inspected = await self._engine.ask(order, timeout=INSPECT_DEADLINE)
        assert isinstance(inspected, Inspected)  # noqa: S101 - the engine client checks the reply's type
        return inspected

    async def _pronounce(self, message: RolloutCommitted, found: Inspected | Fault, seconds: float) -> None:
        commitment = message.commitment
        outcome, reason, detail = int(found.outcome), int(found.reason), found.detail[:MAX_DETAIL]
        report_root, report_size = b"", 0
        if isinstance(found, Inspected):
            self.rate.add(found.tokens)
            if outcome == Outcome.ACCEPT:
                report = Path(found.report_path)
                info = await self._station.blobs.add(report)
                report.unlink(missing_ok=True)  # noqa: ASYNC240 - one small local file
                report_root, report_size = info.root, info.size
        verdict = Verdict(
            commitment.pool,
            commitment.node,
            commitment.policy_root,
            commitment.index,
            commitment.file_root,
            outcome,
            reason,
        )
        raw = self._station.board.sealed(
            VerdictIssued(
                pool=commitment.pool,
                verdict=verdict,
                signature=sign(self._station.key, self._station.domain, verdict),
                detail=detail,
                report_root=report_root,
                report_size=report_size,
            )
        )
        await self._station.journal.do(self._station.journal.say, "verdict", commitment.file_root, raw)
        await self._station.board.post_raw(raw)
        self._note(commitment, outcome, reason, detail)
        log.info(
            "rollout.accepted" if outcome == Outcome.ACCEPT else "rollout.rejected",
            node=commitment.node,
            index=commitment.index,
            reason=Reason(reason).name.lower(),
            detail=detail,
            seconds=round(seconds, 3),
        )

    def _note(self, commitment: WorkCommitment, outcome: int, reason: int, detail: str) -> None:
        self.outcomes["accepted" if outcome == Outcome.ACCEPT else "rejected"] += 1
        if outcome != Outcome.ACCEPT:
            self.reasons[Reason(reason).name.lower()] += 1
        step = self._policies.step_of(commitment.policy_root)
        self.recent.appendleft(
            Judged(
                commitment.node,
                commitment.index,
                -1 if step is None else step,
                outcome,
                reason,
                detail,
                time.monotonic(),
            )
        )

    # the quorum's hand

    async def _gather(self, nursery: trio.Nursery) -> None:
        """Collect signatures over equal slash verdicts; with a quorum, carry them to the chain."""
        signatures: OrderedDict[tuple[bytes, int], dict[str, bytes]] = OrderedDict()
        async for signed in self._station.board.subscribe(VerdictIssued):
            message = signed.message
            assert isinstance(message, VerdictIssued)  # noqa: S101 - the subscription's type
            verdict = message.verdict
            if verdict.outcome != Outcome.SLASH:
                continue
            gathered = signatures.setdefault((verdict.file_root, verdict.reason), {})
            gathered[signed.author] = message.signature
            if len(gathered) >= self._station.quorum and verdict.node not in self._executed:
                self._executed.add(verdict.node)
                nursery.start_soon(self._execute, verdict, list(gathered.values()))
            if len(signatures) > REMEMBERED:
                signatures.popitem(last=False)

    async def _execute(self, verdict: Verdict, signatures: list[bytes]) -> None:
        message = self._commitments.get((verdict.node, verdict.policy_root, verdict.index))
        if message is None or message.commitment.file_root != verdict.file_root:
            self._executed.discard(verdict.node)
            return
        for attempt in range(SLASH_TRIES):
            if not self._station.membership.is_member(verdict.node):
                return
            try:
                await self._judge.slash(message.commitment, message.signature, verdict.reason, signatures)
                return
            except IntellectError as error:
                log.warning("slash.failed", node=verdict.node, why=error.why, attempt=attempt)
                await trio.sleep(min(2.0**attempt, 30.0))
        self._executed.discard(verdict.node)
