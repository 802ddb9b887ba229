"""The validator: look at every committed file that is this one's to look at, and say what was found.

Everything that needs no model is checked of every file; which groups go through the model is decided by this
validator's lots. What goes wrong on this side (its engine, its own fetches of policies) is never held against a
worker: such a file waits, and in the end gets no verdict from here. How files come here is `fetching.py`, how verdicts
go out `verdict_publisher.py`; consequences are `node.services.court`'s.
"""

from collections import deque
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import structlog
import trio
from blake3 import blake3

from node.bounded_dict import BoundedDict
from node.inference.client import EngineChild
from node.inference.wire import Inspect, Inspected, LoadPolicy, ShardOrder
from node.services.base import Service
from node.services.certifier import Certifier
from node.services.context import Context, Rate
from node.services.court.slashing import OnChainCourt, Slashing
from node.services.judging.fetching import CommittedFile, Fetching
from node.services.judging.lots import Lot, OwnLots
from node.services.judging.peer_audit import PeerAudit
from node.services.judging.queue import InspectionQueue
from node.services.judging.recomputing import Recomputer
from node.services.judging.records import WorkerRecords
from node.services.judging.verdict_publisher import VerdictPublisher
from node.services.training.values import Rows, own_rows
from node.services.workplace import Workplace
from node.state.tally import LifetimeCounters
from node.swarm.facts import PolicyFollowed
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from node.tasks.recomputed import TaskRuntime
from node.tasks.task_inputs import TaskInputs
from node.weights.fetch import PolicyFollower
from protocol.checks import PUBLIC_HEARSAY, Fault, Reason, check_membership
from protocol.decision import SuspicionLevel, WorkerStanding
from protocol.errors import IntellectError
from protocol.messages import VerdictIssued
from protocol.statements import VerdictOutcome

T = TypeVar("T")
log = structlog.get_logger()


class OwnTrouble(Exception):
    """This validator cannot judge a file now; the worker has no part in it. for_good: nor will it be able to later."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


async def _here(made: Awaitable[T]) -> T:
    """What is made on this side. Raises OwnTrouble where it cannot be."""
    try:
        return await made
    except (IntellectError, OSError) as error:  # a full disk passes
        raise OwnTrouble(str(error)) from error


class Validator(Service):
    """Judges files until cancelled."""

    name = "validator"
    fetching_kind = Fetching

    def __init__(
        self,
        context: Context,
        engine: EngineChild,
        policies: PolicyFollower | None,
        court: OnChainCourt,
        scratch: Path,
        tally: LifetimeCounters | None = None,
        task_inputs: TaskInputs | None = None,
        lots: OwnLots | None = None,
        *,
        certifier: Certifier,
    ) -> None:
        self._context = context
        self._engine = engine
        self._policies = policies
        self._task_inputs = task_inputs
        self._scratch = scratch
        self._audit = context.run.spec.audit
        runtime = None if task_inputs is None else TaskRuntime(task_inputs, engine, scratch, checking=True)
        self._recomputer = Recomputer(runtime, self._audit.logprob_tolerance)
        self._register = context.state.register
        # Odds are multiplied over a worker's files, so they must outlive this process: hence the journal.
        self._records = WorkerRecords(context.run.spec.verification.decision, context.journal)
        self._slashing = Slashing(context, court)
        self.own_lots = lots or OwnLots(context)
        self._fetching = self.fetching_kind(context, self.own_lots, self._skipped)
        self._queue = self._fetching.queue
        self._pronouncing = VerdictPublisher(context, self.own_lots.is_calm)
        self._peer_audit = PeerAudit(context, self._look_at_groups, certifier)
        vanished = 64  # policies that nobody has any more, whose files are not tried again
        self._vanished: BoundedDict[bytes, None] = BoundedDict(vanished)
        self._beside: set[tuple[WorkId, bool]] = set()
        self.rate = Rate(clock=context.clock.monotonic)
        tally = tally or LifetimeCounters(context.journal, context.run.root)
        self.outcomes = tally.part("verdicts")
        self.reasons = tally.part("reasons")
        self.recent: deque[tuple[float, dict[str, Any]]] = deque(maxlen=12)
        """Verdicts for the status, with when they were given, monotonic seconds."""

    @classmethod
    async def open(cls, place: Workplace) -> Self | None:
        own = (place.scratch, place.tally, place.task_inputs, place.own_lots)
        given = (place.context, place.engine, place.policies, place.chain, *own)
        return cls(*given, certifier=place.certifier)

    async def run(self) -> None:
        await self.own_lots.prepare()
        async with trio.open_nursery() as nursery:
            for part in (self.own_lots, self._slashing, self._fetching, self._pronouncing, self._peer_audit):
                nursery.start_soon(part.run)
            nursery.start_soon(self._follow_policies)
            # Others' standings are part of what takes a stake: it needs two classes of engines (ADR 007).
            nursery.start_soon(self._heed_others)
            await self._judge_files(nursery)

    # what is heard

    def _skipped(self) -> None:
        self.outcomes["skipped"] += 1

    async def _follow_policies(self) -> None:
        # What is told of a window stays told, so a policy that is taken back changes nothing here.
        async for policy in self._context.facts.subscribe(PolicyFollowed):
            self.own_lots.policy(policy.step)

    async def _heed_others(self) -> None:
        async for said in self._context.facts.subscribe(VerdictIssued):
            message = said.message
            if said.author != self._context.key.address:
                self._records.heard(said.author, message.verdict.node, message.standing, message.verifier)

    # judging

    async def _judge_files(self, nursery: trio.Nursery) -> None:
        looks = InspectionQueue(nursery)
        while True:
            # One queue for all, in an order that all validators share: so their looks meet at the same files, and
            # quorums form.
            candidate = await self._queue.take()
            self.own_lots.took(self._fetching.waiting)
            if self._context.state.distrust:
                continue  # there is no telling what this trainer's policies are
            if not self._context.membership.may_validate(self._context.key.address):
                continue  # this one left office: nobody would hear it, and who repeats what is refused is muted
            node = candidate.work.node
            if self._may_skip(candidate):
                self.outcomes["skipped"] += 1
                continue
            # An eviction may have come while the file waited, and nobody pays for what is found now.
            gone = check_membership(node, not self._context.membership.is_evicted(node))
            if gone:
                log.info("rollout.ignored", node=node, why=gone.detail)
                continue
            if candidate.work.is_recomputed:  # takes minutes, mostly without the engine
                nursery.start_soon(self._judge_beside, candidate, nursery)
            elif not await looks.take(node, partial(self._judge_or_put_off, candidate, nursery)):
                self.outcomes["skipped"] += 1

    def _may_skip(self, candidate: CommittedFile) -> bool:
        """Whether it was closed while it waited, or enough others accepted it and files that nobody looked at wait
        behind it. Our verdict would be too late to be paid; a fault, and a dispute, want everybody's."""
        if self._register.get(candidate.work.id) is None:
            return True
        late = self._context.state.vote_set.state(candidate.work.id) is FileState.ACCEPTED
        # Work is shared out by lots. On a calm machine looking anyway is free, and more eyes see more.
        return late and not candidate.recheck and not self.own_lots.is_calm()

    async def _judge_beside(self, candidate: CommittedFile, nursery: trio.Nursery) -> None:
        """A look beside the others: no two at one work, whose second word the journal would refuse. Its task's owner
        asks for a verdict that is not there yet."""
        look = candidate.work.id, candidate.recheck
        if look not in self._beside:
            self._beside.add(look)
            try:
                await self._judge_or_put_off(candidate, nursery)
            finally:
                self._beside.discard(look)

    async def _judge_or_put_off(self, candidate: CommittedFile, nursery: trio.Nursery) -> None:
        try:
            await self._judge_file(candidate)
        except OwnTrouble as trouble:
            self._put_off(candidate, trouble, nursery)

    def _put_off(self, candidate: CommittedFile, trouble: OwnTrouble, nursery: trio.Nursery) -> None:
        """Try again later; after some tries say nothing about the file: others will."""
        commitment, why = candidate.work.commitment, str(trouble)
        log.warning("rollout.not_judged", node=commitment.node, index=commitment.index, why=why, tries=candidate.tries)
        # Never a rejection: what this machine cannot do is no fault of the worker's.
        if candidate.tries + 1 >= 3 or trouble.for_good:
            self.outcomes["withheld"] += 1
            return
        # Its file is asked for anew: it may have made room for others while it waited.
        again = msgspec.structs.replace(candidate, path=None, tries=candidate.tries + 1)

        async def later() -> None:
            await trio.sleep(5.0)
            self._queue.hurry(again)

        nursery.start_soon(later)

    async def _judge_file(self, candidate: CommittedFile) -> None:
        """One verdict. Raises OwnTrouble if it cannot be given now."""
        work = candidate.work
        slot = "recheck" if candidate.recheck else "verdict"
        # Repeated as it was said before: a second, different word would be evidence against us. Asked of the journal,
        # since another path may have judged it while it waited.
        said = await self._context.journal.do(self._context.journal.said, slot, work.id)
        if said:
            await self._context.board.post_raw(said)
            return
        if self._context.journal.fence.covers(*work.place):
            self.outcomes["skipped"] += 1
            return  # another daemon may have judged it with this key
        # Found before the file was read, by its commitment alone: no lot, no evidence, no standing.
        if candidate.fault:
            await self._pronounce(work, candidate.fault, None, None, 0.0)
            return
        started = self._context.clock.monotonic()
        if work.is_recomputed:
            path = candidate.path or await _here(self._fetching.deliver(work))
            # What is not sampled is what this validator finds itself. It says nothing of how well its author samples.
            found = await _here(self._recomputer.inspect(work, path, afresh=candidate.recheck))
            seconds = self._context.clock.monotonic() - started
            await self._pronounce(work, found, None, None, seconds, candidate.recheck)
            return
        lot = await self._lot(work, candidate.recheck)
        path = candidate.path or await _here(self._fetching.deliver(work))
        if path is None:
            raise OwnTrouble("the file cannot be had for a second look")
        found = await self._inspect(work, path, lot)
        seconds = self._context.clock.monotonic() - started
        # A contribution beside rollouts says nothing of how long these take.
        if work.is_sampled or not self._context.run.spec.replicas:
            self.own_lots.worked(len(found.checked), found.seconds)
        copied = self._register.copied(work)
        # The first check that fails would call a copy a wrong identity; the register knows whose it is.
        if found.reason == Reason.WRONG_IDENTITY and copied:
            found = msgspec.structs.replace(found, detail=copied.detail)
        elif found.outcome == VerdictOutcome.ACCEPT:
            self._register.was_read(work)
        accepted = found.outcome == VerdictOutcome.ACCEPT
        standing = await self._records.add(work.node, work.id, found.evidence, len(found.checked), accepted)
        await self._pronounce(work, found, lot, standing, seconds, candidate.recheck)

    async def _lot(self, work: RegisteredWork, recheck: bool) -> Lot | None:
        """The groups to recompute, None for all of them: of a task's every one, since its owner needs every score."""
        # Nor could lots be drawn: a task may last longer than a window, and lots whose secret is known are no lots.
        if recheck or work.task is not None:
            return None
        history = await self._records.of(work.node)
        suspect = await self._records.is_suspect(work.node)
        return self.own_lots.draw(work.id, work.step, history.verified, suspect, work.groups)

    async def _inspect(self, work: RegisteredWork, path: Path, lot: Lot | None) -> Inspected:
        groups, second_look = None if lot is None else lot.groups, False
        # With another arithmetic than the worker's at half of a suspect's files, each validator at other ones, because
        # one class of engines alone convicts nobody.
        if lot is not None and await self._records.is_suspect(work.node):
            second_look = blake3(self._context.key.address.encode() + work.id).digest(1)[0] & 1 == 1
        return await self._ask(work, path, groups, f"report-{work.id.hex()[:16]}.arrow", second_look=second_look)

    async def _look_at_groups(self, work: RegisteredWork, groups: tuple[int, ...]) -> tuple[Inspected, Rows] | None:
        """What this node finds in some groups, for its own knowledge; None if it cannot look now."""
        try:
            path = await _here(self._fetching.deliver(work))
            if path is None:
                return None
            found = await self._ask(work, path, groups, f"peer-{work.id.hex()[:16]}.arrow")
        except OwnTrouble as trouble:
            log.info("peer_audit.not_made", why=str(trouble))
            return None
        return found, await own_rows(found, self._context.run.spec.rollout)

    async def _ask(
        self,
        work: RegisteredWork,
        path: Path,
        groups: tuple[int, ...] | None,
        report: str,
        *,
        second_look: bool = False,
    ) -> Inspected:
        task, load = await self._basis(work)
        order = msgspec.structs.replace(
            Inspect.of(work.commitment, path, self._scratch / report), groups=groups, second_look=second_look, task=task
        )
        return await _here(self._engine_for(work).ask(order, timeout=300.0, policy=load))

    def _engine_for(self, work: RegisteredWork) -> EngineChild:
        return self._engine

    async def _basis(self, work: RegisteredWork) -> tuple[ShardOrder | None, LoadPolicy]:
        """What the file was made from: a policy, or a task and the policy that it names."""
        if work.task is not None and self._task_inputs is not None:
            return await _here(self._task_inputs.order(work.task))
        root = work.commitment.policy_root
        policies = None if root in self._vanished else self._policies
        policy = await policies.get(root, 30.0) if policies is not None else None
        if policy is None:
            # of an old policy, which nobody keeps, every file would be waited for
            old = self.own_lots.newest - work.step > self._context.run.spec.recipe.max_staleness
            if old:
                self._vanished[root] = None
            raise OwnTrouble("its policy cannot be fetched", for_good=old)
        return None, policy.load()

    async def _sentence(self, work: RegisteredWork, found: Inspected) -> tuple[int, int, str]:
        """(outcome, reason, detail): what was found in the file, in the light of the worker's whole record."""
        node = work.node
        # A fault that bytes show is said as it is: a worker's record may only add to what arithmetic found.
        statistical = found.reason in (Reason.NONE, Reason.ACTIVATIONS, Reason.SAMPLING)
        standing, seen_by = await self._records.worst(node)
        if not statistical or standing.level < SuspicionLevel.SUSPECT:
            return found.outcome, found.reason, found.detail
        odds = f"odds of e^{standing.log_odds:.1f} that it is {standing.against} after {standing.files} files"
        # Another class's word counts only of a validator that is believed now.
        believed = set(self._context.state.vote_set.active_validators())
        if standing.level >= SuspicionLevel.CONVICTED and self._records.seconded(node, seen_by, believed):
            return VerdictOutcome.SLASH, Reason.CONVICTED, odds
        if found.reason != Reason.NONE:
            return found.outcome, found.reason, found.detail
        return VerdictOutcome.REJECT, Reason.SUSPECTED, odds

    # verdicts out

    async def _pronounce(
        self,
        work: RegisteredWork,
        found: Inspected | Fault,
        lot: Lot | None,
        standing: WorkerStanding | None,
        seconds: float,
        recheck: bool = False,
    ) -> None:
        outcome, reason, detail = int(found.outcome), int(found.reason), found.detail
        if self._audit.hearsay_slashes and reason in PUBLIC_HEARSAY:
            outcome = int(VerdictOutcome.SLASH)
        if isinstance(found, Inspected):
            self.rate.add(found.tokens)
            if standing is not None and not recheck:
                outcome, reason, detail = await self._sentence(work, found)
        level = int(standing.level) if standing else 0
        # Of the engine that looked, for the rule that two classes must agree.
        verifier = found.verifier or getattr(self._engine, "engine_name", "") if isinstance(found, Inspected) else ""
        sentence = (outcome, reason, detail)
        # A store may have no room for the report at the moment.
        message = await _here(self._pronouncing.message(work, found, sentence, lot, level, verifier, recheck=recheck))
        await self._pronouncing.say(work, message)
        if not recheck:
            self._note(work, outcome, reason, detail)
        log.info(
            "rollout.accepted" if outcome == VerdictOutcome.ACCEPT else "rollout.rejected",
            node=work.node,
            index=work.commitment.index,
            reason=Reason(reason).name.lower(),
            detail=detail,
            groups=len(found.checked) if isinstance(found, Inspected) else 0,
            recheck=recheck,
            seconds=round(seconds, 3),
        )

    def _note(self, work: RegisteredWork, outcome: int, reason: int, detail: str) -> None:
        commitment = work.commitment
        accepted = outcome == VerdictOutcome.ACCEPT
        self.outcomes["accepted" if accepted else "rejected"] += 1
        if not accepted:
            self.reasons[Reason(reason).name.lower()] += 1
        found = "is good" if accepted else f"is refused: {Reason(reason).name.lower()}"
        text = f"{work.title}, of {commitment.node}, {found}"
        self._context.progress.contributed("verdict", text)
        row = {"node": commitment.node, "index": commitment.index, "step": work.step}
        row |= {"outcome": outcome, "reason": Reason(reason).name.lower(), "detail": detail}
        self.recent.appendleft((self._context.clock.monotonic(), row))

    # as a service

    def activity(self) -> str:
        """What this validator does now, in words."""
        given = sum(self.outcomes[name] for name in ("accepted", "rejected"))
        waiting = self._fetching.waiting
        next_one = f"{waiting} files wait for one; {self.own_lots.looks()}" if waiting else "waits for the next file"
        return f"{given} verdicts given; {next_one}"

    def status(self) -> dict[str, Any]:
        now = self._context.clock.monotonic()
        verdicts = {
            "accepted": self.outcomes["accepted"],
            "rejected": self.outcomes["rejected"],
            "by_reason": dict(self.reasons),
            "withheld": self.outcomes["withheld"],
            "skipped": self.outcomes["skipped"],
            "recent": [{**row, "seconds_ago": round(now - at, 1)} for at, row in self.recent],
        }
        return {"verdicts": verdicts, "validator_audits": {"peers": self._peer_audit.status()}}

    def beat(self) -> dict[str, Any]:
        return {"rate": round(self.rate.per_second, 1), "lots": self.own_lots.pledges}
