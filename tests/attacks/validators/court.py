"""A court in memory: a trainer, workers and validators on one network, a mock clock, engines that know the truth.

Boards, juries, lots, registers, courts and journals are the real ones; engines, blobs and the chain are doubles.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio
from blake3 import blake3

from node.chain.cases import Case, CommitmentContradiction, FileCase, VerdictContradiction
from node.inference.wire import Inspect, Inspected, LoadPolicy, Reply, Request
from node.member import BlobService, Participant
from node.run.assets import Run
from node.services.certifier import Certifier
from node.services.context import make_context
from node.services.judging.judge import Validator
from node.state.journal import Journal
from node.state.pen import Pen
from node.swarm.membership import Membership
from node.swarm.register import WorkId
from node.weights.policy_cache import HeldPolicy
from protocol.audit import AuditSpec
from protocol.blobs import BlobInfo, describe
from protocol.checks import Fault, Reason
from protocol.errors import IntellectError
from protocol.identity import Address, NodeKey
from protocol.lots import LotPledge
from protocol.messages import Heartbeat, PolicyAnnounced, RolloutCommitted
from protocol.rollout import ReportHeader, ReportRow, ValidatorReport, encode_report
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.statements import Domain, VerdictOutcome, WorkCommitment, sign, signer_of, work_id
from protocol.values import mean_logprobs, reward_tags
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.words import announced as policy_announced

GROUPS, SIZE = 16, 4
TRAINER, WORKER, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3))
VALIDATORS = tuple(NodeKey(bytes([n]) * 32) for n in (11, 12, 13))
DOMAIN = Domain(31337, TRAINER.address)
POOL = 1
BEAT = 5.0


def court_run(**audit: Any) -> RunSpec:
    return RunSpec(
        name="court",
        environment=EnvironmentSpec(name="sort"),
        rollout=RolloutSpec(group_size=SIZE, prompts_per_step=GROUPS, prompts_per_file=GROUPS),
        recipe=Recipe(max_staleness=2),
        audit=AuditSpec(**{"window": 4, "verdict_seconds": 30.0, "delivery_seconds": 20.0, **audit}),
    )


def announcement(
    step: int,
    root: bytes,
    key: NodeKey = TRAINER,
    domain: Domain = DOMAIN,
    pool: int = POOL,
    state: bytes = bytes(32),
    term: int = 0,
    parent: bytes = bytes(32),
    epoch: int = 0,
) -> PolicyAnnounced:
    """With the trainer's statement. root: of the policy."""
    said = {"pool": pool, "term": term, "epoch": epoch, "parent": parent, "state": state}
    return policy_announced(step, root, key, domain, **said)


def policy_root(step: int) -> bytes:
    return blake3(b"policy %d" % step).digest()


def root_of(step: int = 0, index: int = 0, fault: Fault | None = None, key: NodeKey = WORKER) -> bytes:
    """The file that a worker commits to, if nothing else is said."""
    return blake3(b"%s %d %d %s" % (key.address.encode(), step, index, repr(fault).encode())).digest()


class InlineJournal(Journal):
    """A journal in memory, without a thread: threads and mock clocks do not mix."""

    def __init__(self, pen: Pen | None = None) -> None:
        super().__init__(Path(":memory:"), pen)

    async def do(self, work: Callable[..., Any], *args: object) -> Any:
        await trio.lowlevel.checkpoint()
        return work(*args)


async def inline(work: Callable[..., Any], *args: object, **_: object) -> Any:
    """In the place of `trio.to_thread.run_sync`: threads and mock clocks do not mix."""
    await trio.lowlevel.checkpoint()
    return work(*args)


class SharedBlobs:
    """Everybody's blobs. missing: roots that nobody hands over."""

    holding = nullcontext

    def __init__(self) -> None:
        self.missing: set[bytes] = set()

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        if root in self.missing:
            await trio.sleep(timeout)
            raise Trouble("no such blob", "nobody has it", "wait")
        await trio.lowlevel.checkpoint()
        return Path("/dev/null")

    async def add(self, source: Path | bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        return describe(b"report")


class KnownPolicies:
    """Policies that are always at hand."""

    async def announced(self, root: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def get(self, root: bytes, timeout: float) -> HeldPolicy:
        await trio.lowlevel.checkpoint()
        return HeldPolicy(0, root, Path("/dev/null"), None)  # type: ignore[arg-type]


class TruthfulEngine:
    """Knows which files are bad, and in which group (-1: as a whole). noise: of its arithmetic, in nats."""

    def __init__(self, bad: dict[bytes, Fault], noise: float = 0.0, seconds: float = 0.01) -> None:
        self.bad = bad
        self.noise = noise
        self.seconds = seconds
        self.engine_name = "double"
        self.asked: list[Inspect] = []

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        await trio.sleep(self.seconds)
        assert isinstance(request, Inspect) and policy is not None
        self.asked.append(request)
        return self.inspect(request)

    def inspect(self, order: Inspect) -> Inspected:
        groups = tuple(range(GROUPS)) if order.groups is None else order.groups
        fault = self.bad.get(order.file_root)
        if fault and fault.group >= 0 and fault.group not in groups:
            fault = None
        rewards, logprobs = truth(order.file_root)
        drawn = {group: [logprobs[group] + np.float32(self.noise)] for group in groups}
        return Inspected(
            outcome=int(fault.outcome if fault else VerdictOutcome.ACCEPT),
            reason=int(fault.reason if fault else Reason.NONE),
            detail=fault.detail if fault else "",
            report_path="",
            rewards_mean=0.0,
            tokens=len(groups),
            seconds=0.01,
            statistics={},
            group=fault.group if fault else -1,
            checked=groups,
            rewards=reward_tags(rewards, SIZE, ()),
            logprobs=mean_logprobs(drawn),
        )


class ReportingEngine(TruthfulEngine):
    """Writes reports, too: of two tokens a sample."""

    def inspect(self, order: Inspect) -> Inspected:
        found = super().inspect(order)
        if found.outcome != VerdictOutcome.ACCEPT or not found.checked:
            return found
        Path(order.report_path).write_bytes(encode_report(self.report(order, found.checked)))
        return changed(found, report_path=order.report_path)

    def report(self, order: Inspect, groups: Sequence[int]) -> ValidatorReport:
        rewards, logprobs = truth(order.file_root)
        said = (logprobs + np.float32(self.noise)).reshape(GROUPS, SIZE, -1).tolist()
        rows = (ReportRow(g, s, rewards[g * SIZE + s], said[g][s]) for g in groups for s in range(SIZE))
        return ValidatorReport(ReportHeader(order.file_root.hex(), order.policy_root.hex()), tuple(rows))


def truth(root: bytes) -> tuple[list[float], np.ndarray]:
    """(reward of every sample, log-probabilities float32[groups, 8]) of a file."""
    random = np.random.default_rng(int.from_bytes(root[:8]))
    return random.integers(0, 2, GROUPS * SIZE).astype(float).tolist(), -random.random((GROUPS, 8)).astype(np.float32)


class RecordingJudge:
    """The chain's place: what was carried to it."""

    def __init__(self) -> None:
        self.slashed: list[tuple[Address, int, int]] = []
        self.equivocations: list[Address] = []
        self.contradicted: list[Address] = []
        self.rooted_falsely: list[Address] = []

    async def carry(self, case: Case) -> None:
        await trio.lowlevel.checkpoint()
        match case:
            case FileCase():
                self.slashed.append((case.commitment.node, case.reason, len(case.votes)))
            case CommitmentContradiction():
                self.equivocations.append(case.first.node)
            case _:
                author = signer_of(DOMAIN, case.first, case.first_signature)
                assert case.first != case.second
                assert signer_of(DOMAIN, case.second, case.second_signature) == author
                if isinstance(case, VerdictContradiction):
                    self.contradicted.append(author)
                else:
                    self.rooted_falsely.append(author)


class Trouble(IntellectError):
    """What a blob exchange raises."""


class Seat:
    """One node: board, membership, jury, and a heart that beats."""

    def __init__(self, court: "Court", key: NodeKey, role: str) -> None:
        self.key = key
        self.role = role
        self.network = MemoryNetwork(key, court.hub)
        validators = tuple(one.address for one in court.validator_keys)
        self.membership = Membership(key.address, self.network, TRAINER.address, validators, quorum=court.quorum)
        none: Any = None
        self.member = Participant(
            key, DOMAIN, POOL, self.network, self.membership, BlobService(court.blobs, none, none)
        )
        self.board = self.member.board
        run = Run(court.run, bytes(32), b"", Path("/"))
        self.context = make_context(self.member, run, InlineJournal())
        self.jury = self.context.jury
        self.pledges: Callable[[], tuple[LotPledge, ...]] = tuple
        self.holds: Callable[[], int] = lambda: max(self.jury.state.newest, 0)
        self.alive = trio.CancelScope()

    async def run(self, nursery: trio.Nursery) -> None:
        await nursery.start(self.network.run)
        nursery.start_soon(self.member.listen)
        nursery.start_soon(self.jury.run)

    async def beat(self) -> None:
        with self.alive:
            sequence = 0
            while True:
                sequence += 1
                await self.board.post(
                    Heartbeat(
                        pool=POOL,
                        boot=0,
                        count=sequence,
                        at=sequence,
                        role=self.role,
                        state="working",
                        contact="",
                        policy_step=self.holds(),
                        interval=BEAT,
                        lots=self.pledges(),
                    )
                )
                await trio.sleep(BEAT)


class Court:
    """Everybody together. kinds: the class of each validator; scratch: where engines write reports."""

    def __init__(
        self,
        kinds: Sequence[type[Validator]],
        *,
        quorum: int = 2,
        engine: Callable[[int, dict[bytes, Fault]], TruthfulEngine] = lambda number, bad: TruthfulEngine(bad),
        scratch: Path = Path("/nonexistent"),
        **audit: Any,
    ) -> None:
        self._scratch = scratch
        self.hub = MemoryHub(delay=0.01)
        self.run = court_run(**audit)
        self.quorum = quorum
        self.validator_keys = VALIDATORS[: len(kinds)]
        self.blobs = SharedBlobs()
        self.bad: dict[bytes, Fault] = {}
        self.trainer = Seat(self, TRAINER, "trainer")
        self.workers = [Seat(self, key, "worker") for key in (WORKER, OTHER)]
        self.seats = [Seat(self, key, "validator") for key in self.validator_keys]
        self.judges = [RecordingJudge() for _ in kinds]
        self.engines = [engine(number, self.bad) for number in range(len(kinds))]
        self.certifying: list[Certifier] = []
        """Of each validator; none of them runs unless a test starts it."""
        self.validators = [self._validator(i, kind) for i, kind in enumerate(kinds)]

    def _validator(self, number: int, kind: type[Validator]) -> Validator:
        seat = self.seats[number]
        policies: Any = KnownPolicies()
        certifying, scratch = Certifier(seat.context), self._scratch / str(number)
        if self._scratch.exists():
            scratch.mkdir()
        self.certifying.append(certifying)
        given = (seat.context, self.engines[number], policies, self.judges[number], scratch)
        validator = kind(*given, certifier=certifying)
        seat.pledges = lambda: validator.own_lots.pledges
        return validator

    async def open(self, nursery: trio.Nursery, *, absent: Sequence[int] = ()) -> None:
        """Everybody takes a seat; validators in `absent` are dead from the start."""
        everybody = [self.trainer, *self.workers, *self.seats]
        for seat in everybody:
            if seat not in [self.seats[i] for i in absent]:
                await seat.run(nursery)
        for seat in everybody:
            seat.jury.state.register._opened -= 25.0  # longer than a newcomer's leniency
            for other in everybody:
                seat.membership.joined(other.key.address, next(iter(other.network.contacts()), ""))
        present = [i for i in range(len(self.seats)) if i not in absent]
        for i in present:
            nursery.start_soon(self.validators[i].run)
        for seat in [self.trainer, *self.workers, *(self.seats[i] for i in present)]:
            nursery.start_soon(seat.beat)
        await trio.sleep(BEAT)  # everybody has been heard
        await self.announce(0)

    async def arrive(self, number: int, nursery: trio.Nursery) -> None:
        """A validator that was absent starts now."""
        seat = self.seats[number]
        seat.jury.state.register._opened = trio.current_time()
        await seat.run(nursery)
        for other in (self.trainer, *self.workers, *self.seats):
            seat.membership.joined(other.key.address, other.network.contacts()[0])
            other.membership.joined(seat.key.address, seat.network.contacts()[0])
        nursery.start_soon(self.validators[number].run)
        nursery.start_soon(seat.beat)

    async def announce(self, step: int) -> None:
        """The trainer publishes a policy."""
        await self.trainer.board.post(announcement(step, policy_root(step)))
        await trio.sleep(0.5)

    async def commit(
        self,
        step: int = 0,
        index: int = 0,
        fault: Fault | None = None,
        key: NodeKey = WORKER,
        root: bytes | None = None,
        units: int = 100,
        policy: bytes | None = None,
        size: int = 9,
    ) -> WorkId:
        """A worker commits to a file, honest or with a fault; returns the id of its work."""
        root = root or root_of(step, index, fault, key)
        if fault:
            self.bad[root] = fault
        commitment = WorkCommitment(POOL, key.address, policy or policy_root(step), index, root, units)
        seat = next(seat for seat in self.workers if seat.key is key)
        await seat.board.post(
            RolloutCommitted(pool=POOL, commitment=commitment, signature=sign(key, DOMAIN, commitment), size=size)
        )
        return work_id(commitment)

    def hand_over(self, *works: WorkId) -> None:
        """The trainer has had these files."""
        for id in works:
            work = self.trainer.jury.state.register.get(id)
            assert work is not None
            work.delivered = True

    def quarantined(self) -> list[set[Address]]:
        """Whom each node does not believe."""
        return [set(seat.jury.state.disputes.quarantined) for seat in (self.trainer, *self.workers, *self.seats)]

    def slashed(self) -> list[tuple[Address, int, int]]:
        return [one for judge in self.judges for one in judge.slashed]


def changed(inspected: Inspected, **changes: Any) -> Inspected:
    return msgspec.structs.replace(inspected, **changes)
