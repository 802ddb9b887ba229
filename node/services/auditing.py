"""Audits of the trainer's steps: a validator looks at those that its lot draws, and at those that others accuse.

A step is drawn by the secret that draws groups, so nobody knows beforehand who looks at what, and everybody can repeat
the draw. What an audit takes is fetched from whoever has it; a child of low priority, bounded in time and memory,
replays it. A verdict is in the journal before it is said. What cannot be decided is counted, and accuses nobody. Nodes
without lots audit by hand only.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.audit.findings import Audit, Claim, Says, checkpoint_beyond
from node.audit.order import ORDER, RESULT, Ruling, StepOrder, lacks_a_state, memory_for, read_result, ruling
from node.processes.forkserver import Starter, end_child
from node.recent import Recent
from node.run.assets import image_limit
from node.services.base import Service
from node.services.context import Context
from node.services.judging.lots import OwnLots
from node.services.training.adopting import fetch_checkpoint
from node.services.workplace import Dropped, Workplace
from node.state.files import write_whole
from node.status_schema import AuditingPart
from node.swarm.facts import CheckpointOf, ObjectionRaised, PolicyFollowed, StepAccused
from node.training.settings import MOST_REPLAYED
from node.training.spool import Spool
from protocol.checks import Reason
from protocol.errors import UNREADABLE, IntellectError
from protocol.identity import Address, address_from_bytes
from protocol.lots import LotPledge
from protocol.manifest import MAX_MANIFEST_BYTES, BatchManifest, PolicyStatement, decode_manifest
from protocol.messages import MAX_DETAIL, CheckpointOffered, Signed, StepJudged
from protocol.statements import Outcome, sign, work_id

log = structlog.get_logger()
KIND = "step-verdict"
AUDIT_SECONDS = 900.0
"""For the child. A step that takes longer cannot be audited here."""
FETCH_TIMEOUT = 60.0
CHECKPOINT_PATIENCE = 15.0
"""Seconds that the checkpoint after a step may come behind its announcement."""
FETCHERS = 8
"""Files and reports on their way at once."""
NEXT_PATIENCE = 300.0
"""Seconds for the next checkpoint, where the same class came to other bits: it says how far they are apart."""
MOST_BYTES = 4 << 30
"""Of files and reports of one audit."""
WAITING = 16
_Found = tuple[Ruling | None, Audit | None]
State = tuple[str, tuple[str, ...]]
"""Paths of a checkpoint's card and of its files."""
REFUTED = 2
"""Accusations of one member that this validator could not follow, after which it follows no more of them."""


class Unavailable(IntellectError):
    """A part of an audit that cannot be had. It accuses nobody."""

    def __init__(self, why: str) -> None:
        super().__init__("the step cannot be audited now", why, "try again while the trainer keeps its checkpoint")


class _Wanted(msgspec.Struct, frozen=True):
    """pledge: by which the step was drawn; accuser: a validator or standby, None if nobody accused it."""

    statement: PolicyStatement
    pledge: LotPledge | None = None
    accuser: Address | None = None


class Auditing(Service):
    """lots: this validator's, None for nodes that audit by hand only; directory: for the children; dropped: steps after
    which the trainer is seen to drop a worker."""

    name = "auditing"

    def __init__(
        self,
        context: Context,
        lots: OwnLots | None,
        directory: Path,
        starter: Starter,
        dropped: trio.MemoryReceiveChannel[Dropped] | None = None,
    ) -> None:
        self._dropped = dropped
        self._context = context
        self._lots = lots
        self._spool = Spool(directory)
        self._replaying = trio.Lock()
        """One child at a time: there is one directory, and its bound of memory is for one."""
        self._starter = starter
        self._send, self._wanted = trio.open_memory_channel[_Wanted](WAITING)
        self._begun: Recent[bytes, None] = Recent(1024)
        # An audit and a count may come to one step at a time, and the journal is asked and written in two visits.
        self._speaking = trio.Lock()
        self._refuted: Counter[Address] = Counter()
        self.counts: Counter[str] = Counter()
        self.undecided = ""

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        lots = place.own_lots if place.role == "validator" else None
        found = cls(place.context, lots, place.directory / "audit", place.starter, place.dropped[1])
        if place.control is not None:
            place.control.mount(found.routes())
        return found

    def routes(self) -> list[Route]:
        async def by_hand(request: Request) -> Response:
            return await self._by_hand(int(request.path_params["step"]))

        return [Route("/audit/step/{step:int}", by_hand, methods=["POST"])]

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear_accusations)
            if self._lots is not None:
                nursery.start_soon(self._draw, self._lots)
                nursery.start_soon(self._hear_objections)
                if self._dropped is not None:
                    nursery.start_soon(self._say_dropped, self._dropped)
            async for wanted in self._wanted:
                await self._judge(wanted)

    def status(self) -> dict[str, Any]:
        rate = self._context.state.lots.steps_rate(self._context.key.address) if self._lots else None
        why = self._why_not(rate)
        done = {name: self.counts[name] for name in ("held", "bad", "undecided")}
        return {"auditing": AuditingPart(rate, why, done, self.undecided)}

    def _why_not(self, rate: float | None) -> str:
        """Why this validator audits no steps, if it does not."""
        if self._lots is None:
            return ""
        if rate == 0:
            return "not enough free memory to replay a step"
        last, newest = max(self._offered(), default=0), self._context.state.policies.newest_step
        if newest - last <= MOST_REPLAYED:
            return ""
        return f"the newest checkpoint, of step {last}, is {newest - last} back: over {MOST_REPLAYED} are not replayed"

    # which steps

    async def _draw(self, lots: OwnLots) -> None:
        # A policy that is taken back is not audited any more: `_tried` finds that it is not announced here.
        async for policy in self._context.facts.subscribe(PolicyFollowed):
            await lots.prepared.wait()
            if policy.step < 1:
                continue
            pledge = lots.draws_step(policy.statement.struct_hash, policy.step)
            if pledge is not None or self._is_severed(policy):
                self._want(_Wanted(policy.statement, pledge))

    def _is_severed(self, policy: PolicyFollowed) -> bool:
        """Whether it goes on from another policy than the one that is followed before it. Its manifest breaks a rule
        then, which one lot in eight would tell; every step after it is as its own parent and state say."""
        before = self._context.state.policies.of_step(policy.step - 1)
        return before is not None and before.root != policy.message.parent

    async def _hear_objections(self) -> None:
        async for one in self._context.facts.subscribe(ObjectionRaised):
            announced = self._context.state.policies.of_step(one.message.step)
            if announced is not None and announced.author != one.author:
                self._look_into(announced.statement, one.author)

    async def _hear_accusations(self) -> None:
        """Another validator found a step bad: a quorum needs others who look, wherever their lots fell."""
        async for one in self._context.facts.subscribe(StepAccused):
            if one.message.reason != Reason.LEFT_OUT:  # no replay tells that: each validator counts for itself
                self._look_into(one.message.statement, one.author)

    def _look_into(self, statement: PolicyStatement, accuser: Address) -> None:
        """One that accuses in vain is heeded a few times."""
        pledged = self._context.state.lots.steps_rate(self._context.key.address)
        if self._lots is not None and pledged and self._refuted[accuser] < REFUTED:
            self._want(_Wanted(statement, accuser=accuser))

    async def _say_dropped(self, dropped: trio.MemoryReceiveChannel[Dropped]) -> None:
        """The trainer drops a worker, as far as this validator counts. It says so where another one stands by to lead:
        in a pool with one trainer that would end the run."""
        async for statement, how in dropped:
            alone = len(self._context.membership.terms.trainers) < 2
            if alone or not self._context.membership.may_validate(self._context.key.address):
                continue
            announced = self._context.state.policies.of_step(statement.step)
            if announced is not None and announced.message.statement == statement:
                ruled = Ruling(Outcome.REJECT, Reason.LEFT_OUT, how[:MAX_DETAIL])
                await self._say(_Wanted(statement), ruled, "")

    def _want(self, wanted: _Wanted) -> None:
        name = wanted.statement.struct_hash
        if name in self._begun:
            return
        try:
            self._send.send_nowait(wanted)
            # Marked only once it found room: an accuser may still want a step that was skipped.
            self._begun[name] = None
        except trio.WouldBlock:
            self.counts["skipped"] += 1

    def _want_earlier(self, audit: Audit | None) -> None:
        """An earlier step since the checkpoint came out otherwise: no lot need draw that one."""
        for finding in audit.findings if audit else ():
            if "first" in finding.figures:
                self._want(_Wanted(self._statement(int(finding.figures["first"]) + 1)))

    async def _judge(self, wanted: _Wanted) -> None:
        """Say what an audit finds, once and for ever."""
        journal, slot = self._context.journal, wanted.statement.struct_hash
        known = await journal.do(journal.said, KIND, slot)
        # The same signed word again: it may have been lost, and a new one could differ.
        if known is not None:
            return await self._context.board.post_raw(known)
        if self._context.journal.fence.covers(wanted.statement.step):
            return None  # another daemon may have judged it with this key
        found = await self._tried(wanted.statement)
        return await self._conclude(wanted, *found) if found is not None else None

    async def _tried(self, statement: PolicyStatement) -> _Found | None:
        """What an audit finds; None, and why, where it cannot be made."""
        if self._context.state.distrust or not self._context.membership.may_validate(self._context.key.address):
            return None
        try:
            # An accuser names the statement. What is replayed must be the one that was announced here.
            if self._statement(statement.step) != statement:
                raise Unavailable("what was judged is not what the trainer announced")
            return await self._audited(statement, NEXT_PATIENCE)
        except (IntellectError, OSError) as error:  # a full disk passes
            why = error.why if isinstance(error, IntellectError) else str(error)
            self.counts["undecided"] += 1
            self.undecided = f"step {statement.step - 1}: {why}"
            return log.info("step.undecided", step=statement.step - 1, why=why)

    async def _conclude(self, wanted: _Wanted, ruled: Ruling | None, audit: Audit | None) -> None:
        if wanted.accuser is not None and (ruled is None or ruled.outcome == Outcome.ACCEPT):
            self._refuted[wanted.accuser] += 1
        if ruled is None:
            self.counts["undecided"] += 1
            told = [f"{one.test}: {one.text}" for one in audit.findings if one.says is not Says.HOLDS] if audit else []
            self.undecided = f"step {wanted.statement.step - 1}: {'; '.join(told)}"
            return self._want_earlier(audit)
        self.counts["held" if ruled.outcome == Outcome.ACCEPT else "bad"] += 1
        return await self._say(wanted, ruled, audit.own if audit else "")

    async def _say(self, wanted: _Wanted, ruled: Ruling, arithmetic: str) -> None:
        """Unless something is said of the step already: two words on one are two lies."""
        async with self._speaking:
            journal, slot = self._context.journal, wanted.statement.struct_hash
            if await journal.do(journal.said, KIND, slot) is None:
                await self._say_first(wanted, ruled, arithmetic)

    async def _say_first(self, wanted: _Wanted, ruled: Ruling, arithmetic: str) -> None:
        context, statement = self._context, wanted.statement
        announced = self._announced(statement.step)
        draft = StepJudged(
            pool=context.pool,
            statement=statement,
            trainer=announced.author,
            word=announced.message.signature,
            outcome=int(ruled.outcome),
            reason=int(ruled.reason),
            signature=b"",
            detail=ruled.detail,
            window=wanted.pledge.window if wanted.pledge else -1,
            rate=wanted.pledge.steps if wanted.pledge else 0,
            arithmetic=arithmetic,
        )
        signature = sign(context.key, context.domain, draft.verdict)
        raw = context.board.sealed(msgspec.structs.replace(draft, signature=signature))
        slot = statement.struct_hash
        await context.journal.promise(context.journal.say, KIND, slot, raw, step=statement.step)
        level = log.info if ruled.outcome == Outcome.ACCEPT else log.warning
        level("step.judged", step=statement.step - 1, outcome=ruled.outcome.name, why=ruled.detail)
        await context.board.post_raw(raw)

    # one audit

    async def _by_hand(self, step: int) -> Response:
        """What `intellect-node audit step K --state-dir` asks of a running node."""
        try:
            ruled, audit = await self._audited(self._statement(step + 1))
        except IntellectError as error:
            return JSONResponse({"what": error.what, "why": error.why, "remedy": error.remedy}, status_code=400)
        outcome = {"outcome": ruled.outcome.name.lower(), "detail": ruled.detail} if ruled else None
        told = msgspec.json.encode({"audit": audit, "verdict": outcome})
        return Response(told, media_type="application/json")

    async def _audited(self, statement: PolicyStatement, patience: float = 0.0) -> _Found:
        """What is found of the step that led to this statement. Raises Unavailable where something cannot be had.
        patience: seconds for a later checkpoint, where it takes that."""
        step = statement.step - 1
        # For the state after the step, without which only a replay in the trainer's class tells anything.
        await self._until(lambda: self._offers(step + 1), CHECKPOINT_PATIENCE)
        ruled, audit = await self._look(step)
        if audit is not None and lacks_a_state(audit):
            await self._until(lambda: any(at > step and self._offers(at) for at in self._offered()), patience)
            if beyond := checkpoint_beyond(step, self._offered()):
                ruled, audit = await self._look(step, beyond)
        return ruled, audit

    async def _until(self, offered: Callable[[], bool], seconds: float) -> None:
        """Wait for a checkpoint, so many seconds at most."""
        with trio.move_on_after(seconds):
            async for _ in self._context.facts.subscribe(CheckpointOf):
                if offered():
                    return

    async def _look(self, step: int, beyond: int = 0) -> _Found:
        async with self._replaying:
            with ExitStack() as held:
                order, named = await self._gather(step, beyond, held)
                fault = self._misnamed(named)
                if fault is not None:
                    return Ruling(Outcome.REJECT, Reason.RULE, fault), None
                audit = await self._replay(order)
        return ruling(audit), audit

    async def _replay(self, order: StepOrder) -> Audit:
        """In a child that is alone in its directory. Raises Unavailable where it does not end well, or in time."""
        run, spool = self._context.run, self._spool
        await trio.to_thread.run_sync(spool.prepare, run.encoded, run.assets)
        # The directory is used again: an older result would be read where this child writes none.
        (spool.root / RESULT).unlink(missing_ok=True)  # noqa: ASYNC240 - one local file
        await trio.to_thread.run_sync(write_whole, spool.root / ORDER, msgspec.msgpack.encode(order))
        command = [sys.executable, "-m", "node.audit.fetched", "--spool", str(spool.root)]
        # One thread: with several, sums may come in another order. No network: all files are here.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        child = await self._starter.start(command, environment, heard=False)
        try:
            with trio.move_on_after(AUDIT_SECONDS):
                await child.wait()
        finally:
            # A child that outlives its audit would hold the memory that the next one counted on.
            with trio.CancelScope(shield=True):
                await end_child(child)
        found = await trio.to_thread.run_sync(read_result, spool.root)
        if found is None:
            raise Unavailable(await trio.to_thread.run_sync(self._given_up))
        return found

    def _given_up(self) -> str:
        try:
            return str(msgspec.json.decode(self._spool.error_path.read_bytes(), type=dict[str, str])["why"])
        except (OSError, KeyError, *UNREADABLE):
            return f"the replay did not end within {AUDIT_SECONDS:g} s, or not with the memory that it may have"

    # what an audit takes

    def _announced(self, step: int) -> PolicyFollowed:
        found = self._context.state.policies.of_step(step)
        if found is None:
            raise Unavailable(f"this node has not heard of policy {step}, or has forgotten it")
        return found

    def _statement(self, step: int) -> PolicyStatement:
        return self._announced(step).statement

    def _offered(self) -> dict[int, list[Signed[CheckpointOffered]]]:
        """By step, the leader's first. Whoever else has a state offers it too; the bytes say whether it is that."""
        return self._context.state.checkpoints.of(self._context.membership.trainer)

    def _offers(self, step: int) -> bool:
        """Whether the leader offers the state of a step: nobody else's word ends the wait for it."""
        leader = self._context.membership.trainer
        return any(one.author == leader for one in self._offered().get(step, ()))

    async def _fetch(self, root: bytes, size: int, held: ExitStack, first: Iterable[Address] = ()) -> Path:
        # Before it is fetched: the store may make room at any moment.
        held.enter_context(self._context.blobs.holding([root]))
        membership = self._context.membership
        sources = list(dict.fromkeys([*first, membership.trainer, *membership.addresses()]))
        return await self._context.blobs.fetch(root, sources, max_size=size, timeout=FETCH_TIMEOUT)

    async def _gather(self, step: int, beyond: int, held: ExitStack) -> tuple[StepOrder, BatchManifest]:
        """Fetch everything: manifests first, which are small and name the rest; that of the step, too. Raises
        IntellectError."""
        base, states = await self._fetch_base(step, held)
        manifests: dict[int, str] = {}
        named: dict[int, BatchManifest] = {}
        for at in range(base, beyond or step + 1):
            manifests[at], named[at] = await self._fetch_manifest(at, held)
        blobs = await self._fetch_blobs(list(named.values()), held)
        for at in (step + 1, beyond):
            # Without the state after a step less is told; that one cannot be had ends no audit.
            if at and (state := await self._fetch_state(at, held)) is not None:
                states[at] = state
        claims = {at: self._claim(at, named[at]) for at in named}
        clock, (run_root, pool) = self._context.state.policies, (self._context.run.root, self._context.pool)
        policies = {one.step: one.policy_root for at in clock.steps if (one := self._announced(at).message)}
        where = (run_root, pool, step, base)
        order = StepOrder(*where, claims, policies, manifests, blobs, states, 2 * self._memory, beyond)
        return order, named[step]

    @property
    def _memory(self) -> int:
        spec = self._context.run.spec
        return memory_for(image_limit(spec) // 4, spec.rollout.prompts_per_step)

    async def _fetch_manifest(self, step: int, held: ExitStack) -> tuple[str, BatchManifest]:
        path = await self._fetch(self._announced(step + 1).message.batch_root, MAX_MANIFEST_BYTES, held)
        return str(path), await trio.to_thread.run_sync(lambda: decode_manifest(path.read_bytes()))

    async def _fetch_blobs(self, manifests: list[BatchManifest], held: ExitStack) -> dict[str, str]:
        """Files and reports, from those who made them."""
        wanted: dict[bytes, tuple[int, Address]] = {}
        trainer = self._context.membership.trainer
        for root, size, author in (blob for one in manifests for work in one.batch.works for blob in work.blobs()):
            wanted[root] = size, address_from_bytes(author) if author else trainer
        # Sizes are the manifest's word; the bound is ours, before the first byte.
        if sum(size for size, _ in wanted.values()) > MOST_BYTES:
            raise Unavailable(f"files and reports of the step have more than {MOST_BYTES >> 30} GiB")
        found, failed, fetchers = dict[str, str](), list[IntellectError](), trio.CapacityLimiter(FETCHERS)

        async def fetch(root: bytes, size: int, author: Address) -> None:
            async with fetchers:
                try:
                    found[root.hex()] = str(await self._fetch(root, size, held, [author]))
                except IntellectError as error:
                    failed.append(error)
                    # One missing file is enough to give up, and the rest may be gigabytes.
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for root, (size, author) in wanted.items():
                nursery.start_soon(fetch, root, size, author)
        if failed:
            raise failed[0]
        return found

    async def _fetch_base(self, step: int, held: ExitStack) -> tuple[int, dict[int, State]]:
        """The state from which a step is replayed: the newest that can be had, the leader's before others'. Policy 0's
        follows from the model. Raises Unavailable."""
        offered = [at for at in self._offered() if at <= step]
        for at in sorted(offered, key=lambda at: (self._offers(at), at), reverse=True):
            if step - at <= MOST_REPLAYED and (state := await self._fetch_state(at, held)) is not None:
                return at, {at: state}
        if step > MOST_REPLAYED:
            raise Unavailable(f"no checkpoint of the {MOST_REPLAYED} steps before step {step} can be had")
        return 0, {}

    async def _fetch_state(self, step: int, held: ExitStack) -> State | None:
        """Of a step, from the first of those who offer it that has it; None where nobody has."""
        spec = self._context.run.spec
        for offer in self._offered().get(step, ()):
            try:
                path, _, files = await fetch_checkpoint(
                    lambda root, size: self._fetch(root, size, held), offer.message, spec
                )
                return str(path), tuple(map(str, files))
            except IntellectError as error:
                log.info("checkpoint.not_had", step=step, by=offer.author, why=error.why)
        return None

    def _claim(self, step: int, manifest: BatchManifest) -> Claim:
        """What was stated of the step, and by which arithmetic; the state before policy 0 follows from the model."""
        before, after = self._announced(step), self._statement(step + 1)
        stated = before.message.state_root
        return Claim(step, before.root, stated, after.policy_root, after.state_root, manifest.arithmetic)

    def _misnamed(self, manifest: BatchManifest) -> str | None:
        """A report that is not the one that its author's verdict names, as far as this node heard that."""
        ballots, pool = self._context.state.ballots, self._context.pool
        for work in manifest.batch.works:
            named = [(work.name(pool), work.file_root, one.author, one.root) for one in work.reports]
            for task in work.judged:
                named += [
                    (work_id(task.commitment(pool, one)), one.file_root, one.author, one.report_root)
                    for one in task.shards
                ]
            for id, file_root, author, report_root in named:
                said = ballots.verdict_of(id, address_from_bytes(author))
                if said is not None and said.message.report_root != report_root:
                    return f"manifest: {said.author} reported otherwise on file {file_root.hex()[:16]}"
        return None
