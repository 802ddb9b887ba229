"""A small pool of real nodes under a virtual clock, played once with and once without a liar's words.

**This is the only file of the matrix that knows the product's inside.** Boards, memberships, juries, lots, validators,
certifying, tracing, auditing, chairs and newcomers are the product's own classes; engines, blobs and the chain are
doubles that know the truth. What a run came to is read by the probes at the end of the file, one short function each:
a product that moves a name moves it there.

The history: a pool with two trainers that are in office (`leader`, `standby`), one whose term is over (`dismissed`),
one that was thrown out (`evicted`), two workers, a cheat, four validators (three must agree), one that left office
(`former`) and one that comes into office at the very end (`coming`). Nine policies, a file of each worker for each.
"""

import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Protocol
from unittest.mock import patch

import msgspec
import trio
from blake3 import blake3

from benchmarks.command import run_seeded
from node.audit.findings import Audit, AuditFinding, Says
from node.audit.looks import LookHistory
from node.audit.order import StepOrder
from node.blobs.errors import BlobUnavailable
from node.chain.cases import Case, FileCase
from node.clock import Clock
from node.member import BlobService, Participant
from node.preflight import reach
from node.processes.forkserver import Anew
from node.run.assets import Run
from node.services.auditing.step_auditor import StepAuditor
from node.services.auditing.step_replay import StepReplay, Unavailable
from node.services.certifier import Certifier
from node.services.context import Context, PoolTime, make_context
from node.services.judging.judge import Validator
from node.services.judging.lots import OwnLots
from node.services.leader_lease import LeaderLease, LeadFrom
from node.services.run_progress import RunProgress
from node.services.usage_tracker import UsageTracker
from node.swarm import board, step_votes
from node.swarm import policies as policy_clock
from node.swarm.facts import Equivocation, PolicyFollowed
from node.swarm.membership import Membership
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from node.weights.fetch_history import FetchHistory
from protocol.audit import AuditSpec
from protocol.blobs import BlobInfo, describe
from protocol.checks import Fault, Reason
from protocol.earnings import of_judgement, policy_units
from protocol.errors import ProtocolError
from protocol.identity import Address, NodeKey, address_bytes
from protocol.manifest import (
    Arithmetic,
    BatchManifest,
    CheckpointCard,
    CheckpointFile,
    ComposedBatch,
    PolicyStatement,
    UsedReport,
    UsedWork,
    encode_manifest,
    work_order,
)
from protocol.messages import (
    AcceptedList,
    CheckpointOffered,
    DisputeRaised,
    EarningsVote,
    EnvironmentPublished,
    EpochRootSigned,
    Heartbeat,
    LeaderSilent,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    RoundVote,
    Signed,
    StepObjected,
    StepVerdict,
    TaskClaimed,
    TaskOffered,
    ValidatorBatch,
    VerdictIssued,
    VerdictRechecked,
    VerdictRequested,
    seal,
    signed,
    topic,
)
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.sections import ChairRules
from protocol.statements import (
    Domain,
    Earnings,
    EpochRoot,
    Rechecked,
    Verdict,
    VerdictOutcome,
    WorkCommitment,
    sign,
    signer_of,
    work_id,
)
from protocol.tasks import TaskSpec, decode_task, encode_task, task_id
from tests.attacks.matrix.remembered import remembering
from tests.attacks.matrix.steady import DRAWS, SteadyHub, steady
from tests.attacks.validators.court import (
    GROUPS,
    SIZE,
    InlineJournal,
    KnownPolicies,
    RecordingJudge,
    ReportingEngine,
    Trouble,
    inline,
)
from tests.memory_network import MemoryNetwork
from tests.words import slash_of

POOL, START = 1, 1_800_000_000
PACE, BEAT = 3.0, 6.0
"""Seconds of a policy; between two heartbeats."""
STEPS, DRAIN = 8, 10.0
"""Policies after the first; seconds after the last one."""
QUORUM = 3
UNTIL = 2**39
"""End of the leader's lease, unix seconds."""
TAKEN_AT = 2
"""The first policy of the leader's term."""
CHEATED_AT = 3
STALL = 8.0
"""Seconds in which a validator waits for policies that can be had."""
SMALL = {"statements that a step vote keeps": (step_votes, "KEPT", 32), "policies": (policy_clock, "COMPARED", 64)}
"""Tables that are smaller here than in the product, so that crowding them out costs no thousand messages."""


FILE_BYTES = 64
"""Of a rollout file, at most."""
MOST_SECONDS = 15.0
"""CPU seconds of one run, which takes two; four on a machine that is busy."""


def key_of(name: str) -> NodeKey:
    return NodeKey(blake3(name.encode()).digest())


VALIDATORS = tuple(f"validator {number}" for number in range(1, 5))
HONEST = ("leader", "standby", "worker 1", "worker 2", *VALIDATORS)
"""Whole nodes. Each of them may be the liar, too."""
MOUTHS = ("dismissed", "evicted", "cheat", "member", "former", "coming")
"""Keys with a connection and nothing behind it."""
KEYS = {name: key_of(name) for name in (*HONEST, *MOUTHS)}
NAMES: dict[Address, str] = {key.address: name for name, key in KEYS.items()}
DOMAIN = Domain(31337, KEYS["dismissed"].address)
TOPIC = topic(DOMAIN, POOL)
ARITHMETIC = Arithmetic("x", "float32", 1, False, 1, True, 1, True, False, "fused", "torch", "")
TASK = encode_task(TaskSpec(kind="filter", policy="ab" * 32, last=8, shard_size=2))


def name_of(address: Address) -> str:
    return NAMES.get(address, address)


def run_spec() -> RunSpec:
    return RunSpec(
        name="matrix",
        environment=EnvironmentSpec(name="sort"),
        rollout=RolloutSpec(group_size=SIZE, prompts_per_step=GROUPS, prompts_per_file=GROUPS),
        recipe=Recipe(max_staleness=2),
        audit=AuditSpec(window=2, verdict_seconds=8.0, delivery_seconds=6.0),
        chair=ChairRules(stall_seconds=STALL),  # a run's is a minute at least
    )


class Liar(Protocol):
    """Says what it likes, beside what an honest node of its name says. name: whose key it has."""

    name: str
    names: frozenset[str]

    async def before(self, world: "World", name: str, word: Message) -> bool:
        """An honest node, called `name`, is about to say this; whether the liar says something else in its place."""
        ...

    async def after(self, world: "World", name: str, word: Message) -> None:
        """It was said."""


class Nobody:
    """Nobody lies: what the others are compared with."""

    name, names = "nobody", frozenset[str]()

    async def before(self, world: "World", name: str, word: Message) -> bool:
        return False

    async def after(self, world: "World", name: str, word: Message) -> None: ...


Facts = frozenset[tuple[Any, ...]]
Seen = Mapping[str, Facts]
"""By probe: (who knows it, whom it is about or "", what). Of pay the third is whose file was looked at."""


class Blob(bytes):
    """A file of the doubles: what is asked of a path."""

    def read_bytes(self) -> bytes:
        return self


class Store:
    """Everybody's blobs. withheld: roots that only some are given, and to whom."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}
        self.withheld: dict[bytes, frozenset[Address]] = {}

    def put(self, data: bytes) -> BlobInfo:
        info = describe(data)  # under its root, as everybody checks it
        self.blobs[info.root] = data
        return info


class Door:
    """One node's way to them."""

    holding = nullcontext

    def __init__(self, store: Store, own: Address) -> None:
        self._store = store
        self._own = own

    async def add(self, source: Path | bytes, *, synced: bool = True) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        data = source.read_bytes() if isinstance(source, Path) else source
        return self._store.put(data)

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Blob:
        data = self._store.blobs.get(root)
        if data is None or self._own not in self._store.withheld.get(root, frozenset({self._own})):
            # Parts of a step are asked for for a minute: here less, or the history would be over.
            await trio.sleep(timeout if timeout < 60 else 2.0)
            raise BlobUnavailable(root, "nobody has it")
        if len(data) > max_size:
            raise Trouble("no such blob", f"it has {len(data)} bytes, more than {max_size}", "ask for more")
        await trio.lowlevel.checkpoint()
        return Blob(data)

    def arrived(self, root: bytes) -> int:
        return 0  # whole or not at all


class Court(RecordingJudge):
    """The contract as validators see it: whose stake they would take, and for what."""

    def __init__(self) -> None:
        super().__init__()
        self.evidence: list[tuple[Address, str]] = []

    async def carry(self, case: Case) -> None:
        if isinstance(case, FileCase):
            return await super().carry(case)
        await trio.lowlevel.checkpoint()
        key = signer_of(DOMAIN, case.first, case.first_signature)
        if case.first != case.second and signer_of(DOMAIN, case.second, case.second_signature) == key:
            self.evidence.append((key, type(case).__name__))


class OnChain:
    """The contract as a trainer sees it: what was carried there."""

    def __init__(self, calls: list[tuple[str, str]], own: str) -> None:
        self._calls = calls
        self._own = own

    async def _note(self, what: str) -> None:
        self._calls.append((self._own, what))
        await trio.lowlevel.checkpoint()

    async def hold_chair(self, pool: int, step: int, policy_root: bytes) -> None:
        await self._note("hold")

    async def take_chair(self, pool: int, term: int, from_step: int, parent: bytes) -> None:
        await self._note("take")

    async def end_term_by_verdicts(self, *given: object) -> None:
        await self._note("end by verdicts")

    async def end_term(self, *given: object) -> None:
        await self._note("end by silence")


class TruthfulReplaying(StepReplay):
    """With a replay that knows what the leader computed, and that begins only from a true checkpoint."""

    truth: "History"

    async def _replay(self, order: StepOrder) -> Audit:
        await trio.sleep(0.05)
        for step, (card, _) in order.checkpoints.items():
            if step and card != str(Blob(self.truth.card(step))):
                raise Unavailable("the checkpoint is not the state that was stated")
        claim = order.claims[order.step]
        held = claim.policy_root == policy_root(order.step + 1) and claim.state_root == state_root(order.step + 1)
        figures = {"distance": 0.0 if held else 1.0, "limit": 0.1}
        replay = AuditFinding("replay", Says.HOLDS if held else Says.BROKEN, "", figures)
        return Audit(order.step, "double", "double", (), (replay,), {})


def policy_root(step: int) -> bytes:
    return blake3(b"policy %d" % step).digest()


def state_root(step: int) -> bytes:
    return blake3(b"state %d" % step).digest() if step else bytes(32)


class Fetched:
    """A validator's way to policies: those can be had that the leader computed. newest: the one that is here."""

    newest: PolicyFollowed | None = None

    def __init__(self, context: Context) -> None:
        self._context = context
        self.history = FetchHistory(2**20, trio.current_time)

    @property
    def step(self) -> int:
        return self.newest.step if self.newest is not None else -1

    async def run(self) -> None:
        async for followed in self._context.facts.subscribe(PolicyFollowed):
            if followed.root != policy_root(followed.step):
                self.history.failed()
            elif followed.step > self.step:
                self.newest = followed
                self.history.came()


class Node:
    """One honest node: the product's classes, wired as a daemon wires them."""

    def __init__(self, world: "World", name: str) -> None:
        self.name, self.key = name, KEYS[name]
        self.network = MemoryNetwork(self.key, world.hub)
        self.membership = Membership(self.key.address, self.network, KEYS["dismissed"].address, (), quorum=QUORUM)
        none: Any = None
        blob_service = BlobService(Door(world.store, self.key.address), none, none)  # type: ignore[arg-type]
        self.member = Participant(self.key, DOMAIN, POOL, self.network, self.membership, blob_service, wall=world.wall)
        self.board = self.member.board
        run = Run(world.run, bytes(32), b"", Path("/"))
        clock, time = Clock(wall=world.wall), PoolTime(START, 2**30, 2**10, world.wall)
        self.context = make_context(self.member, run, InlineJournal(), clock=clock, time=time)
        self.jury = self.context.jury
        send, self.dropped = trio.open_memory_channel[tuple[PolicyStatement, str]](64)
        self.tracing = UsageTracker(self.context, send)
        self.ending = RunProgress(self.context)
        self.drops: list[tuple[int, str]] = []
        self._say_dropped, heard = trio.open_memory_channel[tuple[PolicyStatement, str]](64)
        chain: Any = OnChain(world.calls, name)
        candidate = SimpleNamespace(holds=lambda: True, ready=self._ready, at=lambda: (0, bytes(32)))
        self.fetched = Fetched(self.context)
        fetched: Any = self.fetched
        self.context.policy_cache = fetched
        self.looks = LookHistory(trio.current_time)
        standby = candidate if name == "standby" else None
        self.leader_lease = LeaderLease(self.context, chain, standby, fetched, self.looks)
        self.validator: Validator | None = None
        self.certifying: Certifier | None = None
        self.auditing: StepAuditor | None = None
        self.judge = Court()
        if name in VALIDATORS:
            self._take_office(world, heard)
        self._listen(world)

    def _take_office(self, world: "World", dropped: Any) -> None:
        policies: Any = KnownPolicies()
        self.certifying = Certifier(self.context)
        # One is slower than the others: who speaks before it is through must not cost it its pay.
        engine: Any = ReportingEngine(world.bad, seconds=0.1 if self.name == VALIDATORS[0] else 0.01)
        scratch = world.folder / self.name.replace(" ", "-")
        scratch.mkdir()
        lots = OwnLots(self.context, steps=1.0)
        self.validator = Validator(
            self.context, engine, policies, self.judge, scratch, lots=lots, certifier=self.certifying
        )
        replaying = TruthfulReplaying(self.context, scratch, Anew(), 2.0)
        replaying.truth = world.history
        self.auditing = StepAuditor(self.context, lots, replaying, dropped, self.looks)

    async def _hear_dropped(self) -> None:
        async for statement, how in self.dropped:
            self.drops.append((statement.term, ""))
            with suppress(trio.WouldBlock):
                self._say_dropped.send_nowait((statement, how))

    def _ready(self) -> LeadFrom | None:
        """A standby that holds the newest policy."""
        newest = self.jury.state.policies.newest_step
        return LeadFrom(newest + 1, policy_root(newest)) if self.name == "standby" else None

    def _listen(self, world: "World") -> None:
        """Tell the liar of each word before it is said, and after it."""
        post_raw = self.board.post_raw

        async def told(raw: bytes) -> None:
            word = board.parse_envelope(POOL, raw).message
            words = [word, *(word.carried if isinstance(word, ValidatorBatch) else ())]
            # Each of them is told, and one of the liar's own words gives way to another one whole.
            if not any([await world.liar.before(world, self.name, one) for one in words]):
                await post_raw(raw)
            for one in words:
                await world.liar.after(world, self.name, one)

        self.board.post_raw = told  # type: ignore[method-assign]

    async def run(self, nursery: trio.Nursery) -> None:
        DRAWS.set(self.name)  # for the tasks that begin here
        await nursery.start(self.network.run)
        services: list[Callable[[], Awaitable[None]]] = [
            self.member.listen, self.jury.run, self.tracing.run, self.ending.run, self.fetched.run, self._hear_dropped,
        ]  # fmt: skip
        if not self.name.startswith("worker"):
            services.append(self.leader_lease.run)
        for one in (self.validator, self.certifying, self.auditing):
            services += [one.run] if one is not None else []
        for service in services:
            nursery.start_soon(service)
        # As after a while: what is heard right after a start is held against nobody.
        self.jury.state.register._opened -= 25.0
        self.jury.state.tasks._started -= 25.0
        if self.certifying is not None:
            self.certifying._opened -= 25.0

    def beat(self, count: int) -> Heartbeat:
        pledges = self.validator.own_lots.pledges if self.validator is not None else ()
        role = "validator" if self.validator is not None else self.name.split()[0]
        said = self.auditing.beat() if self.auditing is not None else {}
        return Heartbeat(
            pool=POOL,
            boot=1,
            count=count,
            at=int(1000 * (START + trio.current_time())),
            role="trainer" if role in ("leader", "standby") else role,
            state="working",
            contact=next(iter(self.network.contacts()), ""),
            policy_step=said.get("policy_step", self.fetched.step),
            interval=BEAT,
            lots=pledges,
        )


class History:
    """What the honest leader and workers make: the truth of the engines, and templates of what they say.

    drops: from this step on the leader trains on one worker's files only; 0: it does not.
    """

    def __init__(self, world: "World", drops: int = 0) -> None:
        self._world = world
        self.drops = drops
        self.files: dict[tuple[int, str, int], WorkCommitment] = {}
        self.stated: set[PolicyStatement] = set()

    def term_of(self, step: int) -> tuple[int, str]:
        return (2, "leader") if step >= TAKEN_AT else (0, "dismissed")

    def card(self, step: int) -> bytes:
        file = CheckpointFile(blake3(b"state file %d" % step).digest(), 9)
        self._world.store.blobs[file.root] = b"tensors"
        return encode_manifest(CheckpointCard(step, step, (), (file,)))

    def commitment(self, step: int, name: str, index: int = 0) -> WorkCommitment:
        key, bad = KEYS[name], name == "cheat"
        root = self._world.store.put(b"%s %d %d" % (name.encode(), step, index)).root
        if bad:
            self._world.bad[root] = Fault(Reason.TERMINATION, "it ends where nothing ends", 0)
        made = WorkCommitment(POOL, key.address, policy_root(step), index, root, 100)
        self.files[step, name, index] = made
        return made

    def committed(self, step: int, name: str, index: int = 0) -> RolloutCommitted:
        made = self.commitment(step, name, index)
        return RolloutCommitted(pool=POOL, commitment=made, signature=sign(KEYS[name], DOMAIN, made), size=FILE_BYTES)

    def _works(self, policy: int, names: Iterable[str]) -> tuple[UsedWork, ...]:
        found: list[UsedWork] = []
        state = self._world.nodes["leader"].jury.state
        for name in names:
            # Of a slot that its owner filled otherwise than honestly what came first is its file.
            works = [one for one in state.register.of(KEYS[name].address) if one.step == policy and not one.rival]
            of = next((one.commitment for one in works if one.is_sampled and one.commitment.index == 0), None)
            accepting = state.vote_set.accepting(work_id(of)) if of is not None else {}
            said = sorted((who, one.report_root, one.report_size) for who, one in accepting.items() if one.report_root)
            if of is not None and said:
                report = UsedReport(address_bytes(said[0][0]), *said[0][1:], b"\1")
                place: dict[str, Any] = {"policy_root": of.policy_root, "file_root": of.file_root, "units": of.units}
                node = address_bytes(of.node)
                found.append(
                    UsedWork(
                        node=node, policy_step=policy, index=0, epoch=of.epoch, size=FILE_BYTES, reports=(report,),
                        used=b"\1", flat=b"\0", **place,
                    )
                )  # fmt: skip
        return tuple(sorted(found, key=lambda work: work_order(POOL, work)))

    def manifest(self, step: int, names: Iterable[str] = ("worker 1", "worker 2"), back: int = 3) -> BlobInfo:
        """Of the step that leads to policy `step`, put where everybody has it."""
        works = self._works(step - back, names)
        batch = ComposedBatch(bytes(32), POOL, step - 1, works)
        made = BatchManifest(batch, 0, policy_root(step - 1), bytes(32), ARITHMETIC)
        return self._world.store.put(encode_manifest(made))

    def announced(self, step: int) -> PolicyAnnounced:
        term, name = self.term_of(step)
        kept = ("worker 1",) if self.drops and step >= self.drops else ("worker 1", "worker 2")
        batch = self.manifest(step, kept) if step else describe(b"")
        parent = policy_root(step - 1) if step else bytes(32)
        said = PolicyStatement(POOL, term, step, 0, parent, policy_root(step), batch.root, state_root(step))
        word = sign(KEYS[name], DOMAIN, said.commitment(KEYS[name].address))
        self.stated.add(said)
        return PolicyAnnounced(pool=POOL, statement=said, signature=word, manifest_root=batch.root, manifest_size=1)

    def offered(self, step: int) -> CheckpointOffered:
        info = self._world.store.put(self.card(step))
        return CheckpointOffered(pool=POOL, term=2, step=step, root=info.root, size=info.size)

    def task(self, *, done: bytes = b"") -> TaskOffered:
        return TaskOffered(pool=POOL, sequence=self._world.milliseconds(), spec=TASK, done=done)

    def claim(self) -> TaskClaimed:
        return TaskClaimed(pool=POOL, task=task_id(TASK), shard=0, sequence=self._world.milliseconds())

    def environment(self) -> EnvironmentPublished:
        root = blake3(b"package").digest()
        given = {"determinism": "exact", "turns": 1, "about": "", "sequence": self._world.milliseconds()}
        return EnvironmentPublished(pool=POOL, name="words", root=root, size=9, **given)  # type: ignore[arg-type]


class World:
    """One run. drops: see `History`."""

    def __init__(self, folder: Path, liar: Liar, *, drops: int = 0) -> None:
        self.folder = folder
        self.liar = liar
        self.hub = SteadyHub(delay=0.01)
        self.store = Store()
        self.bad: dict[bytes, Fault] = {}
        self.calls: list[tuple[str, str]] = []
        self.run = run_spec()
        self.history = History(self, drops)
        self.over: list[bool] = []
        self.step = -1
        with ExitStack() as small:
            for module, constant, value in SMALL.values():
                small.enter_context(patch.object(module, constant, value))
            self.nodes = {name: Node(self, name) for name in HONEST}
        self.mouths = {name: MemoryNetwork(KEYS[name], self.hub) for name in MOUTHS}

    def wall(self) -> float:
        return START + trio.current_time()

    def milliseconds(self) -> int:
        return int(1000 * self.wall())

    # what happens

    async def play(self) -> Seen:
        async with trio.open_nursery() as self.nursery:
            nursery = self.nursery
            await self._open(nursery)
            for name in HONEST:
                nursery.start_soon(self._beat, name)
            await trio.sleep(BEAT + 1.0)  # everybody has been heard
            for step in range(STEPS + 1):
                await self._step(step)
            await trio.sleep(DRAIN)
            self._appoint(*VALIDATORS, "coming")
            await trio.sleep(2.0)
            await self._visit()
            found = {name: probe(self) for name, probe in PROBES.items()}
            nursery.cancel_scope.cancel()
        return found

    async def _open(self, nursery: trio.Nursery) -> None:
        for node in self.nodes.values():
            await node.run(nursery)
        for mouth in self.mouths.values():
            await nursery.start(mouth.run)
        networks = {name: node.network for name, node in self.nodes.items()} | self.mouths
        for node in self.nodes.values():
            for name, network in networks.items():
                node.membership.joined(KEYS[name].address, network.contacts()[0])
        for mouth in self.mouths.values():
            for node in self.nodes.values():
                mouth.set_contact(node.key.address, node.network.contacts())
        self._appoint(*VALIDATORS, "former")
        for node in self.nodes.values():
            node.membership.terms.seat(self._addresses("dismissed", "evicted", "leader", "standby"), 10**6, 10)

    def _addresses(self, *names: str) -> tuple[Address, ...]:
        return tuple(KEYS[name].address for name in names)

    def _appoint(self, *names: str) -> None:
        for node in self.nodes.values():
            node.membership.appoint(self._addresses(*names), QUORUM)

    def _take_over(self) -> None:
        """The chain tells of the leader's term, of one that lay before it and was never used, and of who went."""
        thrown_out = KEYS["evicted"].address
        record = slash_of(thrown_out)
        for node in self.nodes.values():
            terms = node.membership.terms
            terms.take(1, thrown_out, TAKEN_AT, policy_root(TAKEN_AT - 1), START)
            terms.take(2, KEYS["leader"].address, TAKEN_AT, policy_root(TAKEN_AT - 1), UNTIL)
            terms.seat(self._addresses("leader", "standby"), 10**6, 10)
            node.membership.slash(record)
        self._appoint(*VALIDATORS)

    async def _beat(self, name: str) -> None:
        count = 0
        while True:
            count += 1
            await self.nodes[name].board.post(self.nodes[name].beat(count))
            await trio.sleep(BEAT)

    async def _step(self, step: int) -> None:
        """Policy `step`, what belongs to it, and everybody's file."""
        history, leader = self.history, self.nodes["leader"].board
        self.step = step
        if step == TAKEN_AT:
            self._take_over()
            await trio.sleep(0.1)
        if step >= TAKEN_AT:
            await leader.post(history.announced(step))
            await leader.post(history.task())
            if step - 3 > 0:
                await leader.post(history.offered(step - 3))
        else:
            await self.say("dismissed", history.announced(step))
        await trio.sleep(0.5)
        for name, index in (("worker 1", 0), ("worker 2", 0), ("worker 1", 1), ("worker 2", 1)):
            await self.nodes[name].board.post(history.committed(step, name, index))
            await trio.sleep(0.05)
        if step == CHEATED_AT:
            await self.say("cheat", history.committed(step, "cheat"))
            await self.nodes["worker 1"].board.post(history.claim())
            await self.nodes["worker 1"].board.post(history.environment())
        await trio.sleep(PACE - 0.8)

    async def say(self, name: str, word: Message, *, to: Sequence[str] | None = None) -> None:
        """Past every board of one's own. to: who gets it straight from here, None: everybody."""
        raw = seal(KEYS[name], DOMAIN, word)
        network = self.nodes[name].network if name in self.nodes else self.mouths[name]
        if to is None:
            await network.publish(TOPIC, raw)
            return
        reached = {KEYS[one].address for one in to}
        for peer in self.hub.peers(network):
            if peer.address in reached:
                peer.hand(TOPIC, network.address, raw, set(NAMES))
        await trio.lowlevel.checkpoint()

    async def _visit(self) -> None:
        """Somebody looks at the pool whether its run is over, as `join` does before it stakes anything."""
        chain: Any = SimpleNamespace(members=self._members)
        leaders = self.nodes["leader"].membership.terms
        trainers = list(dict.fromkeys([*leaders.trainers, *(one.holder for one in leaders._terms)]))
        pool: Any = SimpleNamespace(id=POOL, trainers=trainers)
        with patch.object(reach, "open_guest", self._open_guest):
            self.over.append(await reach.is_over(chain, pool, self.folder))

    async def _members(self, pool: int) -> list[Any]:
        gone = {"evicted": True}
        return [SimpleNamespace(node=KEYS[name].address, evicted=gone.get(name, False), left=False) for name in KEYS]

    @asynccontextmanager
    async def _open_guest(self, *_: Any, **__: Any) -> AsyncIterator[Participant]:
        key, none = key_of("guest"), None
        network = MemoryNetwork(key, self.hub)
        known = self.nodes["leader"].membership
        membership = Membership(key.address, network, known.terms._terms[0].holder, known.validators, quorum=QUORUM)
        vars(membership.terms).update(_terms=list(known.terms._terms), trainers=known.terms.trainers, seated=True)
        blob_service: Any = BlobService(Door(self.store, key.address), none, none)  # type: ignore[arg-type]
        member = Participant(key, DOMAIN, POOL, network, membership, blob_service, wall=self.wall)
        async with trio.open_nursery() as nursery:
            await nursery.start(network.run)
            for name in (*HONEST, *(one for one in MOUTHS if one != "evicted")):
                of = self.nodes[name].network if name in self.nodes else self.mouths[name]
                membership.joined(KEYS[name].address, of.contacts()[0])
            yield member
            nursery.cancel_scope.cancel()


def play(liar: Liar, folder: Path, *, drops: int = 0, seed: int = 0) -> Seen:
    """One run, the same for each seed."""

    async def live() -> Seen:
        with patch.object(trio.to_thread, "run_sync", inline), remembering(), steady():
            return await World(folder, liar, drops=drops).play()

    gc.collect()
    gc.disable()  # a run makes and leaves a few ten MB: the collector would take a fifth of its time
    before = limited()
    try:
        return run_seeded(seed, live)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()


def limited() -> Any:
    """From here on a run gets so many CPU seconds. The handler of before."""
    before = signal.signal(signal.SIGVTALRM, _give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS, 1.0)  # again: the next node stands still at once
    return before


class Stuck(BaseException):
    """A node's event loop stands still: it computes and computes."""


def _give_up(_: int, frame: FrameType | None) -> None:
    where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}, {frame.f_code.co_qualname}" if frame else ""
    raise Stuck(f"no end after {MOST_SECONDS:g} CPU s, in {where}")


def is_refused(word: Message, author: str) -> bool:
    """Whether every board refuses these bytes before it asks whose they are."""
    try:
        board.parse_envelope(POOL, seal(KEYS[author], DOMAIN, word))
    except (ProtocolError, OverflowError):
        return True
    return False


# What a liar makes its words of: an honest one's, or where honest nodes say none of a kind, one as they would


NATIVE: dict[type[Message], str] = {
    PolicyAnnounced: "leader",
    CheckpointOffered: "leader",
    TaskOffered: "leader",
    RolloutCommitted: "worker 1",
    **dict.fromkeys((ValidatorBatch, VerdictIssued, AcceptedList, StepVerdict, LotsRevealed), "validator 1"),
}
"""By whom the liar hears it said; a message that is nowhere here, by anybody."""


def template(world: World, kind: type[Message], name: str, word: Message, author: str) -> Message | None:
    """The honest word that a liar begins with, if it is to speak with this word of `name`; None if it is not."""
    if kind in MADE:
        # What nobody says in this history is said beside the leader's policies.
        made = type(word) is PolicyAnnounced and name == "leader"
        return MADE[kind](world, author) if made else None
    return word if type(word) is kind and name == NATIVE.get(kind, name) else None


def _beat(world: World, author: str) -> Heartbeat:
    like = {"former": "validator 1", "coming": "validator 1", "dismissed": "leader", "evicted": "leader"}
    beat = world.nodes[author if author in HONEST else like.get(author, "worker 1")].beat(100 + world.step)
    network = world.nodes[author].network if author in HONEST else world.mouths[author]
    return msgspec.structs.replace(beat, contact=network.contacts()[0])


def _votes(world: World) -> list[Signed[VerdictIssued]]:
    """Of two validators on a file of the last policy."""
    made = work_id(world.history.files[world.step - 1, "worker 1", 0])
    said = [world.nodes["leader"].jury.state.vote_set.verdict_of(made, KEYS[name].address) for name in VALIDATORS[:3]]
    return [one for one in said if one is not None]


def _recheck(world: World, author: str) -> VerdictRechecked | None:
    votes = _votes(world)
    if not votes:
        return None
    said = {one: getattr(votes[0].message, one) for one in VerdictRechecked.__struct_fields__ if one != "verdict"}
    return VerdictRechecked(verdict=Rechecked(**msgspec.structs.asdict(votes[0].message.verdict)), **said)


def _dispute(world: World, author: str) -> DisputeRaised | None:
    votes = _votes(world)
    return DisputeRaised(pool=POOL, first=votes[0].raw, second=votes[1].raw) if len(votes) > 1 else None


def _request(world: World, author: str) -> VerdictRequested:
    made = world.history.files[world.step - 1, "worker 1", 0]
    word = RolloutCommitted(pool=POOL, commitment=made, signature=sign(KEYS["worker 1"], DOMAIN, made), size=FILE_BYTES)
    return VerdictRequested(pool=POOL, commitment=seal(KEYS["worker 1"], DOMAIN, word))


def _root(what: str) -> bytes:
    return blake3(what.encode()).digest()


MADE: dict[type[Message], Callable[[World, str], Any]] = {
    Heartbeat: _beat,
    StepObjected: lambda world, _: StepObjected(pool=POOL, term=2, step=world.step),
    VerdictRechecked: _recheck,
    DisputeRaised: _dispute,
    VerdictRequested: _request,
    EpochRootSigned: lambda world, _: EpochRootSigned(
        pool=POOL, statement=EpochRoot(POOL, 0, world.step + 1, _root("leaves"), 9, _root("blob")), signature=bytes(65)
    ),
    EarningsVote: lambda world, _: EarningsVote(
        pool=POOL,
        earnings=Earnings(POOL, 0, 7, _root("earnings"), 9, _root("lines")),
        table=_root("table"),
        size=9,
        signature=bytes(65),
    ),
    RoundVote: lambda world, _: RoundVote(
        pool=POOL, round=world.step, ballot=0, closed=False, outer=_root("outer"), state=_root("cut"), size=9, files=()
    ),
    LeaderSilent: lambda world, _: LeaderSilent(pool=POOL, term=2, until=UNTIL, step=world.step, signature=bytes(65)),
    TaskClaimed: lambda world, _: world.history.claim(),
    EnvironmentPublished: lambda world, _: world.history.environment(),
}


def resigned(word: Any, author: str, honest: Any) -> Any:
    """With the author's own signatures within it, where the liar changed none of them itself."""
    key, own = KEYS[author], KEYS[author].address
    replace = msgspec.structs.replace
    if getattr(word, "signature", None) != getattr(honest, "signature", None):
        return word
    match word:
        case PolicyAnnounced(statement=statement):
            return replace(word, signature=sign(key, DOMAIN, statement.commitment(own)))
        case RolloutCommitted(commitment=of):
            of = replace(of, node=own) if of.node == honest.commitment.node else of
            return replace(word, commitment=of, signature=sign(key, DOMAIN, of))
        case VerdictIssued() | VerdictRechecked():
            # A work's own node, pool and roots are the liar's to change; what binds the rest is made anew.
            return signed(word, key, DOMAIN)
        case StepVerdict():
            if (word.statement, word.trainer, word.word) != (honest.statement, honest.trainer, honest.word):
                word = replace(word, trainer=own, word=sign(key, DOMAIN, word.statement.commitment(own)))
            return replace(word, signature=sign(key, DOMAIN, word.verdict))
        case LeaderSilent() | EpochRootSigned():
            return replace(word, signature=sign(key, DOMAIN, word.statement))
        case EarningsVote():
            return replace(word, signature=sign(key, DOMAIN, word.earnings))
        case ValidatorBatch():
            return replace(word, carried=tuple(resigned(one, author, one) for one in word.carried))
        case _:
            return word


ANOTHER_FILE = "another file"
"""In a place that its author fills honestly, too."""


def specials(kind: type[Message]) -> tuple[str, ...]:
    """Deviations that no field alone shows."""
    if kind in (VerdictIssued, VerdictRechecked, StepVerdict):
        return ("opposite",)
    if kind is RolloutCommitted:
        return ("withheld from one", "withheld from all but one", ANOTHER_FILE)
    if kind is TaskOffered:
        return ("another task",)
    return ("forged batch",) if kind is PolicyAnnounced else ()


def extras(world: World, deviation: str, word: Any, author: str) -> list[Any] | None:
    """Their words; None for any other deviation."""
    replace = msgspec.structs.replace
    if deviation == "opposite":
        of = word if isinstance(word, StepVerdict) else word.verdict
        good = of.outcome == VerdictOutcome.ACCEPT
        outcome, reason = (VerdictOutcome.SLASH, Reason.TERMINATION) if good else (VerdictOutcome.ACCEPT, Reason.NONE)
        said = {"outcome": int(outcome), "reason": int(reason)}
        if isinstance(word, StepVerdict):
            return [replace(word, **said)]
        return [replace(word, verdict=replace(word.verdict, **said), group=0 if good else -1)]
    if deviation.startswith("withheld"):
        root = world.store.put(b"%s %d withheld" % (author.encode(), world.step)).root
        judges = [KEYS[name].address for name in VALIDATORS]
        given = judges[:1] if "all" in deviation else judges[1:]
        world.store.withheld[root] = frozenset(given)
        index = 2 if author == "worker 2" else 0
        return [replace(word, commitment=replace(word.commitment, index=index, file_root=root))]
    if deviation == ANOTHER_FILE:
        root = world.store.put(b"%s %d another" % (author.encode(), world.step)).root
        return [replace(word, commitment=replace(word.commitment, file_root=root))]
    if deviation == "another task":
        return [replace(word, spec=encode_task(replace(decode_task(word.spec), nonce=f"{author} {world.step}")))]
    if deviation == "forged batch":
        made: list[Any] = []
        for step in range(word.step, word.step + 3):
            info, root = world.history.manifest(step, ("worker 1",)), _root(f"forged {world.step} {step}")
            said = replace(word.statement, step=step, batch_root=info.root, policy_root=root)
            made.append(replace(word, statement=said, manifest_root=info.root))
        return made
    return None


# What a run came to: facts about the honest, one probe a line

HONEST_WORDS, OWN_WORDS = "what it said honestly", "its own words"


def _each(world: World) -> Iterator[Node]:
    return (node for node in world.nodes.values() if node.name not in world.liar.names)


def _judges(world: World) -> Iterator[tuple[Node, Validator, Certifier, StepAuditor]]:
    for node in _each(world):
        if node.validator is not None and node.certifying is not None and node.auditing is not None:
            yield node, node.validator, node.certifying, node.auditing


def policies(world: World) -> Facts:
    """Which policies are followed, and how far the clock is."""
    clocks = [(node.name, node.jury.state.policies) for node in _each(world)]
    followed = {
        (name, name_of(signed.author), step, signed.message.policy_root.hex()[:8])
        for name, clock in clocks
        for step in clock.steps
        if (signed := clock.of_step(step))
    }
    return frozenset(followed | {(name, "", "newest", clock.newest_step) for name, clock in clocks})


def forks(world: World) -> Facts:
    """Terms whose holder is not believed, and whether what it said beside its honest words shows that."""
    return frozenset(
        (node.name, name_of(of.holder) if of.number == term else "", _shown_by(world, found), term)
        for node in _each(world)
        for term, found in node.jury.state.policies.equivocations.items()
        for of in [next((one for one in node.membership.terms._terms if one.number == term), node.membership.terms.now)]
    )


def _shown_by(world: World, found: Equivocation) -> str:
    """By two announcements, of which one is a lie; or by verdicts on one statement, which may be one."""
    told: list[Any] = [board.parse_envelope(POOL, raw).message for raw in found.evidence]
    return HONEST_WORDS if {one.statement for one in told} <= world.history.stated else OWN_WORDS


def states(world: World) -> Facts:
    """What the pool thinks of each file."""
    made = {work_id(one): one for one in world.history.files.values()}
    found = set()
    for node in _each(world):
        for id, one in made.items():
            state = node.jury.state.vote_set.state(id) if node.jury.state.register.get(id) else None
            named = f"{one.policy_root.hex()[:4]} {one.index}"
            found.add((node.name, name_of(one.node), named, state.value if state else "no work"))
    return frozenset(found)


def works(world: World) -> Facts:
    """Whose files are works."""
    found: set[tuple[Any, ...]] = set()
    for node in _each(world):
        for id, work in node.jury.state.register._works.items():
            found.add((node.name, name_of(work.node), id.hex()[:8], work.rival))
    return frozenset(found)


def torn(world: World) -> Facts:
    """Places that two files were committed to, and who knows of one only: others' evidence must reach everybody."""
    known: dict[tuple[Any, ...], dict[str, set[bytes]]] = {}
    for node in _each(world):
        for id, work in node.jury.state.register._works.items():
            place = (name_of(work.node), work.step, work.commitment.index)
            known.setdefault(place, {}).setdefault(node.name, set()).add(id)
    several = {place: by for place, by in known.items() if len(set().union(*by.values())) > 1}
    return frozenset(
        (node.name, "", " ".join(map(str, place)))
        for place, by in several.items()
        for node in _each(world)
        if len(by.get(node.name, ())) < 2
    )


def pledges(world: World) -> Facts:
    """What everybody knows of each validator's pledges, and whether it is what that one pledged."""
    secrets_of = {
        (node.key.address, pledge.window): pledge.hash
        for node in world.nodes.values()
        if node.validator is not None
        for pledge in node.validator.own_lots._pledged.values()
    }
    return frozenset(
        (node.name, name_of(who), window, one.pledge.hash == secrets_of.get((who, window)))
        for node in _each(world)
        for (who, window), one in node.jury.state.lots._pledged.items()
    )


def told(world: World) -> Facts:
    """Windows whose secret a validator told, and what that is worth."""
    kept = {
        (node.name, name_of(one.author), one.message.window)
        for node in _each(world)
        for one in node.board.messages(LotsRevealed)
    }
    early = {(node.name, "", "early", node.jury.state.lots.early) for node in _each(world)}
    return frozenset(kept | early)


def checkpoints(world: World) -> Facts:
    """Whether a validator that audits takes what the leader offered of each step."""
    own = {step: describe(world.history.card(step)).root for step in range(1, STEPS)}
    return frozenset(
        (node.name, "leader", step, offers[0].message.root == own[step])
        for node, _, _, auditing in _judges(world)
        for step, offers in auditing._replaying.offered().items()
        if step in own
    )


def audits(world: World) -> Facts:
    """Steps that each honest validator looked at, as it pledged, and what it said of them."""
    return frozenset(
        (node.name, name_of(one.message.trainer), one.message.statement.step, one.message.outcome)
        for node, _, _, _ in _judges(world)
        for one in node.board.messages(StepVerdict)
        if one.author == node.key.address
    )


def step_book(world: World) -> Facts:
    """Verdicts on the followed steps that everybody still has."""
    found: set[tuple[Any, ...]] = set()
    for node in _each(world):
        for step in node.jury.state.policies.steps:
            signed = node.jury.state.policies.of_step(step)
            statement = signed.message.statement if signed else None
            if statement is not None:
                for who in node.jury.state.steps.judged_by(statement.struct_hash):
                    found.add((node.name, name_of(who), name_of(signed.author) if signed else "", step))
    return frozenset(found)


def tasks(world: World) -> Facts:
    return frozenset(
        (node.name, name_of(task.owner), task.id.hex()[:8], task.open, len(task.leases.done))
        for node in _each(world)
        for task in node.jury.state.tasks.tasks()
    )


def leaves(world: World) -> Facts:
    """What each honest validator names as counting for pay: who is paid, and whose file it was that was looked at."""
    found: set[tuple[Any, ...]] = set()
    for node, _, _, _ in _judges(world):
        looks = {
            look: name_of(one.node) for one in node.jury.state.register._works.values() for look in _looks(world, one)
        }
        rows = node.context.journal._db.execute("SELECT node, epoch, work, units FROM leaves")
        for who, epoch, work, units in rows:
            found.add((node.name, name_of(who), looks.get(bytes(work), ""), epoch, bytes(work).hex()[:8], units))
    return frozenset(found)


def _looks(world: World, work: RegisteredWork) -> Iterator[bytes]:
    """What looks at a file are named as."""
    said = Verdict(**msgspec.structs.asdict(work.commitment), outcome=0, reason=0)
    for name in VALIDATORS:
        yield of_judgement(world.run, KEYS[name].address, said, GROUPS, GROUPS).work


def overpaid(world: World) -> Facts:
    """Nobody is paid for a policy twice: leaves of a trainer beyond one for each followed policy."""
    found: set[tuple[Any, ...]] = set()
    for node, _, _, _ in _judges(world):
        counted = "SELECT node, count(*) FROM leaves WHERE units = ? GROUP BY node"
        rows = node.context.journal._db.execute(counted, (policy_units(world.run),))  # files have other units here
        trainers = {KEYS[name].address for name in ("leader", "dismissed", "standby", "evicted")}
        followed = [node.jury.state.policies.of_step(step) for step in node.jury.state.policies.steps]
        for who, many in rows:
            made = sum(one is not None and one.author == who and one.message.step > 0 for one in followed)
            if who in trainers and many > made:
                found.add((node.name, "", "policies of", name_of(who), many - made))
    return frozenset(found)


def alone(world: World) -> Facts:
    """Files that one voice decides: with four validators two at least must have seen what they accept."""
    return frozenset(
        (node.name, "", id.hex()[:8])
        for node in _each(world)
        for id in node.jury.state.register._works
        if node.jury.state.vote_set.state(id) is FileState.ACCEPTED and len(node.jury.state.vote_set.accepting(id)) < 2
    )


def disbelieved(world: World) -> Facts:
    return frozenset((node.name, name_of(who)) for node in _each(world) for who in node.jury.state.disputes.quarantined)


def slashed(world: World) -> Facts:
    """Whose stake is taken, and for what."""
    found: set[tuple[Any, ...]] = set()
    for node, _, _, _ in _judges(world):
        judge = node.judge
        found |= {("", name_of(who), reason) for who, reason, _ in judge.slashed}
        found |= {("", name_of(who), what) for who, what in judge.evidence}
    return frozenset(found)


def muted(world: World) -> Facts:
    return frozenset((node.name, name_of(who)) for node in _each(world) for who in node.network._muted)


def chair(world: World) -> Facts:
    """What trainers did about the chair, and what validators say of the leader."""
    done = {(name, "leader", what) for name, what in world.calls if name not in world.liar.names}
    silence = {
        (node.name, "leader", name_of(who), "does not hear it")
        for node in _each(world)
        for who in [one.author for one in node.context.facts.standing(LeaderSilent)]
        if name_of(who) not in world.liar.names
    }
    return frozenset(done | silence)


def unled(world: World) -> Facts:
    """Who has waited in vain for a policy, whoever announced which, without a quorum that says so of the leader."""
    found: set[tuple[Any, ...]] = set()
    for node, _, _, _ in _judges(world):
        since, policies = node.fetched.history.in_vain_since, node.jury.state.policies
        said = {one.author for one in node.context.facts.standing(LeaderSilent)}
        waits = since is not None and trio.current_time() - since > STALL + BEAT
        if waits and len(said) < QUORUM and policies.equivocation is None:
            found.add((node.name, "", len(said)))
    return frozenset(found)


def dropped(world: World) -> Facts:
    """Who says that a leader drops a worker."""
    return frozenset((node.name, "", term) for node in _each(world) for term, _ in set(node.drops))


def due(world: World) -> Facts:
    """Which files were due at which policy."""
    made = {work_id(one): one for one in world.history.files.values()}
    return frozenset(
        (node.name, name_of(one.node), id.hex()[:8])
        for node in _each(world)
        for id, one in made.items()
        if node.tracing.book.due(id) is not None
    )


def over(world: World) -> Facts:
    """Whether the run is over: to a newcomer, and to the members."""
    members = {(node.name, "leader", node.ending.over) for node in _each(world)}
    return frozenset(members | {("newcomer", "leader", one) for one in world.over})


def members(world: World) -> Facts:
    """Who is in the pool, alive, and where."""
    now = trio.current_time()
    found: set[tuple[Any, ...]] = set()
    for node in _each(world):
        alive = node.membership.table.live(now)
        for name in HONEST:
            address = KEYS[name].address
            member = node.membership.table.get(address)
            role = member.beat.role if member and member.beat else ""
            lives = address in alive or name == node.name
            found.add((node.name, name, lives, role, node.membership.places.contacts_of(address)))
    return frozenset(found)


def packages(world: World) -> Facts:
    return frozenset(
        (node.name, name_of(one.author), one.message.name)
        for node in _each(world)
        for one in node.board.messages(EnvironmentPublished)
    )


def disputes(world: World) -> Facts:
    return frozenset((node.name, "", node.jury.state.disputes.raised) for node in _each(world))


def faults(world: World) -> Facts:
    """What raised in a node."""
    counts = {node.name: node.network.stats().faults for node in _each(world)}
    return frozenset((name, "", many) for name, many in counts.items() if many)


PROBES: dict[str, Callable[[World], Facts]] = {
    probe.__name__: probe
    for probe in (
        policies, forks, states, works, torn, pledges, told, checkpoints, audits, step_book, tasks, leaves,
        overpaid, alone, disbelieved, slashed, muted, chair, unled, dropped, due, over, members, packages, disputes,
        faults,
    )
}  # fmt: skip
