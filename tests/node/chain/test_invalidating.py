"""Pay that is taken back on a real chain: real validators, a real worker's books, the real contracts."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from contracts.bindings import PoolParams
from contracts.deploy import TOKEN
from node.chain.client import ChainClient
from node.chain.faucet import DevnetFaucet
from node.chain.keeper import CaseKeeper
from node.chain.profile import NetworkProfile
from node.chain.setup import prepare_participant
from node.inference.wire import LoadPolicy, Reply, Request
from node.recipe.capacity import CapacityGauge
from node.services.generating import Generating
from node.services.judging.judge import Validator
from node.services.judging.lots import Lot
from node.services.paying import Paying
from node.swarm.ballots import FileState
from protocol.blobs import BlobInfo, describe
from protocol.checks import Fault, Reason
from protocol.identity import NodeKey
from protocol.messages import VerdictIssued
from protocol.statements import Domain, work_id
from tests.attacks.validators import court
from tests.attacks.validators.court import GROUPS, VALIDATORS, WORKER, Court, SharedBlobs, TruthfulEngine, root_of

FASTER, FAST = 50.0, 4.0  # the court's clock while it assembles, and then; the chain keeps its own time
EPOCH = 10
BAD_GROUP = Fault(Reason.ACTIVATIONS, "other weights", 5)
PATIENCE = 3600.0  # seconds of the court's clock: nothing in this story is decided by time


class Held(TruthfulEngine):
    """An engine that gives no answer before it is let go."""

    def __init__(self, bad: dict[bytes, Fault]) -> None:
        super().__init__(bad)
        self.let_go = trio.Event()

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, told: object = None
    ) -> Reply:
        await self.let_go.wait()
        return await super().ask(request, timeout=timeout, policy=policy)


class KeptBlobs(SharedBlobs):
    """Blobs that hold what was put in."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    async def fetch(self, root: bytes, *rest: Any, **named: Any) -> Path:
        path = self._folder / root.hex()
        return path if path.exists() else await super().fetch(root, *rest, **named)  # noqa: ASYNC240

    async def add(self, source: Path | bytes) -> BlobInfo:
        data = source if isinstance(source, bytes) else source.read_bytes()  # noqa: ASYNC240
        info = describe(data)
        (self._folder / info.root.hex()).write_bytes(data)
        return info


class Hall:
    """A pool on the chain and the court that judges its files. clients: of the validators, then of the worker."""

    def __init__(self, profile: NetworkProfile, connect: Callable[..., ChainClient], folder: Path) -> None:
        self.clients = [connect(profile, key) for key in (*VALIDATORS, WORKER)]
        self.chain = self.clients[-1]
        self.profile, self.folder = profile, folder
        self.providers = [NodeKey.generate() for _ in self.clients]
        self.pool = 0

    async def open(self, monkeypatch: pytest.MonkeyPatch) -> Court:
        faucet, manager = DevnetFaucet(self.chain), NodeKey.generate()
        await faucet.fund(manager.address, coin=10**18, token=110 * TOKEN)
        for key, provider in zip((*VALIDATORS, WORKER), self.providers, strict=True):
            await prepare_participant(self.chain, faucet, provider, key, stake=100 * TOKEN)
        params = PoolParams(
            manager=manager.address,
            reward_per_unit=10**15,
            window=600,
            epoch_seconds=EPOCH,
            slash_amount=50 * TOKEN,
            validators=tuple(key.address for key in VALIDATORS),
            threshold=2,
        )
        self.pool = await self.chain.create_pool(params, key=manager)
        await self.chain.fund_pool(self.pool, 100 * TOKEN, key=manager)
        for client in self.clients:
            await client.join(self.pool, "")
        keepers: Iterator[CaseKeeper] = (CaseKeeper(client, self.folder / "cases") for client in self.clients)
        monkeypatch.setattr(court, "DOMAIN", Domain(self.profile.chain_id, self.profile.contracts.swarm))
        monkeypatch.setattr(court, "POOL", self.pool)
        monkeypatch.setattr(court, "RecordingJudge", lambda: next(keepers))
        monkeypatch.setattr(court, "SharedBlobs", lambda: KeptBlobs(self.folder))
        engines = (TruthfulEngine, TruthfulEngine, Held)
        times: dict[str, Any] = {"verdict_seconds": PATIENCE, "delivery_seconds": PATIENCE}
        return Court([Validator] * 3, engine=lambda i, bad: engines[i](bad), window=64, **times)

    def worker(self, played: Court) -> tuple[Generating, Paying]:
        station = played.workers[0].station
        unused: Any = None
        gauge = CapacityGauge(played.run, unused)
        return Generating(station, unused, self.folder, gauge), Paying(station, self.chain)

    async def stakes(self) -> list[int]:
        return [(await self.chain.stake_of(provider.address)).bonded for provider in self.providers]


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110 - any of many messages may bring it about
        await trio.sleep(0.5)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cases").mkdir()
    return tmp_path


async def test_a_file_that_the_quorum_accepted_and_then_saw_through_loses_its_pay_on_chain(
    profile: NetworkProfile,
    connect: Callable[..., ChainClient],
    chain_rpc: Callable[..., Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: MockClock,
) -> None:
    """Two of three draw other groups and accept; the worker puts the file on chain; the third drew the bad one."""
    mock_clock.rate = 1  # a clock that stands still would wait for a receipt for ever
    hall = Hall(profile, connect, folder)
    played = await hall.open(monkeypatch)
    mock_clock.rate = FASTER
    for lucky in played.validators[:2]:
        drawn = tuple(group for group in range(GROUPS) if group != BAD_GROUP.group)
        monkeypatch.setattr(lucky.own_lots, "draw", lambda *_, drawn=drawn: Lot(0, 1 << 15, drawn))
    before = await hall.stakes()
    async with trio.open_nursery() as nursery:
        await played.open(nursery)
        mock_clock.rate = FAST
        worker, paying = hall.worker(played)
        nursery.start_soon(worker._follow_verdicts)
        journal, ballots = worker._journal, played.trainer.jury.ballots
        good, bad = await played.commit(), await played.commit(index=1, fault=BAD_GROUP)
        for index, root in enumerate((root_of(), root_of(index=1, fault=BAD_GROUP))):
            await journal.do(
                journal.commit_file, bytes([index]), b"", root, court.policy_root(0), index, 100, time.time()
            )
        await until(lambda: journal.file_counts(b"").get("accepted") == 2)
        assert ballots.state(bad) is FileState.ACCEPTED and not ballots.disputes_raised

        chain_rpc("evm_increaseTime", 2 * EPOCH)
        chain_rpc("evm_mine")
        epoch = await hall.chain.epoch_at(hall.pool) - 1
        await paying.commit_epoch(epoch)
        work = await hall.chain.work(hall.pool, WORKER.address, epoch)
        assert (work.units, work.voided) == (200, False)

        late = played.engines[2]
        assert isinstance(late, Held)
        late.let_go.set()
        with trio.fail_after(PATIENCE):
            await until(lambda: sum(one._invalidating.invalidated for one in played.validators) > 0)
        nursery.cancel_scope.cancel()
    assert ballots.state(bad) is FileState.REJECTED and ballots.state(good) is FileState.ACCEPTED
    work = await hall.chain.work(hall.pool, WORKER.address, epoch)
    assert (work.units, work.voided) == (100, False)  # exactly the bad file's
    assert await hall.stakes() == before  # a late insight costs nobody's stake
    said: list[Any] = [one.message for one in played.trainer.board.messages(VerdictIssued)]
    signed = {one.verdict.outcome for one in said if one.signature and work_id(one.verdict) == bad}
    assert len(signed) == 1  # nobody can be shown to have told the contract both
