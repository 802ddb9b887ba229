"""One audit of a step: what it takes is fetched from whoever has it, and a child of low priority, bounded in time and
memory, replays it. What cannot be had or done is `Unavailable`, and accuses nobody.
"""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import structlog
import trio

from node.audit.findings import Audit, StepClaim, checkpoint_beyond
from node.audit.order import ORDER, RESULT, AuditRuling, StepOrder, lacks_a_state, memory_for, read_result, ruling
from node.blobs.errors import BlobUnavailable
from node.processes.forkserver import Starter, end_child
from node.run.assets import image_limit
from node.services.context import Context
from node.services.training.state_sync import fetch_checkpoint
from node.state.files import as_named, write_whole
from node.swarm.facts import PolicyFollowed
from node.training.settings import MOST_REPLAYED
from node.training.spool import Spool
from protocol.checks import Reason
from protocol.errors import UNREADABLE, IntellectError, OwnFailure
from protocol.identity import Address, address_from_bytes
from protocol.manifest import MAX_MANIFEST_BYTES, BatchManifest, MalformedManifest, PolicyStatement, decode_manifest
from protocol.messages import CheckpointOffered, Signed
from protocol.statements import VerdictOutcome, work_id

log = structlog.get_logger()
AUDIT_SECONDS = 900.0
"""For the child. A step that takes longer cannot be audited here."""
Found = tuple[AuditRuling | None, Audit | None]
State = tuple[str, tuple[str, ...]]
"""Paths of a checkpoint's card and of its files."""


class Unavailable(IntellectError):
    """A part of an audit that cannot be had. It accuses nobody."""

    def __init__(self, why: str) -> None:
        super().__init__("the step cannot be audited now", why, "try again while the trainer keeps its checkpoint")


class Withheld(Unavailable):
    """What a trainer learnt from, and must hand over: nobody does, and nothing of it came."""


class Overdue(Unavailable):
    """The same, of which a part came, and not the whole in the time that the run's rate gives it. line_seconds: what
    the line alone takes of that."""

    def __init__(self, why: str, line_seconds: float) -> None:
        super().__init__(why)
        self.line_seconds = line_seconds


class StepReplay:
    """directory: for the children; starter: of them; patience: seconds that the checkpoint after a step may come behind
    its announcement."""

    def __init__(self, context: Context, directory: Path, starter: Starter, patience: float = 15.0) -> None:
        self._patience = patience
        self._context = context
        self._spool = Spool(directory)
        self._starter = starter
        self._hurries = False
        self._replaying = trio.Lock()
        """One child at a time: there is one directory, and its bound of memory is for one."""

    async def audited(self, statement: PolicyStatement, patience: float = 0.0, *, hurries: bool = False) -> Found:
        """What is found of the step that led to this statement. Raises Unavailable where something cannot be had.
        patience: seconds for a later checkpoint, where it takes that; hurries: what does not come within a minute is
        not waited for."""
        step = statement.step - 1
        # For the state after the step, without which only a replay in the trainer's class tells anything.
        await self._until(lambda: self.offers(step + 1), self._patience)
        ruled, audit = await self._look(step, hurries=hurries)
        if audit is not None and lacks_a_state(audit):
            await self._until(lambda: any(at > step and self.offers(at) for at in self.offered()), patience)
            if beyond := checkpoint_beyond(step, self.offered()):
                ruled, audit = await self._look(step, beyond)
        return ruled, audit

    async def _until(self, offered: Callable[[], bool], seconds: float) -> None:
        """Wait for a checkpoint, so many seconds at most."""
        with trio.move_on_after(seconds):
            async for _ in self._context.facts.subscribe(CheckpointOffered):
                if offered():
                    return

    async def _look(self, step: int, beyond: int = 0, *, hurries: bool = False) -> Found:
        async with self._replaying:
            self._hurries = hurries
            with ExitStack() as held:
                order, named = await self._gather(step, beyond, held)
                fault = self._misnamed(named)
                if fault is not None:
                    return AuditRuling(VerdictOutcome.REJECT, Reason.RULE, fault), None
                audit = await self._replay(order)
        return ruling(audit), audit

    async def _replay(self, order: StepOrder) -> Audit:
        """In a child that is alone in its directory. Raises Unavailable where it does not end well, or in time."""
        run, spool = self._context.run, self._spool
        await trio.to_thread.run_sync(spool.prepare, run.encoded, run.assets)
        # The directory is used again: an older result would be read where this child writes none.
        (spool.root / RESULT).unlink(missing_ok=True)
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

    def announced(self, step: int) -> PolicyFollowed:
        found = self._context.state.policies.of_step(step)
        if found is None:
            raise Unavailable(f"this node has not heard of policy {step}, or has forgotten it")
        return found

    def statement(self, step: int) -> PolicyStatement:
        return self.announced(step).statement

    def offered(self) -> dict[int, list[Signed[CheckpointOffered]]]:
        """By step, the leader's first. Whoever else has a state offers it too; the bytes say whether it is that."""
        return self._context.state.checkpoints.of(self._context.membership.trainer)

    def offers(self, step: int) -> bool:
        """Whether the leader offers the state of a step: nobody else's word ends the wait for it."""
        leader = self._context.membership.trainer
        return any(one.author == leader for one in self.offered().get(step, ()))

    async def _fetch(
        self, root: bytes, size: int, held: ExitStack, first: Iterable[Address] = (), beside: int = 0
    ) -> Path:
        """beside: bytes of all that is fetched with it, by the same line. Raises Withheld, Overdue, IntellectError."""
        # Before it is fetched: the store may make room at any moment.
        held.enter_context(self._context.blobs.holding([root]))
        membership = self._context.membership
        sources = list(dict.fromkeys([*first, membership.trainer, *membership.addresses()]))
        blobs, rules, named = self._context.blobs, self._context.run.spec.chair, root.hex()[:16]
        before, quick = blobs.arrived(root), rules.handover_seconds(0)
        try:
            return await blobs.fetch(root, sources, max_size=size, timeout=quick)
        except BlobUnavailable as error:
            if blobs.arrived(root) <= before:
                raise Withheld(f"nobody hands over a byte of blob {named}") from error
            left = rules.handover_seconds(max(size, beside)) - quick
            # Of a look that is late already nothing more is waited for: others may be.
            if self._hurries:
                raise Overdue(f"blob {named} came in part only", left) from error
        try:
            return await blobs.fetch(root, sources, max_size=size, timeout=left)
        except BlobUnavailable as error:
            self._hurries = True
            raise Overdue(f"blob {named} did not come whole within {quick + left:g} s", left) from error

    async def _gather(self, step: int, beyond: int, held: ExitStack) -> tuple[StepOrder, BatchManifest]:
        """Fetch everything: manifests first, which are small and name the rest; that of the step, too. Raises
        IntellectError."""
        base, states = await self._fetch_base(step, held)
        manifests: dict[int, tuple[str, bytes]] = {}
        named: dict[int, BatchManifest] = {}
        for at in range(base, beyond or step + 1):
            manifests[at], named[at] = await self._fetch_manifest(at, held)
        blobs = await self._fetch_blobs(list(named.values()), held)
        for at in (step + 1, beyond):
            # Without the state after a step less is told; that one cannot be had ends no audit.
            if at and self.offered().get(at):
                with suppress(IntellectError):
                    states[at] = await self._fetch_state(at, held)
        claims = {at: self._claim(at, named[at]) for at in named}
        clock, (run_root, pool) = self._context.state.policies, (self._context.run.root, self._context.pool)
        policies = {one.step: one.policy_root for at in clock.steps if (one := self.announced(at).message)}
        where = (run_root, pool, step, base)
        order = StepOrder(*where, claims, policies, manifests, blobs, states, 2 * self._memory, beyond)
        return order, named[step]

    @property
    def _memory(self) -> int:
        spec = self._context.run.spec
        return memory_for(image_limit(spec) // 4, spec.rollout.prompts_per_step)

    async def _fetch_manifest(self, step: int, held: ExitStack) -> tuple[tuple[str, bytes], BatchManifest]:
        message = self.announced(step + 1).message
        root = message.batch_root
        if told := message.told_batch:
            await self._context.blobs.add(told, synced=False)  # the engine reads it from there
        path = await self._fetch(root, MAX_MANIFEST_BYTES, held)
        try:
            read = lambda: decode_manifest(as_named(path.read_bytes(), root, "a batch manifest"))
            return (str(path), root), await trio.to_thread.run_sync(read)
        except MalformedManifest as error:  # whatever stands there, it names nothing that could be looked at
            raise Withheld(f"the batch's manifest is none: {error.why}") from error

    async def _fetch_blobs(self, manifests: list[BatchManifest], held: ExitStack) -> dict[str, str]:
        """Files and reports, from those who made them."""
        wanted: dict[bytes, tuple[int, Address]] = {}
        trainer = self._context.membership.trainer
        for root, size, author in (blob for one in manifests for work in one.batch.works for blob in work.blobs()):
            wanted[root] = size, address_from_bytes(author) if author else trainer
        most_bytes = 4 << 30  # bytes of files and reports of one audit
        # Sizes are the manifest's word; the bound is ours, before the first byte.
        if (total := sum(size for size, _ in wanted.values())) > most_bytes:
            raise Unavailable(f"files and reports of the step have more than {most_bytes >> 30} GiB")
        # Files and reports on their way at once.
        found, failed, fetchers = dict[str, str](), list[IntellectError | OSError](), trio.CapacityLimiter(8)

        async def fetch(root: bytes, size: int, author: Address) -> None:
            async with fetchers:
                try:
                    found[root.hex()] = str(await self._fetch(root, size, held, [author], total))
                except (IntellectError, OSError) as error:
                    failed.append(error)
                    # One missing file is enough to give up, and the rest may be gigabytes.
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for root, (size, author) in wanted.items():
                nursery.start_soon(fetch, root, size, author)
        if failed:
            # What this machine lacks comes first: then nothing can be said of who hands over.
            raise next((one for one in failed if isinstance(one, OwnFailure | OSError)), failed[0])
        return found

    async def _fetch_base(self, step: int, held: ExitStack) -> tuple[int, dict[int, State]]:
        """The state from which a step is replayed: the newest that can be had, the leader's before others'. Policy 0's
        follows from the model. Raises Unavailable."""
        offered = [at for at in self.offered() if at <= step <= at + MOST_REPLAYED]
        came, late = False, list[Overdue]()
        for at in sorted(offered, key=lambda at: (self.offers(at), at), reverse=True):
            try:
                return at, {at: await self._fetch_state(at, held)}
            except Withheld:
                continue
            except Overdue as error:
                late.append(error)
            except OwnFailure:
                raise
            except IntellectError:
                came = True
        if step > MOST_REPLAYED:
            why = f"no checkpoint of the {MOST_REPLAYED} steps before step {step} can be had"
            raise Unavailable(why) if came else late[0] if late else Withheld(why)
        return 0, {}

    async def _fetch_state(self, step: int, held: ExitStack) -> State:
        """Of a step, from the first of those who offer it that has it. Raises IntellectError, Withheld where nothing
        came of any."""
        spec, failed = self._context.run.spec, list[IntellectError]()
        for offer in self.offered().get(step, ()):
            try:
                path, _, files = await fetch_checkpoint(
                    lambda root, size: self._fetch(root, size, held), offer.message, spec
                )
                return str(path), tuple(map(str, files))
            except OwnFailure:
                raise
            except IntellectError as error:
                log.info("checkpoint.not_had", step=step, by=offer.author, why=error.why)
                failed.append(error)
        # What came and is no checkpoint is not what a trainer must hand over, either.
        told = (one for one in failed if not isinstance(one, Withheld | MalformedManifest))
        raise next(told, Withheld(f"nobody hands over checkpoint {step}"))

    def _claim(self, step: int, manifest: BatchManifest) -> StepClaim:
        """What was stated of the step, and by which arithmetic; the state before policy 0 follows from the model."""
        before, after = self.announced(step), self.statement(step + 1)
        stated = before.message.state_root
        return StepClaim(step, before.root, stated, after.policy_root, after.state_root, manifest.arithmetic)

    def _misnamed(self, manifest: BatchManifest) -> str | None:
        """A report that is not the one that its author's verdict names, as far as this node heard that."""
        vote_set, pool = self._context.state.vote_set, self._context.pool
        for work in manifest.batch.works:
            named = [(work.name(pool), work.file_root, one.author, one.root) for one in work.reports]
            for task in work.judged:
                named += [
                    (work_id(task.commitment(pool, one)), one.file_root, one.author, one.report_root)
                    for one in task.shards
                ]
            for id, file_root, author, report_root in named:
                said = vote_set.verdict_of(id, address_from_bytes(author))
                if said is not None and said.message.report_root != report_root:
                    return f"manifest: {said.author} reported otherwise on file {file_root.hex()[:16]}"
        return None
