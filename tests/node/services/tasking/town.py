"""A swarm in memory that does tasks: a trainer who offers, workers, validators; engines that make small real files.

Boards, juries, leases, judges, offers and what is gathered are the real ones; engines, policies and the chain are
doubles. Time jumps: what would be done in a thread is done at once.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import trio

from node.inference.client import EngineChild
from node.inference.layers import LayeredImage
from node.inference.wire import Inspect, Inspected, LoadPolicy, Produce, Produced, Reply, Request, ShardOrder
from node.services.certifier import Certifier
from node.services.judging.judge import Validator
from node.services.tasking.requests import TaskRequest
from node.services.tasking.task_scheduler import TaskScheduler
from node.services.tasking.working import TaskWorker
from node.swarm.task_table import Task
from node.tasks.records import TaskFolder, folder_of
from protocol.blobs import BlobInfo, describe
from protocol.checks import Fault, Reason
from protocol.identity import Address, NodeKey
from protocol.messages import TaskOffered
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    decode,
    encode,
    encode_report,
)
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome
from protocol.tasks import TaskId, TaskSpec, decode_task, encode_task, task_id
from protocol.values import mean_logprobs, reward_tags
from tests.attacks.validators.court import (
    POOL,
    TRAINER,
    VALIDATORS,
    KnownPolicies,
    RecordingJudge,
    Seat,
    Trouble,
    court_run,
)
from tests.memory_network import MemoryHub
from tests.words import announced as policy_announced

POLICY = bytes([7]) * 32
WORKERS = tuple(NodeKey(bytes([n]) * 32) for n in (2, 3, 4))
SHARD_SECONDS = 2.0
LEASE = 40.0


async def at_once(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """In place of a thread, whose seconds a jumping clock would not wait for."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)


class Files:
    """Everybody's blobs, as files. missing: roots that nobody hands over."""

    holding = nullcontext

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.missing: set[bytes] = set()

    async def add(self, source: Path | bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        data = source if isinstance(source, bytes) else source.read_bytes()
        info = describe(data)
        (self._directory / info.root.hex()).write_bytes(data)
        return info

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        await trio.lowlevel.checkpoint()
        path = self._directory / root.hex()
        if root in self.missing or not path.exists():
            await trio.sleep(timeout)
            raise Trouble("no such blob", "nobody has it", "wait")
        return path


class ToyInputs:
    """What tasks need is always at hand. place: for the files of tasks, which lie among everybody's blobs."""

    def __init__(self, blobs: Path, place: Path) -> None:
        self._blobs = blobs
        self._place = place

    async def order(self, task: Task) -> tuple[ShardOrder, LoadPolicy]:
        await trio.lowlevel.checkpoint()
        return ShardOrder(task.encoded, "", POLICY), LoadPolicy(policy_root=POLICY, step=0, path="")

    async def files(self, task: Task) -> Path:
        await trio.lowlevel.checkpoint()
        self._place.mkdir(exist_ok=True)
        for asset in task.spec.assets:
            (self._place / asset.path).write_bytes((self._blobs / asset.root).read_bytes())
        return self._place

    async def file(self, task: Task, number: int) -> Path:
        await trio.lowlevel.checkpoint()
        return self._blobs / task.spec.assets[number].root

    async def policies(self, task: Task) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {root: SimpleNamespace(image=partial(LayeredImage, self._blobs / root)) for root in task.spec.policies}


def score_of(number: int, sample: int) -> float:
    """What an answer is worth: problem n is solved by n % 5 of 4 answers."""
    return float(sample < number % 5)


class ToyEngine:
    """Makes and judges files whose answers follow from (problem, sample). shift: does the shard so many further on."""

    engine_name = "toy"

    def __init__(self, seconds: float = SHARD_SECONDS, shift: int = 0) -> None:
        self.seconds = seconds
        self.shift = shift
        self.made: list[int] = []

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        assert isinstance(request, Produce | Inspect) and request.task is not None and policy is not None
        spec = decode_task(request.task.spec)
        if isinstance(request, Produce):
            await trio.sleep(self.seconds)
            return self._produce(request, spec)
        await trio.sleep(0.05)
        return self._inspect(request, spec)

    def _produce(self, order: Produce, spec: TaskSpec) -> Produced:
        shard = (order.index + self.shift) % spec.shards
        rows = tuple(
            SampleRow(group, sample, f"p{number}", [1 + number % 50], [2 + sample, 1], True, b"")
            for group, number in enumerate(spec.numbers(shard))
            for sample in range(spec.samples)
        )
        header = RolloutHeader(order.pool, Address(order.node), order.policy_root.hex(), order.index)
        batch = RolloutBatch(header, rows)
        Path(order.out_path).write_bytes(encode(batch))
        self.made.append(order.index)
        return Produced(
            path=order.out_path,
            units=batch.units,
            samples=len(rows),
            tokens=batch.units,
            seconds=self.seconds,
            reward_estimate=0.0,
        )

    def _inspect(self, order: Inspect, spec: TaskSpec) -> Inspected:
        batch = decode(Path(order.path).read_bytes(), 4096)
        numbers = spec.numbers(order.index)
        wrong = [row for row in batch.rows if row.problem_id != f"p{numbers[row.group]}"]
        fault = Fault(Reason.WRONG_DRAW, "another shard's problems") if wrong else None
        rewards = [score_of(numbers[row.group], row.sample) for row in batch.rows]
        logprobs = [[-0.5] * len(row.output) for row in batch.rows]
        rows = [
            ReportRow(row.group, row.sample, reward, values)
            for row, reward, values in zip(batch.rows, rewards, logprobs, strict=True)
        ]
        report = ValidatorReport(ReportHeader(order.file_root.hex(), order.policy_root.hex()), tuple(rows))
        Path(order.report_path).write_bytes(encode_report(report))
        means = mean_logprobs({g: [np.full(2 * spec.samples, -0.5, np.float32)] for g in range(len(numbers))})
        return Inspected(
            outcome=int(fault.outcome if fault else VerdictOutcome.ACCEPT),
            reason=int(fault.reason if fault else Reason.NONE),
            detail=fault.detail if fault else "",
            report_path="" if fault else order.report_path,
            rewards_mean=0.0,
            tokens=batch.units,
            seconds=0.05,
            statistics={},
            checked=tuple(range(len(numbers))),
            rewards=reward_tags(rewards, spec.samples, ()),
            logprobs=means,
        )


class Town:
    """engines: of the workers, in their order; judge: makes a validator's; run: toy engines heed none."""

    def __init__(
        self,
        directory: Path,
        engines: Sequence[EngineChild] = (),
        judge: Callable[[], EngineChild] = lambda: ToyEngine(),
        run: RunSpec | None = None,
    ) -> None:
        for name in ("blobs", "scratch", "tasks"):
            (directory / name).mkdir()
        self.directory = directory
        self.hub = MemoryHub(delay=0.01)
        self.run = run or court_run()
        self.quorum = 2
        self._judge = judge
        self.validator_keys = VALIDATORS[:2]
        self.blobs = Files(directory / "blobs")
        self.engines = list(engines) or [ToyEngine() for _ in WORKERS]
        self.trainer = Seat(self, TRAINER, "trainer")  # type: ignore[arg-type]
        self.workers = [Seat(self, key, "worker") for key, _ in zip(WORKERS, self.engines, strict=False)]  # type: ignore[arg-type]
        self.seats = [Seat(self, key, "validator") for key in self.validator_keys]  # type: ignore[arg-type]
        self.judges = [RecordingJudge() for _ in self.seats]
        self.work = [self._work(seat, engine) for seat, engine in zip(self.workers, self.engines, strict=True)]
        self.offering = TaskScheduler(self.trainer.context, directory / "tasks")
        self.scopes: list[trio.CancelScope] = []

    def certified(self, validator: Address, node: Address) -> int:
        """Units of a node that a validator of the town certified."""
        seat = next(seat for seat in self.seats if seat.key.address == validator)
        return seat.context.journal.pay.certified_units(node, 1).get(0, 0)

    def _work(self, seat: Seat, engine: EngineChild) -> TaskWorker:
        task_inputs: Any = self._task_inputs(f"worker-{self.workers.index(seat)}")
        return TaskWorker(seat.context, engine, task_inputs, self._scratch(seat))

    def _task_inputs(self, name: str) -> ToyInputs:
        return ToyInputs(self.directory / "blobs", self.directory / name)

    def _scratch(self, seat: Seat) -> Path:
        place = self.directory / "scratch" / seat.key.address
        place.mkdir()
        return place

    def _validator(self, number: int) -> Validator:
        seat, none, task_inputs, known = (
            self.seats[number],
            None,
            self._task_inputs(f"validator-{number}"),
            KnownPolicies(),
        )
        parts: Any = (known, self.judges[number], self._scratch(seat), none, task_inputs)
        validator = Validator(seat.context, self._judge(), *parts, certifier=Certifier(seat.context))
        seat.pledges = lambda: validator.own_lots.pledges
        return validator

    async def open(self, nursery: trio.Nursery) -> None:
        everybody = [self.trainer, *self.workers, *self.seats]
        for seat in everybody:
            await seat.run(nursery)
        for seat in everybody:
            for other in everybody:
                seat.membership.joined(other.key.address, next(iter(other.network.contacts()), ""))
            nursery.start_soon(seat.beat)
            seat.jury.state.register._opened -= 30.0  # longer than a newcomer's leniency
            seat.jury.state.tasks._started -= 30.0
        for number in range(len(self.seats)):
            nursery.start_soon(self._validator(number).run)
        await trio.sleep(3)
        await self.trainer.board.post(
            policy_announced(0, POLICY, self.trainer.key, self.trainer.context.domain, pool=POOL)
        )
        held: Any = SimpleNamespace(root=POLICY, step=0, manifest=SimpleNamespace(image_root=POLICY))
        self.trainer.context.policy_cache._held[0] = held
        nursery.start_soon(self.offering.run)
        await trio.sleep(1)

    def start(self, nursery: trio.Nursery, *workers: int) -> None:
        """Let these workers work, all if none is named."""
        for number in workers or range(len(self.work)):
            scope = trio.CancelScope()
            self.scopes.append(scope)
            nursery.start_soon(self._within, scope, self.work[number])

    async def _within(self, scope: trio.CancelScope, work: TaskWorker) -> None:
        with scope:
            await work.run()

    def kill(self, number: int) -> None:
        """A worker is gone without a word."""
        self.scopes[number].cancel()
        self.workers[number].alive.cancel()

    async def offer(self, **changes: Any) -> TaskId:
        """Offer a task; everybody has heard of it then."""
        id = await self.offering.offer(TaskRequest(spec(**changes)))
        everybody = [self.trainer, *self.workers, *self.seats]
        await self.until(lambda: all(seat.jury.state.tasks.find(id) for seat in everybody))
        return id

    def folder(self, id: TaskId) -> TaskFolder:
        return folder_of(self.directory / "tasks", id)

    def task(self, id: TaskId, seat: Seat | None = None) -> Task:
        """As a node knows it, the trainer by default."""
        found = (seat or self.trainer).jury.state.tasks.find(id)
        assert found is not None
        return found

    async def until(self, done: Callable[[], object], patience: float = 400.0) -> None:
        with trio.fail_after(patience):
            while not done():
                await trio.sleep(0.5)

    async def finish(self, id: TaskId) -> None:
        """Everything has been gathered, and was said to be."""
        await self.until(lambda: not self.task(id).open)


@asynccontextmanager
async def opened(town: Town) -> AsyncIterator[trio.Nursery]:
    """A town whose services are open, for as long as the test lasts."""
    async with trio.open_nursery() as nursery:
        await town.open(nursery)
        yield nursery
        nursery.cancel_scope.cancel()


def spec(**changes: Any) -> TaskSpec:
    fields = {"kind": "filter", "last": 40, "samples": 4, "shard_size": 4, "lease_seconds": LEASE}
    return TaskSpec(**{**fields, **changes})


def offer_of(key: NodeKey, **changes: Any) -> tuple[TaskId, TaskOffered]:
    """What somebody might say who is not asked."""
    encoded = encode_task(spec(policy=POLICY.hex(), **changes))
    return task_id(encoded), TaskOffered(pool=POOL, sequence=1, spec=encoded)
