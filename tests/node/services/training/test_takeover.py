"""Take-overs with the product's rules: boards, juries, terms, chairs and trainers are real, over one hub and one clock.

In the place of the chain stands its contract's rule, in the place of a learner a hash: state k+1 follows from state k,
the batch and the learner's class, and from nothing else.
"""

import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from blake3 import blake3
from trio.testing import MockClock

from node.audit.findings import Audit, AuditFinding, Says
from node.audit.looks import LookHistory
from node.audit.order import StepOrder
from node.blobs.errors import BlobUnavailable
from node.blobs.store import BlobStore
from node.chain.errors import Reverted, RpcUnreachable
from node.member import BlobService
from node.metrics.observer import Observer
from node.processes.forkserver import Anew
from node.recipe.join import join
from node.recipe.pool import Group, Origin
from node.run.assets import Run
from node.services.auditing.step_auditor import StepAuditor
from node.services.auditing.step_replay import StepReplay
from node.services.checkpoint_server import CheckpointServer
from node.services.context import PoolTime
from node.services.judging.lots import OwnLots
from node.services.leader_lease import LeaderLease
from node.services.training.groups import Groups
from node.services.training.trainer import TrainerService
from node.state.files import write_whole
from node.swarm.facts import PolicyFollowed
from node.swarm.ownwords import promise_in
from node.swarm.policies import MAX_AHEAD
from node.training import adoption
from node.training.batch import decode_batch
from node.training.errors import TrainingError
from node.training.evaluations import Evaluations
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from node.weights.fetch_history import FetchHistory
from node.weights.publish import StepWord
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, address_bytes
from protocol.manifest import Arithmetic, ComposedBatch, PolicyStatement, decode_card, decode_manifest
from protocol.messages import CheckpointOffered, LeaderSilent, PolicyAnnounced, Signed, StepObjected, StepVerdict
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    encode,
    encode_report,
)
from protocol.run import Recipe, RolloutSpec, encode_run
from protocol.sections import ChairRules
from protocol.statements import TermSilent, Verdict, VerdictOutcome, WorkCommitment, sign, signer_of, work_id
from tests.attacks.validators.court import DOMAIN, POOL, TRAINER, VALIDATORS, Seat, court_run
from tests.memory_network import MemoryHub
from tests.node.services.daemons import copied
from tests.node.services.tasking.town import at_once

TAKES_BACK = 32

SECOND, THIRD = NodeKey(b"\4" * 32), NodeKey(b"\5" * 32)
KEYS = (TRAINER, SECOND, THIRD)
STEPS, GROUPS, SIZE = 60, 2, 2
LEASE, GRACE, BLOCK = 60, 10, 1.0
LOOK = 0.5
"""Seconds between two looks into a spool, the trainers' too: steps take a second, and all these hours pass at once."""
RUN = msgspec.structs.replace(
    court_run(),
    rollout=RolloutSpec(group_size=SIZE, prompts_per_step=GROUPS, prompts_per_file=GROUPS),
    recipe=Recipe(steps=STEPS, max_staleness=STEPS),
    chair=ChairRules(stall_seconds=60.0),
)
START = b"\7" * 32
NOBODY = Address("0x" + "77" * 20)


class Shared(BlobStore):
    """Everybody's blobs. lost: nobody hands over what the leader made; at_hand: files that every trainer has had."""

    lost = False

    def __init__(self, directory: Path, size: int) -> None:
        super().__init__(directory, size)
        self.at_hand = set[bytes]()

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        await trio.lowlevel.checkpoint()
        path = self.path(root)
        if self.lost and root not in self.at_hand or not path.exists():
            raise BlobUnavailable(root, "nobody hands it over")
        if path.stat().st_size > max_size:
            raise ProtocolError("too large", f"it has more than {max_size} bytes")
        return path


class Learner:
    """seconds: of one step; kind: its class; lies_at: the policy that it makes of something else."""

    engine_name, name, pid, restarts, memory = "hash", "learner", None, 0, ""

    def __init__(self, spool: Spool, kind: str, seconds: float) -> None:
        self._spool, self._kind, self.seconds = Spool(spool.root), kind, seconds
        self._consumed: dict[str, int] = {}
        self.lies_at = -1

    def finish(self) -> None:
        """It stops with the test."""

    async def run(self) -> None:
        state, step = START, 0
        kept = self._spool.checkpoint_steps()
        if kept:
            step, state = kept[-1], (self._folder(kept[-1]) / "state.safetensors").read_bytes()
        elif not self._spool.is_complete(0):
            self._publish(0, b"", state)
        while True:
            await trio.sleep(LOOK)
            if (order := adoption.read_order(self._spool)) is not None:
                step, state = self._adopt(order, step, state)
            elif self._spool.batch_path(step).exists():
                await trio.sleep(self.seconds)
                batch = self._spool.batch_path(step).read_bytes()
                lie = b"lie" if step + 1 == self.lies_at else b""
                before, state, step = state, blake3(state + batch + self._kind.encode() + lie).digest(), step + 1
                self._publish(step, before, state)
                self._save(step, state)

    def _adopt(self, order: adoption.AdoptionOrder, step: int, state: bytes) -> tuple[int, bytes]:
        found = Path(order.files[0]).read_bytes()
        if state_root(found) != order.state_root or order.step <= step:
            adoption.refuse(self._spool, order, ProtocolError("no", "it is not the state that the trainer stated"))
            return step, state
        self._consumed = dict(decode_card(order.card).consumed)
        self._spool.remember_adopted(order.step)
        self._save(order.step, found)
        self._publish(order.step, b"", found, adopted=True)
        self._spool.adoption_path.unlink()
        return order.step, found

    def _folder(self, step: int) -> Path:
        return self._spool.checkpoints / f"step-{step:06d}"

    def _save(self, step: int, state: bytes) -> None:
        if self._spool.batch_path(step - 1).exists():
            files = decode_batch(self._spool.batch_path(step - 1).read_bytes()).header.files
            self._consumed |= dict.fromkeys(files, step - 1)
        if step % 4 == 0:
            self._folder(step).mkdir()
            (self._folder(step) / "state.safetensors").write_bytes(state)
            told = {"step": step, "updates": step, "consumed": self._consumed, "files": {"state.safetensors": ""}}
            write_whole(self._folder(step) / "state.json", json.dumps(told).encode())

    def _publish(self, step: int, before: bytes, state: bytes, *, adopted: bool = False) -> None:
        write_whole(self._spool.policy_path(step), state)
        arithmetic = Arithmetic(self._kind, "float32", 1, False, 1, True, 1, True, False, "fused", "torch 2", "")
        told = {"step": step, "policy_root": policy_root(state).hex(), "state_root": state_root(state).hex()}
        told |= {"state_before": state_root(before).hex() if before else "", "seconds": {}, "adopted": adopted}
        told["arithmetic"] = msgspec.structs.asdict(arithmetic)
        write_whole(self._spool.metrics_path(step), json.dumps(told).encode())


def state_root(state: bytes) -> bytes:
    return blake3(b"state" + state).digest()


def policy_root(state: bytes) -> bytes:
    return blake3(b"policy" + state).digest()


class Examiner:
    name, pid, restarts = "evaluator", None, 0

    def __init__(self, spool: Spool) -> None:
        self._spool, self._left = Spool(spool.root), Evaluations(Spool(spool.root), RUN)

    def finish(self) -> None:
        """It stops with the test."""

    async def run(self) -> None:
        while True:
            await trio.sleep(2 * LOOK)
            step = self._left.next()
            if step is not None and self._spool.is_complete(step):
                write_whole(self._spool.evaluation_path(step), b'{"eval_reward": 0.5}')


class Chain:
    """The Chair's rule. away: who cannot reach it, and hears what happened when it can again; at_once: takes that come
    into one block, however far apart they are sent."""

    def __init__(self, seats: Callable[[], list[Seat]]) -> None:
        self._seats = seats
        self.away: set[Address] = set()
        self._unheard: dict[Address, list[Callable[[Any], object]]] = {}
        self.number, self.holder, self.until, self.from_step = 0, TRAINER.address, int(now()) + LEASE, 0
        self.ended, self.reached = False, 0
        self.taken: list[tuple[Address, int]] = []
        self.refused = 0
        self.at_once, self._waiting = 0, trio.Event()
        self._takes = 0

    async def _block(self, who: Address) -> None:
        if who in self.away:
            raise RpcUnreachable({"http://nowhere": "no answer"})
        await trio.sleep(BLOCK)

    def _tell(self, change: Callable[[Any], object]) -> None:
        for seat in self._seats():
            if seat.key.address in self.away:
                self._unheard.setdefault(seat.key.address, []).append(change)
            else:
                change(seat.membership.terms)

    def back(self, who: Address) -> None:
        self.away.discard(who)
        seat = next(seat for seat in self._seats() if seat.key.address == who)
        for change in self._unheard.pop(who, []):
            change(seat.membership.terms)

    def _revert(self) -> None:
        self.refused += 1
        raise Reverted("take the chair", "OtherTerm", {"term": self.number, "until": self.until})

    async def hold(self, who: Address, step: int) -> None:
        await self._block(who)
        if who != self.holder or self.ended:
            self._revert()
        self.until, self.reached = int(now()) + LEASE, max(step, self.reached)
        number, until = self.number, self.until
        self._tell(lambda terms: terms.hold(number, until, step))

    async def take(self, who: Address, term: int, from_step: int, parent: bytes) -> None:
        await self._block(who)
        self._takes += 1
        if self._takes >= self.at_once:
            self._waiting.set()
        await self._waiting.wait()
        places = [key.address for key in KEYS]
        turn = (places.index(who) - places.index(self.holder) - 1) % len(places)
        if term != self.number + 1 or from_step < self.reached - 64 or now() < self.until + turn * GRACE:
            self._revert()
        self.number, self.holder, self.from_step, self.until = term, who, from_step, int(now()) + LEASE
        self.ended = False
        self.taken.append((who, from_step))
        until = self.until
        self._tell(lambda terms: terms.take(term, who, from_step, parent, until))

    async def end(self, who: Address, silent: Sequence[TermSilent], signatures: Sequence[bytes]) -> None:
        await self._block(who)
        signers = {signer_of(DOMAIN, *one) for one in zip(silent, signatures, strict=True)}
        if {(one.term, one.until) for one in silent} != {(self.number, self.until)} or self.ended:
            self._revert()
        self.reached = max(one.step for one in silent)
        assert len(signers & {key.address for key in VALIDATORS}) >= 2
        self.ended, self.until = True, int(now())
        number, until = self.number, self.until
        self._tell(lambda terms: terms.end(number, until))

    async def convict(self, who: Address, term: int, bad: WorkCommitment, said: list[Verdict], by: list[bytes]) -> None:
        await self._block(who)
        if (term, bad.node) != (self.number, self.holder) or self.ended:
            self._revert()
        assert {signer_of(DOMAIN, *one) for one in zip(said, by, strict=True)} <= {key.address for key in VALIDATORS}
        assert len(said) >= 2 and all(one.work == work_id(bad) and one.outcome != VerdictOutcome.ACCEPT for one in said)
        self.ended, self.until = True, int(now())
        until = self.until
        self._tell(lambda terms: terms.end(term, until))


class Door:
    def __init__(self, chain: Chain, own: Address) -> None:
        self._chain, self._own = chain, own

    async def hold_chair(self, pool: int, step: int, policy_root: bytes) -> None:
        await self._chain.hold(self._own, step)

    async def take_chair(self, pool: int, term: int, from_step: int, parent: bytes) -> None:
        await self._chain.take(self._own, term, from_step, parent)

    async def end_term(self, silent: Sequence[TermSilent], signatures: Sequence[bytes]) -> None:
        await self._chain.end(self._own, silent, signatures)

    async def end_term_by_verdicts(self, term: int, bad: WorkCommitment, said: list[Verdict], by: list[bytes]) -> None:
        await self._chain.convict(self._own, term, bad, said, by)


def now() -> float:
    return 1000.0 + trio.current_time()


class Desk:
    """A trainer at its seat."""

    def __init__(self, pool: "Pool", key: NodeKey, kind: str, seconds: float) -> None:
        self.seat = Seat(pool.made, key, "trainer")
        folder = pool.directory / key.address
        self.spool = Spool(folder / "spool")
        context = self.context = self.seat.context
        context.run = Run(RUN, bytes(32), encode_run(RUN), folder)
        context.time = PoolTime(wall=now)
        self.spool.prepare(encode_run(RUN), folder)
        publisher: Any = SimpleNamespace(publish=self._publish, hold=self._hold)
        self.learner: Any = Learner(self.spool, kind, seconds)
        examiner: Any = Examiner(self.spool)
        observer = Observer(RUN, folder)
        door: Any = Door(pool.chain, key.address)
        watch = SpoolWatch(self.spool, LOOK)
        groups = Groups(context, self.spool.next_batch, watch.tell)
        children = self.learner, examiner
        self.trainer = TrainerService(context, *children, self.spool, watch, groups, publisher, observer, chain=door)
        chair = self.trainer.leading.chair
        assert chair is not None
        self.chair = chair
        ingest = self.trainer.ingest  # files come by hand
        ingest.run, ingest.take_again = trio.sleep_forever, self._take_again  # type: ignore[method-assign]
        self._groups = pool.groups
        self.freed: set[bytes] = set()
        groups.ready.add(pool.groups)
        self.showing = CheckpointServer(context, pool.store, self.spool, folder / "offering", watch)
        self.made: dict[int, bytes] = {}
        context.policy_cache = SimpleNamespace(put=lambda held: None)  # type: ignore[assignment]

    def _take_again(self, works: set[bytes]) -> None:
        self.freed |= works
        self.trainer.groups.take_in([group for group in self._groups if group.key[0] in works])

    async def _publish(self, step: int, image: Path, word: StepWord) -> SimpleNamespace:
        root = self.made[step] = word.statement.policy_root
        if step:
            await self.context.blobs.add(word.batch)
        await self.context.board.post(
            PolicyAnnounced(
                pool=POOL,
                statement=word.statement,
                signature=word.signature,
                manifest_root=bytes(32),
                manifest_size=1,
            )
        )
        return SimpleNamespace(step=step, root=root)

    async def _hold(self, step: int, image: Path, raw: bytes) -> SimpleNamespace:
        return SimpleNamespace(step=step, root=b"")

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for one in (self.seat.beat, self.chair.run, self.trainer.run, self.showing.run):
                nursery.start_soon(one)

    @property
    def step(self) -> int:
        return self.trainer.record.step

    @property
    def leads(self) -> bool:
        return self.chair.leads(self.step + 1)


class Lines:
    """A validator's way to policies: what a trainer has made can be had; where they are slow the first try fails."""

    def __init__(self, pool: "Pool", seat: Seat) -> None:
        self.history = FetchHistory(1 << 20, trio.current_time)
        self._pool, self._seat = pool, seat
        self._held = seat.context.policy_cache = SimpleNamespace(newest=None)  # type: ignore[assignment]
        seat.holds = lambda: self._held.newest.step if self._held.newest else -1

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            async for policy in self._seat.context.facts.subscribe(PolicyFollowed):
                nursery.start_soon(self._fetch, policy)

    async def _fetch(self, policy: PolicyFollowed) -> None:
        made, seconds = {root for desk in self._pool.desks for root in desk.made.values()}, self._pool.fetch_seconds
        if seconds or policy.root not in made:
            self.history.failed()
        await trio.sleep(seconds)
        if policy.root in made and policy.step > self._seat.holds():
            self._held.newest = policy
            self.history.took(seconds)
            self.history.came()


class Drawing(OwnLots):
    """Hears of policies by itself, as its validator does for it."""

    async def live(self, seat: Seat) -> None:
        await self.prepare()
        seat.pledges = lambda: self.pledges
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.run)
            async for policy in seat.context.facts.subscribe(PolicyFollowed):
                self.policy(policy.step)


class Holding(StepReplay):
    """Whatever can be had comes out as it was stated."""

    async def _replay(self, order: StepOrder) -> Audit:
        await trio.sleep(0.1)
        held = AuditFinding("replay", Says.HOLDS, "", {"distance": 0.0, "limit": 1.0})
        return Audit(order.step, "double", "double", (), (held,), {})


class Own:
    """What a validator gets of the blobs that all share. cut_off: nothing."""

    def __init__(self, store: Shared) -> None:
        self._store, self.cut_off = store, False
        self.holding, self.add, self.arrived = store.holding, store.add, store.arrived

    async def fetch(self, root: bytes, sources: Sequence[Address], **how: Any) -> Path:
        if self.cut_off:
            raise BlobUnavailable(root, "its line is down")
        return await self._store.fetch(root, sources, **how)


class Pool:
    """Trainers and three validators; quorum 2. kinds: the trainers' classes; looks: whether validators audit steps, one
    in four."""

    def __init__(self, directory: Path, kinds: Sequence[str], seconds: float = 1.0, *, looks: bool = False) -> None:
        self.looks, self.audits, self.doors = looks, list[StepAuditor](), list[Own]()
        self.directory = directory
        self.store = Shared(directory / "blobs", 1 << 28)
        self.hub = MemoryHub(delay=0.01)
        self.made: Any = SimpleNamespace(hub=self.hub, validator_keys=VALIDATORS, quorum=2, blobs=self.store, run=RUN)
        self.chain = Chain(lambda: self.seats)
        self.groups = list[Group]()
        self.judges = [Seat(self.made, key, "validator") for key in VALIDATORS]
        self.seats = list(self.judges)
        self.desks = list[Desk]()
        self._kinds, self._seconds = kinds, seconds
        self.fetch_seconds = 0.0

    async def open(self, nursery: trio.Nursery, late: int = 0) -> None:
        """late: of the trainers so many come by `arrive`."""
        for index in range(STEPS):
            self.groups += await self._file(index)
        for key, kind in zip(KEYS, self._kinds, strict=False):
            self.desks.append(Desk(self, key, kind, self._seconds))
        present = self.desks[: len(self.desks) - late]
        self.seats += [desk.seat for desk in present]
        for seat in self.seats:
            await seat.run(nursery)
            self._seat(seat)
        for seat in self.judges:
            seat.context.time = PoolTime(wall=now)
            policies: Any = Lines(self, seat)
            looks = self._look(seat, nursery) if self.looks else None
            door: Any = Door(self.chain, seat.key.address)
            chair = LeaderLease(seat.context, door, policies=policies, looks=looks)
            nursery.start_soon(policies.run)
            nursery.start_soon(chair.run)
            nursery.start_soon(seat.beat)
        for desk in present:
            nursery.start_soon(desk.run)

    def _look(self, seat: Seat, nursery: trio.Nursery) -> LookHistory:
        own, looks = Own(self.store), LookHistory(trio.current_time)
        seat.member.blob_service = BlobService(own, None, None)  # type: ignore[arg-type]
        seat.context.run = Run(RUN, bytes(32), encode_run(RUN), self.directory)
        lots = Drawing(seat.context, steps=0.25)
        replaying = Holding(seat.context, self.directory / f"audit {seat.key.address}", Anew(), 1.0)
        audit = StepAuditor(seat.context, lots, replaying, looks=looks, again=20.0)
        held = seat.holds
        seat.holds = lambda: audit.beat().get("policy_step", held())
        self.audits.append(audit)
        self.doors.append(own)
        nursery.start_soon(lots.live, seat)
        nursery.start_soon(audit.run)
        return looks

    async def arrive(self, number: int, nursery: trio.Nursery) -> None:
        desk = self.desks[number]
        self.seats.append(desk.seat)
        await desk.seat.run(nursery)
        for seat in self.seats:
            self._seat(seat)
        nursery.start_soon(desk.run)

    def _seat(self, seat: Seat) -> None:
        for other in self.seats:
            seat.membership.joined(other.key.address, next(iter(other.network.contacts()), ""))
        terms = seat.membership.terms
        if not terms.seated:
            terms.take(0, TRAINER.address, 0, bytes(32), self.chain.until)
            terms.seat([key.address for key in KEYS[: len(self.desks)]], LEASE, GRACE)

    async def _file(self, index: int) -> list[Group]:
        policy = policy_root(START)
        places = [(group, sample) for group in range(GROUPS) for sample in range(SIZE)]
        rows = tuple(SampleRow(g, s, f"p{g}", [3], [4 + s, 1], True, b"") for g, s in places)
        batch = RolloutBatch(RolloutHeader(POOL, NOBODY, policy.hex(), index), rows)
        data = encode(batch)
        root = describe(data).root
        values = tuple(ReportRow(g, s, float(s), [-0.5, -0.5]) for g, s in places)
        report = ValidatorReport(ReportHeader(root.hex(), policy.hex()), values)
        told = encode_report(report)
        for blob in (data, told):
            self.store.at_hand.add((await self.store.add(blob)).root)
        commitment = WorkCommitment(POOL, NOBODY, policy, index, root, batch.units)
        author = address_bytes(VALIDATORS[0].address)
        origin = Origin(commitment, len(data), author, describe(told).root, len(told))
        groups = join(RUN, root, 0, batch, report, name=work_id(commitment))
        return [msgspec.structs.replace(one, origin=origin) for one in groups]

    async def until(self, true: Callable[[], bool], seconds: float = 400) -> float:
        """How long it took."""
        began = trio.current_time()
        with trio.fail_after(seconds):
            while not true():
                await trio.sleep(LOOK)
        return trio.current_time() - began

    def batch(self, step: int) -> ComposedBatch:
        """That led to policy `step`."""
        signed = self.seats[0].jury.state.policies.of_step(step)
        assert signed is not None
        return decode_manifest(self.store.path(signed.message.batch_root).read_bytes()).batch

    async def convict(self, step: int) -> None:
        """A quorum found the step bad that led to this policy."""
        signed = self.seats[0].jury.state.policies.of_step(step)
        assert signed is not None and (statement := signed.message.statement) is not None
        word = sign(TRAINER, DOMAIN, statement.commitment(signed.author))
        for seat in self.judges[:2]:
            draft = StepVerdict(statement, signed.author, word, VerdictOutcome.SLASH, Reason.STATE, b"", pool=POOL)
            said = msgspec.structs.replace(draft, signature=sign(seat.key, DOMAIN, draft.verdict))
            await seat.board.post(said)

    def check(self) -> int:
        """One policy a step at every node, each after the one before it, no group twice; how many."""
        newest = min(seat.jury.state.policies.newest_step for seat in self.seats)
        used = set[tuple[bytes, int]]()
        for step in range(newest + 1):
            said = [seat.jury.state.policies.of_step(step) for seat in self.seats]
            (message,) = {one.message for one in said if one is not None}
            if step:
                parent = self.seats[0].jury.state.policies.of_step(step - 1)
                assert parent is not None and message.parent == parent.message.policy_root
                manifest = decode_manifest(self.store.path(message.batch_root).read_bytes())
                assert manifest.state == parent.message.state_root
                names = {(work.file_root, group) for work in manifest.batch.works for group in work.used}
                assert not names & used
                used |= names
        assert not any(seat.jury.state.distrust for seat in self.seats)
        return newest


@asynccontextmanager
async def opened(pool: Pool, late: int = 0) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        await pool.open(nursery, late)
        yield nursery
        nursery.cancel_scope.cancel()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MockClock:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return MockClock(autojump_threshold=0)


@pytest.mark.parametrize("hears_the_chain", [True, False])
async def test_a_leader_that_is_cut_off_is_replaced_and_comes_back_as_a_standby(
    clock: MockClock, tmp_path: Path, hears_the_chain: bool
) -> None:
    pool = Pool(tmp_path, ["same", "same"])
    async with opened(pool):
        leader, standby = pool.desks
        await pool.until(lambda: standby.step >= 5)
        pool.hub.isolate(TRAINER.address)
        if not hears_the_chain:
            pool.chain.away.add(TRAINER.address)
        cut_at = standby.step
        took = await pool.until(lambda: standby.leads)
        assert took < 45 and pool.chain.taken[0][0] == SECOND.address
        assert leader.leads != hears_the_chain, "who hears the chain stops at once, who does not has its lease"
        await pool.until(lambda: standby.step >= cut_at + 8)
        alone = max(leader.made)
        await pool.until(lambda: not leader.leads)
        pool.hub.heal()
        pool.chain.back(TRAINER.address)
        leader.learner.seconds = 0.1  # as fast as the other one it would have caught up at the run's end
        await pool.until(lambda: leader.step >= standby.step - 1 and leader.trainer.others.compared > 2)
        assert alone > pool.chain.from_step, "it had made policies of its own beyond the other's term"
        assert leader.trainer.others.equal == leader.trainer.others.compared and not leader.trainer.others.apart
        assert not leader.leads and len(pool.chain.taken) == 1
        assert pool.check() >= cut_at + 8


async def announce_words(leader: Desk, each: float = 1.0) -> None:
    """Policies that nobody made, each after the one before it."""
    true = leader.context.state.policies.of_step(leader.step)
    assert true is not None
    root, none = true.root, bytes(32)
    for step in itertools.count(true.step + 1):
        parent, root = root, blake3(b"words %d" % step).digest()
        said = PolicyStatement(POOL, 0, step, 0, parent, root, none, none)
        word = sign(TRAINER, DOMAIN, said.commitment(TRAINER.address))
        await leader.context.board.post(
            PolicyAnnounced(pool=POOL, statement=said, signature=word, manifest_root=root, manifest_size=1)
        )
        await trio.sleep(each)


@pytest.mark.parametrize("each", [1.0, 45.0])
async def test_a_leader_that_announces_policies_which_nobody_can_have_loses_its_term(
    clock: MockClock, tmp_path: Path, each: float
) -> None:
    """Nobody works, and each word would be a sign of life. However fast they come, others follow no more of them than a
    standby may take back."""
    pool = Pool(tmp_path, ["same", "same"])
    async with opened(pool) as nursery:
        leader, standby = pool.desks
        await pool.until(lambda: standby.step >= 5)
        leader.learner.seconds = 10**6
        await trio.sleep(3.0)
        true, others = leader.step, pool.seats[:3]
        nursery.start_soon(announce_words, leader, each)
        await trio.sleep(55.0)
        assert standby.context.state.newest == true + min(55 // each + 1, MAX_AHEAD)
        took = await pool.until(lambda: standby.leads)
        assert took < 35 + each and pool.chain.taken == [(SECOND.address, true + 1)]
        assert {seat.jury.state.newest for seat in others} == {true}, "what was followed is taken back"
        await pool.until(lambda: standby.step >= true + 8)
        assert {seat.jury.state.newest for seat in others} <= {standby.step, standby.step - 1}
        assert min(seat.holds() for seat in others) >= true + 6


async def test_an_honest_leader_keeps_its_term_however_slow_its_steps_and_the_lines_are(
    clock: MockClock, tmp_path: Path
) -> None:
    """The control: each policy is there on a second try, 45 s later."""
    pool = Pool(tmp_path, ["same", "same"], 30.0)
    pool.fetch_seconds = 45.0
    async with opened(pool):
        await trio.sleep(240)
        assert pool.chain.taken == [] and pool.desks[0].step >= 6 and pool.desks[0].leads
        assert all(seat.holds() >= 4 for seat in pool.judges)


async def say_that_steps_hold(liar: Seat) -> None:
    """Of each that is announced, without a look."""
    async for policy in liar.context.facts.subscribe(PolicyFollowed):
        statement, signature = policy.statement, policy.message.signature
        draft = StepVerdict(statement, policy.author, signature, VerdictOutcome.ACCEPT, Reason.NONE, b"", pool=POOL)
        await liar.board.post(msgspec.structs.replace(draft, signature=sign(liar.key, DOMAIN, draft.verdict)))


@pytest.mark.parametrize("lies", [False, True], ids=["all look", "one says that each step holds"])
async def test_a_leader_that_hands_nothing_over_of_what_its_policies_were_made_of_loses_its_term(
    clock: MockClock, tmp_path: Path, lies: bool
) -> None:
    """Each policy can be had, so each is a sign of life; no drawn step can be looked at, no standby can replay one."""
    pool = Pool(tmp_path, ["same", "same"], looks=True)
    async with opened(pool) as nursery:
        leader, standby = pool.desks
        if lies:
            nursery.start_soon(say_that_steps_hold, pool.judges[0])
        await pool.until(lambda: all(audit.counts["held"] for audit in pool.audits))
        await pool.until(lambda: standby.step >= 8)
        pool.store.lost, made = True, standby.step
        took = await pool.until(lambda: standby.leads)
        assert took < 100 and pool.chain.taken[0][0] == SECOND.address
        assert made <= pool.chain.from_step <= made + 3, "from what it could replay"
        pool.store.lost = False
        await pool.until(lambda: standby.step >= made + 8)
        assert min(seat.holds() for seat in pool.judges) >= made + 5


@pytest.mark.parametrize("case", ["slow", "one step", "one validator", "a liar"])
async def test_an_honest_leader_keeps_its_term_whatever_looks_come_to(
    clock: MockClock, tmp_path: Path, case: str
) -> None:
    """The control: its steps are slow; nobody could look at one step; one validator, which is fewer than may lie, is
    cut off from all blobs; or it says that the leader is gone."""
    pool = Pool(tmp_path, ["same", "same"], 30.0 if case == "slow" else 4.0, looks=True)
    async with opened(pool):
        leader, standby = pool.desks
        await pool.until(lambda: standby.step >= 6, 600)
        pool.doors[0].cut_off = case == "one validator"
        if case == "one step":
            pool.store.lost = True
            await pool.until(lambda: any(audit._looks.vain for audit in pool.audits))
            pool.store.lost = False
        if case == "a liar":
            liar, term = pool.judges[0], pool.judges[0].membership.terms.now
            silent = TermSilent(POOL, term.number, term.until, 0)
            word = sign(liar.key, DOMAIN, silent)
            await liar.board.post(LeaderSilent(**msgspec.structs.asdict(silent), signature=word))
        await trio.sleep(150)
        assert pool.chain.taken == [] and leader.leads
        assert all(audit.counts["held"] for audit in pool.audits[1:])


async def test_of_two_standbys_that_take_at_once_one_leads_and_the_other_follows_it(
    clock: MockClock, tmp_path: Path
) -> None:
    """The leader is cut off from everybody, and the validators from the standbys, who are late for their turns."""
    pool = Pool(tmp_path, ["same", "same", "same"])
    async with opened(pool):
        leader, *standbys = pool.desks
        await pool.until(lambda: min(one.step for one in standbys) >= 5)
        pool.hub.partition([leader.context.key.address], [one.context.key.address for one in standbys])
        pool.chain.away |= {one.context.key.address for one in pool.desks}
        await pool.until(lambda: now() > pool.chain.until + 2 * GRACE + 1)
        for one in pool.desks:
            pool.chain.back(one.context.key.address)
        pool.chain.at_once = 2
        pool.hub.partition([leader.context.key.address])
        await pool.until(lambda: any(one.leads for one in standbys))
        await pool.until(lambda: pool.chain.refused == 1)
        assert len(pool.chain.taken) == 1
        await pool.until(lambda: min(one.step for one in standbys) >= pool.chain.from_step + 4)
        pool.hub.heal()
        await pool.until(lambda: leader.step >= pool.chain.from_step + 8)
        assert sorted(one.leads for one in pool.desks) == [False, False, True]
        assert not any(one.trainer.others.apart for one in pool.desks)
        pool.check()


async def test_a_standby_of_another_class_that_comes_late_leads_from_a_checkpoint_and_takes_no_hostile_one(
    clock: MockClock, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, ["one class", "another class"])
    async with opened(pool, late=1) as nursery:
        leader, standby = pool.desks
        await pool.until(lambda: leader.step >= 12)
        hostile = await _hostile(pool, 12)
        await pool.arrive(1, nursery)
        await pool.until(lambda: standby.step >= 16 and standby.trainer.status()["chair"]["checkpoints"] >= 2)
        told = standby.trainer.status()["chair"]
        assert told["differences"] == ["processor: another class instead of one class"]
        assert told["replayed"] == told["equal"] <= 1, "nothing but policy 0"
        assert not told["apart"]
        assert (told["checkpoints_refused"] > 0) == hostile
        assert standby.spool.was_skipped(15) and standby.spool.newest_step() % 4 == 0
        await trio.sleep(1.5)
        pool.hub.isolate(TRAINER.address)
        await pool.until(lambda: standby.leads)
        held = pool.chain.from_step - 1
        assert held % 4 == 0 and max(leader.made) > held
        await pool.until(lambda: standby.step >= held + 6)
        pool.hub.heal()
        await pool.until(lambda: leader.step >= held + 8)
        assert leader.trainer.status()["chair"]["checkpoints"] >= 1 and not leader.trainer.others.apart, (
            "and the other way round"
        )
        assert pool.check() > held


async def _hostile(pool: Pool, step: int) -> bool:
    """Another checkpoint of a step, which the newcomer is offered by the leader itself, later than the true one."""
    board = pool.desks[0].context.board
    offers = lambda: [one.message for one in board.messages(CheckpointOffered) if one.message.step == step]
    await pool.until(lambda: bool(offers()))
    (offer,) = offers()
    card = decode_card(pool.store.path(offer.root).read_bytes())
    forged = await pool.store.add(b"another state, 32 bytes of it ..")
    file = msgspec.structs.replace(card.files[0], root=forged.root, size=forged.size)
    named = await pool.store.add(msgspec.msgpack.encode(msgspec.structs.replace(card, files=(file,))))
    await board.post(msgspec.structs.replace(offer, root=named.root, size=named.size))
    return True


async def test_a_standby_that_has_heard_of_nothing_or_is_far_behind_does_not_take_the_run_back_to_its_start(
    clock: MockClock, tmp_path: Path
) -> None:
    """The control is the test above: a few policies it does take back."""
    pool = Pool(tmp_path, ["one class", "another class"], seconds=0.5)
    async with opened(pool, late=1) as nursery:
        leader, standby = pool.desks
        leader.showing.tick = trio.sleep_forever  # type: ignore[method-assign] # nothing is offered
        await pool.until(lambda: leader.step > TAKES_BACK)
        pool.hub.isolate(TRAINER.address)
        pool.chain.away.add(TRAINER.address)
        await pool.arrive(1, nursery)
        await pool.until(lambda: now() > pool.chain.until + 2 * GRACE)
        assert standby.spool.newest_step() == 0 and standby.trainer.leading.ready() is None and not pool.chain.taken


@pytest.mark.parametrize("found", [True, False])
async def test_a_standby_that_came_to_another_state_leads_from_before_a_bad_step_once_a_quorum_found_it(
    clock: MockClock, tmp_path: Path, found: bool
) -> None:
    """Without the quorum it follows no further, and leads nowhere: who is right nobody has said. A quorum that finds
    another step bad says nothing about this one."""
    pool = Pool(tmp_path, ["same", "same"])
    async with opened(pool):
        leader, standby = pool.desks
        leader.learner.lies_at = 6
        await pool.until(lambda: leader.step >= 8 and bool(standby.trainer.others.apart))
        assert standby.trainer.leading.ready() is None and standby.step == 5
        heard = partial(pool.judges[0].board.messages, StepObjected)
        await pool.until(lambda: [one.message.step for one in heard()] == [6])
        leader.learner.lies_at = -1
        await pool.convict(6 if found else 7)
        await pool.until(lambda: pool.chain.ended)
        if not found:
            await trio.sleep(LEASE + 2 * GRACE)
            assert not any(who == SECOND.address for who, _ in pool.chain.taken) and standby.trainer.others.apart
            return
        await pool.until(lambda: standby.leads and standby.step >= 12, 60)
        assert pool.chain.taken == [(SECOND.address, 6)] and not standby.trainer.others.apart
        assert standby.freed, "what the bad step had used up is learnt from again"
        await pool.until(lambda: leader.step >= 12)
        assert not leader.leads and not leader.trainer.others.apart
        manifests = [pool.batch(step) for step in range(1, 13)]
        assert standby.freed <= {work.name(POOL) for one in manifests for work in one.works}
        assert pool.check() >= 12


async def _restored(pool: Pool, nursery: trio.Nursery, at: int, stated: int, chair: bool) -> Desk:
    """The leader is stopped at `stated`, and starts from a backup of step `at`, with a journal that has what the pool
    heard."""
    await pool.open(nursery, late=1)
    leader = pool.desks[0]
    backup = pool.directory / "backup"

    async def life(desk: Desk, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as inner:
                pool.seats.append(desk.seat)
                await desk.seat.run(inner)
                for seat in pool.seats:
                    pool._seat(seat)
                    if not chair:
                        seat.membership.terms.seated = False
                await desk.run()

    first = trio.CancelScope()
    nursery.start_soon(life, leader, first)
    await pool.until(lambda: leader.step >= at)
    shutil.copytree(leader.spool.root, backup, symlinks=True)
    journal = copied(leader.context.journal)  # type: ignore[arg-type] - the court's
    journal.pen.open()
    await pool.until(lambda: pool.judges[0].jury.state.policies.newest_step >= stated)
    first.cancel()
    await trio.sleep(1)
    pool.seats.remove(leader.seat)
    shutil.rmtree(leader.spool.root)
    shutil.copytree(backup, leader.spool.root, symlinks=True)
    used = journal.used.consumed()  # what the ingest leaves out when it takes files in again
    pool.groups = [one for one in pool.groups if one.key[0] + one.key[1].to_bytes(4, "big") not in used]
    again = Desk(pool, TRAINER, "same", 1.0)
    pool.desks[0] = again
    journal._db.backup(again.context.journal._db)
    for said in pool.judges[0].jury.state.policies.words_of(TRAINER.address):
        kind, slot, raw = promise_in(Signed(said.author, said.message, said.raw)) or ("", b"", b"")
        assert again.context.journal.adopt(kind, slot, raw)
    nursery.start_soon(life, again, trio.CancelScope())
    return again


async def test_a_trainer_that_is_restored_from_a_backup_replays_what_its_key_has_stated_and_goes_on(
    clock: MockClock, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, ["same"])
    async with trio.open_nursery() as nursery:
        again = await _restored(pool, nursery, at=5, stated=11, chair=True)
        assert again.step < 5
        await pool.until(lambda: again.step >= 16)
        assert not again.context.state.policies.equivocations and pool.check() >= 16 and not pool.chain.taken
        nursery.cancel_scope.cancel()


async def test_where_the_steps_between_cannot_be_had_a_new_term_goes_on_from_the_step_that_is_here(
    clock: MockClock, tmp_path: Path
) -> None:
    pool = Pool(tmp_path, ["same"])
    async with trio.open_nursery() as nursery:
        again = await _restored(pool, nursery, at=5, stated=11, chair=True)
        pool.store.lost = True
        await pool.until(lambda: bool(pool.chain.taken), 900)
        pool.store.lost = False
        (holder, from_step) = pool.chain.taken[0]
        assert holder == TRAINER.address and 5 <= from_step <= 9
        await pool.until(lambda: again.step >= 12)
        assert not any(seat.jury.state.distrust for seat in pool.seats)
        nursery.cancel_scope.cancel()


async def test_without_a_chair_it_stops_and_names_both_steps(clock: MockClock, tmp_path: Path) -> None:
    pool = Pool(tmp_path, ["same"])
    with pytest.RaisesGroup(pytest.RaisesExc(TrainingError), flatten_subgroups=True) as caught:
        async with trio.open_nursery() as nursery:
            await _restored(pool, nursery, at=5, stated=11, chair=False)
            pool.store.lost = True
            await trio.sleep(600)
    (error,) = caught.value.exceptions
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert re.search("is of step [567],", str(error)) and "stated step 11" in str(error)
