"""What a file costs the board: gossip messages of each kind, bytes, signature checks and CPU, per accepted file.

    python -m benchmarks.messages [--files 200] [--workers 2] [--seed 7] [--quick] [--json FILE]

Four validators with a quorum of three, workers and a trainer in one process under a virtual clock: boards, juries,
judges, certifying, paying and tabling are the product's own; engines, blobs and the chain are doubles. As in the
demo a step is as many files as there are workers, an epoch lasts 10 seconds and its window 20. Heartbeats are not
counted: they follow the clock, not the files. CPU is of all nodes together, divided by nodes and files; it is no
virtual time, and other work on the machine changes it little.
"""

import logging
import random
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import trio

from benchmarks.command import parser_of, run_seeded, save, silence_logs
from contracts.bindings import EarningsPosted, PoolBooks, PoolInfo, PostedEarnings, ValidatorsSet
from node.chain.blocks import Block
from node.chain.ledger import Ledger
from node.clock import Clock
from node.inference.wire import LoadPolicy, Reply, Request
from node.services.context import PoolTime
from node.services.court.earnings_tabler import EarningsTabler
from node.services.judging.judge import Validator
from node.services.leaf_reader import LeafReader
from node.services.pool_accounting import PoolAccounting
from node.swarm.board import Board
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from protocol import identity
from protocol.blobs import BlobInfo, describe
from protocol.checks import Fault
from protocol.identity import Address, NodeKey
from protocol.messages import Heartbeat, RolloutCommitted, parse_envelope
from protocol.statements import Earnings, WorkCommitment, sign, work_id
from tests.attacks.validators import court as court_of
from tests.attacks.validators.court import (
    DOMAIN,
    POOL,
    Court,
    ReportingEngine,
    Seat,
    SharedBlobs,
    announcement,
    inline,
    policy_root,
    root_of,
)

START = 1_800_000_000
VALIDATORS, QUORUM = 4, 3
LOOK = (0.05, 0.4)
"""Seconds that a validator's engine takes for a file, between these; one file at a time."""
FILE = (0.5, 1.0)
"""Of a step's seconds, when a worker has its file."""
DRAIN = 10.0
"""Seconds after the last file: what is decided then is counted."""


class Cost(msgspec.Struct):
    """Of one run. sent, sizes: messages and bytes by kind; accepted, certified: seconds of each file from its
    announcement until the trainer's jury accepts it, and until its worker has a quorum's leaves; checked:
    signatures of all nodes, by the message or service that they were checked for; cpu: seconds, of all nodes."""

    nodes: int
    files: int
    sent: dict[str, int]
    sizes: dict[str, int]
    accepted: list[float]
    certified: list[float]
    checked: dict[str, int]
    cpu: float

    @property
    def checks(self) -> int:
        """Heartbeats aside, as of messages."""
        return sum(self.checked.values()) - self.checked.get("Heartbeat", 0)

    @property
    def messages(self) -> float:
        """Per accepted file, heartbeats aside."""
        return sum(self.sent.values()) / len(self.accepted)

    def rows(self) -> dict[str, Any]:
        many = len(self.accepted)
        per_kind = {kind: round(count / many, 2) for kind, count in sorted(self.sent.items(), key=lambda one: -one[1])}
        each = many * self.nodes
        return {
            "files": self.files,
            "accepted": many,
            "messages a file": round(self.messages, 2),
            "of them": per_kind,
            "bytes a file": round(sum(self.sizes.values()) / many),
            "bytes of them": {kind: round(self.sizes[kind] / many) for kind in per_kind},
            "signatures checked, of a node, a file": round(self.checks / each, 1),
            "signatures of them, and of heartbeats": {
                kind: round(count / each, 2) for kind, count in sorted(self.checked.items(), key=lambda one: -one[1])
            },
            "CPU of a node, ms a file": round(1000 * self.cpu / each, 2),
            "accepted after, s (median, 90 %)": _two(self.accepted),
            "certified after, s (median, 90 %)": _two(self.certified),
            "certified in the end": len(self.certified),
        }


def _two(seconds: Sequence[float]) -> tuple[float, float] | None:
    found = sorted(seconds)
    return (round(median(found), 2), round(found[int(0.9 * len(found))], 2)) if found else None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is played. step_seconds: a file of each worker in so many."""

    files: int = 200
    workers: int = 2
    step_seconds: float = 1.25
    epoch_seconds: int = 10
    window_seconds: int = 20
    seed: int = 7


def wall() -> float:
    return START + trio.current_time()


GIVEN: dict[str, Any] = {"block": 1, "transaction": "0x", "log_index": 0, "pool": POOL}


class Chain:
    """Takes tables of earnings; everything else about the pool stands still."""

    def __init__(self, plan: Plan, validators: tuple[Address, ...]) -> None:
        self._plan = plan
        self._validators = validators
        self._posted = PostedEarnings(None, bytes(32), 0)
        self._ledgers: list[Ledger] = []

    def ledger(self, own: Address) -> Ledger:
        ledger = Ledger(own)
        ledger.apply(ValidatorsSet(**GIVEN, number=1, validators=self._validators, threshold=QUORUM))
        self._ledgers.append(ledger)
        return ledger

    async def books(self, pool: int, known: PoolInfo | None = None) -> PoolBooks:
        await trio.lowlevel.checkpoint()
        given = {"id": POOL, "started_at": START, "epoch_seconds": self._plan.epoch_seconds, "escrow": 10**30}
        given |= {"window": self._plan.window_seconds, "reward_per_unit": 1, "units_per_epoch": 10**9}
        given |= {"threshold": QUORUM, "validators": self._validators}
        info = PoolInfo(**dict.fromkeys(PoolInfo.__struct_fields__, 0) | given)  # type: ignore[arg-type]
        return PoolBooks(info, self._posted, None)

    async def block(self, number: int | None = None) -> Block:
        await trio.lowlevel.checkpoint()
        return Block(int(wall()) if number is None else number, b"", int(wall()))

    async def post_earnings(self, earnings: Earnings, signatures: Sequence[bytes]) -> None:
        """It counts at once."""
        await trio.lowlevel.checkpoint()
        if self._posted.epoch is None or earnings.epoch > self._posted.epoch:
            self._posted = PostedEarnings(earnings.epoch, earnings.root, earnings.total)
            table = {name: getattr(earnings, name) for name in ("epoch", "number", "root", "total", "blob")}
            for ledger in self._ledgers:
                ledger.apply(EarningsPosted(**GIVEN, **table, counts_at=0, signers=self._validators))


class Files(SharedBlobs):
    """Everybody's, with their bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def add(self, source: Path | bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        data = source.read_bytes() if isinstance(source, Path) else source
        info = describe(data)
        (self._folder / info.root.hex()).write_bytes(data)
        return info

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        await trio.lowlevel.checkpoint()
        kept = self._folder / root.hex()
        return kept if kept.exists() else Path("/dev/null")


class OneAtATime(ReportingEngine):
    """An engine that needs its time, which differs from file to file."""

    def __init__(self, number: int, bad: dict[bytes, Fault], seed: int) -> None:
        super().__init__(bad)
        self._lock = trio.Lock()
        self._random = random.Random(seed * 100 + number)

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        async with self._lock:
            self.seconds = self._random.uniform(*LOOK)
            return await super().ask(request, timeout=timeout, policy=policy, on_progress=on_progress)


class Play:
    """One run."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._folder = folder
        self._made: dict[bytes, tuple[float, Seat]] = {}
        self._accepted: dict[bytes, float] = {}
        self._certified: dict[bytes, float] = {}

    async def run(self) -> Cost:
        with counted() as counts, patch.object(trio.to_thread, "run_sync", inline):
            return await self._played(counts)

    async def _played(self, counts: "Counts") -> Cost:
        plan, engine = self._plan, lambda number, bad: OneAtATime(number, bad, plan.seed)
        self._court = court = Court(
            [Validator] * VALIDATORS, quorum=QUORUM, engine=engine, scratch=self._folder, window=8
        )
        keys = [NodeKey(bytes([100 + number]) * 32) for number in range(plan.workers)]
        court.workers = [Seat(court, key, "worker") for key in keys]
        validators = tuple(one.address for one in court.validator_keys)
        self._chain = Chain(plan, validators)
        everybody = [court.trainer, *court.workers, *court.seats]
        files = Files(self._folder)
        for seat in everybody:
            seat.context.blobs = files
            seat.context.clock = Clock(wall=wall)
            seat.context.time = PoolTime(START, plan.epoch_seconds, plan.window_seconds, wall)
        for seat in everybody:
            seat.run, seat.beat = (partial(as_node, seat.key.address, each) for each in (seat.run, seat.beat))
        for seat, validator in zip(court.seats, court.validators, strict=True):
            validator.run = partial(as_node, seat.key.address, validator.run)
        services = [(seat.key.address, service) for seat in everybody for service in self._services(seat)]
        async with trio.open_nursery() as nursery:
            await court.open(nursery)
            await trio.sleep(20.0)  # files begin at the place in an epoch at which they always have
            for address, service in services:
                nursery.start_soon(as_node, address, service.run)
            nursery.start_soon(self._follow_jury)
            sent, sizes, before = dict(counts.sent), dict(counts.sizes), (Counter(counts.checked), time.process_time())
            await self._work(keys)
            await trio.sleep(DRAIN)
            cpu, checked = time.process_time() - before[1], counts.checked - before[0]
            nursery.cancel_scope.cancel()
        return Cost(
            nodes=len(everybody),
            files=plan.files,
            sent={kind: many - sent.get(kind, 0) for kind, many in counts.sent.items()},
            sizes={kind: many - sizes.get(kind, 0) for kind, many in counts.sizes.items()},
            accepted=list(self._accepted.values()),
            certified=list(self._certified.values()),
            checked=dict(checked),
            cpu=cpu,
        )

    def _services(self, seat: Seat) -> Iterator[Any]:
        chain: Any = self._chain
        ledger = self._chain.ledger(seat.key.address)
        books = PoolAccounting(seat.context, chain, ledger)
        yield LeafReader(books)
        if seat.role == "validator":
            certifying = self._court.certifying[self._court.seats.index(seat)]
            yield certifying
            yield SimpleNamespace(run=books.listen)
            yield EarningsTabler(books)

    async def _work(self, keys: list[NodeKey]) -> None:
        """A step after the other: its policy, and a file of each worker."""
        plan = self._plan
        for step in range(plan.files // plan.workers):
            async with trio.open_nursery() as nursery:
                if step:
                    await self._announce(step)
                for number in range(plan.workers):
                    nursery.start_soon(self._commit, number, keys[number], step)
                await trio.sleep(plan.step_seconds)

    async def _announce(self, step: int) -> None:
        NODE.set(self._court.trainer.key.address)
        epoch = self._court.trainer.context.time.epoch()
        await self._court.trainer.board.post(announcement(step, policy_root(step), epoch=epoch))

    async def _commit(self, number: int, key: NodeKey, step: int) -> None:
        NODE.set(key.address)
        await trio.sleep(self._random.uniform(*FILE) * self._plan.step_seconds)
        seat, root = self._court.workers[number], root_of(step, key=key)
        announced = seat.context.state.policies.announcement(policy_root(step))
        epoch = announced.message.epoch if announced else 0
        commitment = WorkCommitment(POOL, key.address, policy_root(step), 0, root, 100, epoch)
        id, journal = work_id(commitment), seat.context.journal
        await journal.do(journal.commit_file, id, b"", root, commitment.policy_root, 0, 100, wall(), b"", 0, epoch, id)
        await journal.do(journal.files.judge_file, root, "accepted")
        self._made[id] = trio.current_time(), seat
        message = RolloutCommitted(pool=POOL, commitment=commitment, signature=sign(key, DOMAIN, commitment), size=9)
        await seat.board.post(message)

    async def _follow_jury(self) -> None:
        """When each file is accepted, and when its worker holds a quorum's leaves."""
        jury = self._court.trainer.jury
        while True:
            await trio.sleep(0.02)
            now = trio.current_time()
            for id, (made, seat) in self._made.items():
                if id not in self._accepted and jury.state.vote_set.state(id) is FileState.ACCEPTED:
                    self._accepted[id] = now - made
                    self._hand_over(id)
                if id not in self._certified and id in self._accepted and _holds(seat, id):
                    self._certified[id] = now - made

    def _hand_over(self, id: bytes) -> None:
        for seat in [self._court.trainer, *self._court.seats]:
            work: RegisteredWork | None = seat.jury.state.register.get(id)
            if work is not None:
                work.delivered = True


def _holds(seat: Seat, id: bytes) -> bool:
    rows = seat.context.journal._db.execute("SELECT count(*) FROM leaves WHERE work = ?", (id,))
    return rows.fetchone()[0] >= QUORUM


class Counts:
    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()


NODE: ContextVar[Address] = ContextVar("NODE")
"""Whose task this is: nodes in one process must not know of signatures what others have checked."""


PURPOSE: ContextVar[str] = ContextVar("PURPOSE", default="else")
"""What signatures are checked for: a kind of message, or a service."""


async def as_node(address: Address, run: Callable[..., Awaitable[None]], *given: Any) -> None:
    NODE.set(address)
    PURPOSE.set(type(getattr(run, "__self__", run)).__name__)
    await run(*given)


class KnownToEach(OrderedDict[Any, Any]):
    """Each node's own: the bound of one node holds all of them together."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((NODE.get(), key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        # What a node signs while it is put together, before it has a task, is known to itself: to its signer.
        super().__setitem__((NODE.get(value), key), value)


@contextmanager
def counted() -> Iterator[Counts]:
    """Inside, everything that boards say and every signature that is checked is counted."""
    counts, post_raw, check = Counts(), Board.post_raw, identity.PublicKey.from_signature_and_message
    accept = Board._accept

    async def counting(board: Board, raw: bytes) -> None:
        kind = type(parse_envelope(POOL, raw).message)
        if kind is not Heartbeat:
            counts.sent[kind.__name__] += 1
            counts.sizes[kind.__name__] += len(raw)
        await post_raw(board, raw)

    def accepting(board: Board, publisher: Address, raw: bytes) -> bool:
        NODE.set(board._key.address)  # on a hub a message is taken in its sender's context
        purpose = PURPOSE.set(type(parse_envelope(POOL, raw).message).__name__)
        try:
            return accept(board, publisher, raw)
        finally:
            PURPOSE.reset(purpose)

    class Counting(identity.PublicKey):
        @classmethod
        def from_signature_and_message(cls, *given: Any, **named: Any) -> Any:
            counts.checked[PURPOSE.get()] += 1
            return check(*given, **named)

    with (
        patch.object(Board, "post_raw", counting),
        patch.object(Board, "_accept", accepting),
        patch.object(identity, "PublicKey", Counting),
        patch.object(identity, "_signers", KnownToEach()),
    ):
        yield counts


def play(plan: Plan, folder: Path) -> Cost:
    """Under a virtual clock."""
    keys = tuple(NodeKey(bytes([11 + number]) * 32) for number in range(VALIDATORS))
    run: Callable[[], Awaitable[Cost]] = Play(plan, folder).run

    async def inline(work: Callable[..., Any], *given: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()  # threads and virtual clocks do not mix
        return work(*given)

    with patch.object(court_of, "VALIDATORS", keys), patch.object(trio.to_thread, "run_sync", inline):
        return run_seeded(plan.seed, run)


def main() -> None:
    import tempfile

    parser = parser_of(__doc__, "20 files")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    given = vars(parser.parse_args())
    quick, path = given.pop("quick"), given.pop("json")
    plan = Plan(**given | ({"files": 20} if quick else {}))
    silence_logs(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        rows = play(plan, Path(folder)).rows()
    for name, value in rows.items():
        print(f"{name:40} {value}")
    save(path, {"plan": msgspec.structs.asdict(plan), **rows})


if __name__ == "__main__":
    main()
