"""The validator: fetch every committed file, check it, sign a verdict.

Everything that needs no model is checked of every file; which groups go through the model is decided by this
validator's lots. What goes wrong on this side (its engine, its own fetches of policies) is never held against a
worker: such a file waits, and in the end gets no verdict from here. Consequences are `node.services.court`'s.
"""

from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio
from blake3 import blake3

from node.inference.wire import Inspect, Inspected, LoadPolicy, ShardOrder
from node.recent import Recent
from node.services.court.invalidating import Invalidating
from node.services.court.slashing import OnChainCourt, Slashing
from node.services.generating import EngineChild
from node.services.judging.lots import Lot, OwnLots
from node.services.judging.queue import FileQueue
from node.services.judging.records import WorkerRecords
from node.services.judging.reviews import Reviews
from node.services.leaves import Leaves
from node.services.station import Rate, Station
from node.state.tally import Tally
from node.swarm.register import Work, WorkId
from node.tasks.stock import TaskStock
from node.weights.fetch import PolicyFollower
from protocol.checks import PUBLIC_HEARSAY, Fault, Reason, check_membership
from protocol.decision import Level, Standing
from protocol.errors import IntellectError, ProtocolError
from protocol.identity import Address
from protocol.lots import pack_groups
from protocol.messages import (
    MAX_DETAIL,
    CheckRequested,
    PolicyAnnounced,
    RolloutCommitted,
    VerdictIssued,
)
from protocol.statements import Outcome, Verdict, sign, work_id

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0
FETCH_PAUSE = 1.0
LAST_TRY = 5.0
"""Seconds for a file that has been due for long, of a worker who did not hand over the one before it."""
POLICY_TIMEOUT = 30.0
GAP_POLL = 0.5
CLAIM_PATIENCE = 8.0
"""Seconds that the claim may come behind the result of a task's shard."""
INSPECT_DEADLINE = 300.0
QUEUE = 64
READY = 16
TRIES = 3
RETRY_PAUSE = 5.0
RECHECK_POLL = 1.0
REMEMBERED = 4096
MOST_ASKED = 16
"""Files that are fetched at one time because the trainer asked."""


class Candidate(msgspec.Struct, frozen=True):
    """A committed file on its way to judgement. path: None if it could not be had; already: our verdict of before;
    fault: what was wrong before it was read; tries: inspections that failed on our side."""

    work: Work
    path: Path | None = None
    already: bytes | None = None
    fault: Fault | None = None
    recheck: bool = False
    tries: int = 0


class Judged(msgspec.Struct, frozen=True):
    """One verdict, for the status page. at: monotonic seconds."""

    node: str
    index: int
    step: int
    outcome: int
    reason: int
    detail: str
    at: float


class OwnTrouble(Exception):
    """This validator cannot judge a file now; the worker has no part in it."""


class Validator:
    """Judges files until cancelled."""

    def __init__(
        self,
        station: Station,
        engine: EngineChild,
        policies: PolicyFollower,
        court: OnChainCourt,
        scratch: Path,
        leaves: Leaves | None = None,
        tally: Tally | None = None,
        stock: TaskStock | None = None,
    ) -> None:
        self._station = station
        self._engine = engine
        self._policies = policies
        self._stock = stock
        self._reviews = Reviews(stock)
        self._scratch = scratch
        self._audit = station.run.spec.audit
        self._register = station.jury.register
        self._queue: FileQueue[Candidate] = FileQueue(READY)
        self._records = WorkerRecords(station.run.spec.verification.decision, station.journal)
        self._slashing = Slashing(station, court)
        self.leaves = leaves or Leaves(station)
        self._invalidating = Invalidating(station, court, self.leaves)
        self._queues: dict[Address, trio.MemorySendChannel[Work]] = {}
        self._rechecked: Recent[WorkId, None] = Recent(REMEMBERED)
        self._asked = 0
        self._owing: set[Address] = set()
        own, clock = station.key.address, station.clock.monotonic
        self.own_lots = OwnLots(station.run.spec, station.pool, own, station.journal, station.board, clock)
        self.rate = Rate(clock=station.clock.monotonic)
        tally = tally or Tally(station.journal, station.run.root)
        self.outcomes = tally.part("verdicts")
        self.reasons = tally.part("reasons")
        self.recent: deque[Judged] = deque(maxlen=12)

    async def run(self) -> None:
        self._station.progress.doing = self.doing
        await self.own_lots.prepare()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.own_lots.run)
            nursery.start_soon(self._slashing.run)
            nursery.start_soon(self.leaves.run)
            nursery.start_soon(self._invalidating.run)
            nursery.start_soon(self._follow_policies)
            self._listen(nursery)
            nursery.start_soon(self._heed_requests, nursery)
            nursery.start_soon(self._heed_disputes)
            nursery.start_soon(self._heed_others)
            await self._judge_files(nursery)

    # what is heard

    async def _follow_policies(self) -> None:
        async for signed in self._station.board.subscribe(PolicyAnnounced):
            self.own_lots.policy(signed.message.step)

    def _listen(self, nursery: trio.Nursery) -> None:
        """Every work goes into its worker's own queue: one who commits to much waits for itself."""

        def consider(work: Work) -> None:
            self.own_lots.arrived(work.node)
            queue = self._queues.get(work.node)
            if queue is None:
                queue, works = trio.open_memory_channel[Work](QUEUE)
                self._queues[work.node] = queue
                nursery.start_soon(self._fetch_files, works)
            try:
                queue.send_nowait(work)
            except trio.WouldBlock:
                self.outcomes["skipped"] += 1

        self._register.follow(consider)

    async def _heed_requests(self, nursery: trio.Nursery) -> None:
        """The trainer waits for a verdict: ours again, or the file on top of the pile."""
        async for signed in self._station.board.subscribe(CheckRequested):
            try:
                wanted = self._station.board.opened(signed.message.commitment, RolloutCommitted)
            except ProtocolError as error:
                log.debug("request.refused", why=error.why)
                continue
            self._register.commit(wanted)  # gossip may have lost it
            work = self._register.get(work_id(wanted.message.commitment))
            if work is not None and self._asked < MOST_ASKED:
                self._asked += 1
                nursery.start_soon(self._hurry, work)

    async def _hurry(self, work: Work) -> None:
        self._queue.hurry(await self._fetch_file(work))
        self._asked -= 1

    async def _heed_disputes(self) -> None:
        """Look again, at everything, wherever two validators disagree."""
        while True:
            for id in self._station.jury.ballots.open_disputes():
                work = self._register.get(id)
                if work is not None and id not in self._rechecked:
                    self._rechecked[id] = None
                    self._queue.hurry(Candidate(work, recheck=True))
            await trio.sleep(RECHECK_POLL)

    async def _heed_others(self) -> None:
        async for signed in self._station.board.subscribe(VerdictIssued):
            message = signed.message
            if signed.author != self._station.key.address:
                self._records.heard(signed.author, message.verdict.node, message.standing, message.verifier)

    # files in

    async def _fetch_files(self, works: trio.MemoryReceiveChannel[Work]) -> None:
        """One worker's files, in order. Each worker has its own task: one that does not deliver delays nobody else."""
        async for work in works:
            if not self._station.membership.is_evicted(work.node):
                await self._queue.put(await self._fetch_file(work))

    async def _fetch_file(self, work: Work) -> Candidate:
        already = await self._station.journal.do(self._station.journal.said, "verdict", work.id)
        if already:
            return Candidate(work, already=already)
        fault = await self._wait_for_claim(work) if work.task else self._register.fault(work)
        fault = fault or await self._wait_for_gap(work)
        if fault:
            return Candidate(work, fault=fault)
        path = await self._deliver(work)
        if path is None:
            fault = Fault(Reason.UNAVAILABLE, f"not delivered within {self._audit.delivery_seconds:g} seconds")
        return Candidate(work, path=path, fault=fault)

    async def _wait_for_gap(self, work: Work) -> Fault | None:
        """A submission may overtake the one before it; only one that never comes is a gap."""
        with trio.move_on_after(self._audit.delivery_seconds):
            while self._register.gap(work):  # noqa: ASYNC110 - any of many messages may close it
                await trio.sleep(GAP_POLL)
        return self._register.gap(work)

    async def _wait_for_claim(self, work: Work) -> Fault | None:
        """The result of a shard may overtake its claim."""
        with trio.move_on_after(CLAIM_PATIENCE):
            while self._register.fault(work):  # noqa: ASYNC110 - any of many messages may mend it
                await trio.sleep(GAP_POLL)
        return self._register.fault(work)

    async def _deliver(self, work: Work) -> Path | None:
        """The file, from its worker or whoever has it; None if nobody hands it over in time."""
        root, limit = work.commitment.file_root, work.most_bytes
        with trio.move_on_after(self._patience(work)):
            while True:
                try:
                    path = await self._station.blobs.fetch(
                        root, self._holders(work), max_size=limit, timeout=FETCH_TIMEOUT
                    )
                    work.delivered = True
                    self._owing.discard(work.node)
                    return path
                except IntellectError as error:
                    log.info("rollout.unavailable", node=work.node, why=error.why)
                await trio.sleep(FETCH_PAUSE)
        self._owing.add(work.node)
        return None

    def _patience(self, work: Work) -> float:
        """Seconds to wait for a file. After one that never came, the worker's others are due since they were heard of:
        what a dead worker left behind is not waited for one by one."""
        whole = self._audit.delivery_seconds
        if work.node not in self._owing:
            return whole
        return max(work.at + whole - self._station.clock.monotonic(), LAST_TRY)

    def _holders(self, work: Work) -> list[Address]:
        """Who may have a file: its worker, the other validators, and the trainer, so that a worker who serves only some
        of them serves all."""
        own, membership = self._station.key.address, self._station.membership
        others = [*self._station.jury.validators(), membership.trainer]
        return [work.node, *(one for one in others if one != own)]

    # judging

    async def _judge_files(self, nursery: trio.Nursery) -> None:
        while True:
            candidate = await self._queue.take()
            self.own_lots.waiting = len(self._queue)
            if self._station.jury.distrust.is_set():
                continue  # there is no telling what this trainer's policies are
            if candidate.already:
                await self._station.board.post_raw(candidate.already)
                continue
            node = candidate.work.node
            gone = check_membership(node, not self._station.membership.is_evicted(node))
            if gone:
                log.info("rollout.ignored", node=node, why=gone.detail)
                continue
            if candidate.work.is_review:  # takes minutes and no engine
                nursery.start_soon(self._judge_or_put_off, candidate, nursery)
            else:
                await self._judge_or_put_off(candidate, nursery)

    async def _judge_or_put_off(self, candidate: Candidate, nursery: trio.Nursery) -> None:
        try:
            await self._judge_file(candidate)
        except OwnTrouble as trouble:
            self._put_off(candidate, str(trouble), nursery)

    def _put_off(self, candidate: Candidate, why: str, nursery: trio.Nursery) -> None:
        """Try again later; after some tries say nothing about the file: others will."""
        commitment = candidate.work.commitment
        log.warning("rollout.not_judged", node=commitment.node, index=commitment.index, why=why, tries=candidate.tries)
        if candidate.tries + 1 >= TRIES:
            self.outcomes["withheld"] += 1
            return
        again = msgspec.structs.replace(candidate, tries=candidate.tries + 1)

        async def later() -> None:
            await trio.sleep(RETRY_PAUSE)
            self._queue.hurry(again)

        nursery.start_soon(later)

    async def _judge_file(self, candidate: Candidate) -> None:
        """One verdict. Raises OwnTrouble if it cannot be given now."""
        work = candidate.work
        slot = "recheck" if candidate.recheck else "verdict"
        said = await self._station.journal.do(self._station.journal.said, slot, work.id)
        if said:
            await self._station.board.post_raw(said)
            return
        if candidate.fault:
            await self._pronounce(work, candidate.fault, None, None, 0.0)
            return
        if work.is_review:
            await self._judge_review(work, candidate.recheck)
            return
        started = self._station.clock.monotonic()
        lot = await self._lot(work, candidate.recheck)
        path = candidate.path or await self._deliver(work)
        if path is None:
            raise OwnTrouble("the file cannot be had for a second look")
        found = await self._inspect(work, path, lot)
        seconds = self._station.clock.monotonic() - started
        self.own_lots.worked(len(found.checked), found.seconds)
        copied = self._register.copied(work)
        if found.reason == Reason.WRONG_IDENTITY and copied:
            found = msgspec.structs.replace(found, detail=copied.detail)
        elif found.outcome == Outcome.ACCEPT:
            self._register.was_read(work)
        await self._pronounce(work, found, lot, await self._standing(work, found), seconds, candidate.recheck)

    async def _judge_review(self, work: Work, recheck: bool) -> None:
        """A report is what this validator finds itself, to the byte. It says nothing of how well its author samples."""
        started = self._station.clock.monotonic()
        try:
            found = await self._reviews.inspect(work, afresh=recheck)
        except IntellectError as error:
            raise OwnTrouble(f"{error.what}: {error.why}") from error
        seconds = self._station.clock.monotonic() - started
        await self._pronounce(work, found, None, None, seconds, recheck)

    async def _lot(self, work: Work, recheck: bool) -> Lot | None:
        """The groups to recompute, None for all of them: of a task's every one, since its owner needs every score."""
        if recheck or work.task is not None:
            return None
        history = await self._records.of(work.node)
        suspect = await self._records.is_suspect(work.node)
        return self.own_lots.draw(work.id, work.step, history.verified, suspect)

    async def _second_look(self, work: Work) -> bool:
        """Whether to look with another arithmetic than the worker's: at half of a suspect's files, each validator at
        other ones, because one class of engines alone convicts nobody."""
        if not await self._records.is_suspect(work.node):
            return False
        return blake3(self._station.key.address.encode() + work.id).digest(1)[0] & 1 == 1

    async def _inspect(self, work: Work, path: Path, lot: Lot | None) -> Inspected:
        commitment = work.commitment
        task, load = await self._basis(work)
        order = Inspect(
            policy_root=commitment.policy_root,
            node=commitment.node,
            pool=commitment.pool,
            index=commitment.index,
            units=commitment.units,
            file_root=commitment.file_root,
            path=str(path),
            report_path=str(self._scratch / f"report-{work.id.hex()[:16]}.arrow"),
            groups=None if lot is None else lot.groups,
            second_look=lot is not None and await self._second_look(work),
            task=task,
        )
        try:
            inspected = await self._engine.ask(order, timeout=INSPECT_DEADLINE, policy=load)
        except IntellectError as error:
            raise OwnTrouble(f"{error.what}: {error.why}") from error
        assert isinstance(inspected, Inspected)  # noqa: S101 - the engine client checks the reply's type
        return inspected

    async def _basis(self, work: Work) -> tuple[ShardOrder | None, LoadPolicy]:
        """What the file was made from: a policy, or a task and the policy that it names."""
        if work.task is not None and self._stock is not None:
            try:
                return await self._stock.order(work.task)
            except IntellectError as error:
                raise OwnTrouble(f"{error.what}: {error.why}") from error
        policy = await self._policies.get(work.commitment.policy_root, POLICY_TIMEOUT)
        if policy is None:
            raise OwnTrouble("its policy cannot be fetched")
        return None, LoadPolicy(policy_root=policy.root, step=policy.step, path=str(policy.path))

    async def _standing(self, work: Work, found: Inspected) -> Standing:
        accepted = found.outcome == Outcome.ACCEPT
        return await self._records.add(work.node, work.id, found.evidence, len(found.checked), accepted)

    async def _sentence(self, work: Work, found: Inspected) -> tuple[int, int, str]:
        """(outcome, reason, detail): what was found in the file, in the light of the worker's whole record."""
        node = work.node
        statistical = found.reason in (Reason.NONE, Reason.ACTIVATIONS, Reason.SAMPLING)
        standing, seen_by = await self._records.worst(node)
        if not statistical or standing.level < Level.SUSPECT:
            return found.outcome, found.reason, found.detail
        odds = f"odds of e^{standing.log_odds:.1f} that it is {standing.against} after {standing.files} files"
        believed = set(self._station.jury.ballots.electorate())
        if standing.level >= Level.CONVICTED and self._records.seconded(node, seen_by, believed):
            return Outcome.SLASH, Reason.CONVICTED, odds
        if found.reason != Reason.NONE:
            return found.outcome, found.reason, found.detail
        return Outcome.REJECT, Reason.SUSPECTED, odds

    # verdicts out

    async def _pronounce(
        self,
        work: Work,
        found: Inspected | Fault,
        lot: Lot | None,
        standing: Standing | None,
        seconds: float,
        recheck: bool = False,
    ) -> None:
        commitment = work.commitment
        outcome, reason, detail = int(found.outcome), int(found.reason), found.detail
        if self._audit.hearsay_slashes and reason in PUBLIC_HEARSAY:
            outcome = int(Outcome.SLASH)
        if isinstance(found, Inspected) and standing is not None and not recheck:
            outcome, reason, detail = await self._sentence(work, found)
        verdict = Verdict(
            commitment.pool,
            commitment.node,
            commitment.policy_root,
            commitment.index,
            commitment.file_root,
            commitment.units,
            outcome,
            reason,
        )
        unsigned = self._looked_in_part(work, verdict, found) or await self._takes_back(verdict, work.id)
        message = VerdictIssued(
            pool=commitment.pool,
            verdict=verdict,
            signature=b"" if unsigned else sign(self._station.key, self._station.domain, verdict),
            detail=detail[:MAX_DETAIL],
            group=found.group,
            recheck=recheck,
            standing=int(standing.level) if standing else 0,
        )
        if isinstance(found, Inspected):
            self.rate.add(found.tokens)
            message = await self._with_values(message, work.groups, found, lot)
        raw = self._station.board.sealed(message)
        slot = "recheck" if recheck else "verdict"
        await self._station.journal.do(self._station.journal.say, slot, work.id, raw)
        await self._station.board.post_raw(raw)
        if not recheck:
            self._note(work, outcome, reason, detail)
        log.info(
            "rollout.accepted" if outcome == Outcome.ACCEPT else "rollout.rejected",
            node=commitment.node,
            index=commitment.index,
            reason=Reason(reason).name.lower(),
            detail=detail,
            groups=len(found.checked) if isinstance(found, Inspected) else 0,
            recheck=recheck,
            seconds=round(seconds, 3),
        )

    def _looked_in_part(self, work: Work, verdict: Verdict, found: Inspected | Fault) -> bool:
        """Whether this accepts a file of which not every group was recomputed, or not every turn replayed. The contract
        is told 'good' only by who looked at everything: who has said so there can help nobody any more when another lot
        finds the fault."""
        if not isinstance(found, Inspected) or verdict.outcome != Outcome.ACCEPT:
            return False
        return len(found.checked) < work.groups or bool(found.unreplayed)

    async def _takes_back(self, verdict: Verdict, id: WorkId) -> bool:
        """Whether this node signed the contrary of `verdict` for the contract before. Acceptance and rejection of one
        file under one key cost the stake on chain, so who learns better in a dispute says so to the swarm only."""
        journal = self._station.journal
        raw = await journal.do(journal.said, "verdict", id)
        if raw is None:
            return False
        before = self._station.board.opened(raw, VerdictIssued).message
        changed = (before.verdict.outcome == Outcome.ACCEPT) != (verdict.outcome == Outcome.ACCEPT)
        return changed and bool(before.signature)

    async def _with_values(
        self, message: VerdictIssued, groups: int, found: Inspected, lot: Lot | None
    ) -> VerdictIssued:
        """The verdict with what was recomputed, and the report as a blob if the file is accepted."""
        message = msgspec.structs.replace(
            message,
            window=lot.window if lot else -1,
            rate=lot.rate if lot else 0,
            checked=pack_groups(found.checked, groups),
            rewards=found.rewards,
            logprobs=found.logprobs,
            verifier=self._verifier(found),
        )
        if not found.report_path:
            return message
        report = Path(found.report_path)
        if message.verdict.outcome == Outcome.ACCEPT:
            info = await self._station.blobs.add(report)
            message = msgspec.structs.replace(message, report_root=info.root, report_size=info.size)
        report.unlink(missing_ok=True)  # noqa: ASYNC240 - one small local file
        return message

    def _verifier(self, found: Inspected) -> str:
        """The class of engine that looked, for the rule that two classes must agree."""
        return (found.verifier or getattr(self._engine, "engine_name", ""))[:64]

    def _note(self, work: Work, outcome: int, reason: int, detail: str) -> None:
        commitment = work.commitment
        accepted = outcome == Outcome.ACCEPT
        self.outcomes["accepted" if accepted else "rejected"] += 1
        if not accepted:
            self.reasons[Reason(reason).name.lower()] += 1
        found = "is good" if accepted else f"is refused: {Reason(reason).name.lower()}"
        text = f"{work.title}, of {commitment.node}, {found}"
        self._station.progress.contributed("verdict", text)
        self.recent.appendleft(
            Judged(
                commitment.node, commitment.index, work.step, outcome, reason, detail, self._station.clock.monotonic()
            )
        )

    # as a service

    name = "judging"

    def doing(self) -> str:
        """What this validator does now, in words."""
        given = sum(self.outcomes[name] for name in ("accepted", "rejected"))
        waiting = len(self._queue)
        return f"{given} verdicts given; " + (f"{waiting} files wait for one" if waiting else "waits for the next file")

    def status(self) -> dict[str, Any]:
        now = self._station.clock.monotonic()
        recent = []
        for judged in self.recent:
            row = msgspec.structs.asdict(judged)
            row["reason"] = Reason(judged.reason).name.lower()
            row["seconds_ago"] = round(now - row.pop("at"), 1)
            recent.append(row)
        verdicts = {
            "accepted": self.outcomes["accepted"],
            "rejected": self.outcomes["rejected"],
            "by_reason": dict(self.reasons),
            "withheld": self.outcomes["withheld"],
            "skipped": self.outcomes["skipped"],
            "recent": recent,
        }
        return {"verdicts": verdicts}

    def beat(self) -> dict[str, Any]:
        return {"rate": round(self.rate.per_second, 1), "lots": self.own_lots.pledges}
