"""The thief's story on a real chain: registered, joined, a root of nothing committed; real validators watch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from contracts.deploy import TOKEN
from node.chain.client import ChainClient
from node.chain.errors import Reverted
from node.chain.faucet import DevnetFaucet
from node.chain.follower import EventFollower
from node.chain.keeper import CaseKeeper
from node.chain.profile import NetworkProfile
from node.chain.setup import prepare_participant
from node.network.memory import MemoryHub, MemoryNetwork
from node.services.court.auditing import Auditing
from node.services.duties import Duties
from node.services.membership.events import Events
from node.swarm.membership import Membership
from protocol.identity import NodeKey
from protocol.work import EpochFault
from tests.attacks.validators.court import TRAINER, VALIDATORS, Court
from tests.node.chain.test_invalidating import EPOCH, FAST, FASTER, Hall, until

UNITS = 1_000_000


async def test_a_thief_that_commits_a_root_of_nothing_is_paid_nothing_and_loses_its_stake(
    profile: NetworkProfile,
    connect: Callable[..., ChainClient],
    chain_rpc: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mock_clock: MockClock,
) -> None:
    monkeypatch.setattr("node.services.court.turns.TURN", 1.0)
    monkeypatch.setattr("node.services.court.auditing.PAUSES", (1.0, 1.0))
    monkeypatch.setattr("node.services.court.auditing.LONGEST", 1.0)
    mock_clock.rate = 1
    (tmp_path / "cases").mkdir()
    hall = Hall(profile, connect, tmp_path)
    played: Court = await hall.open(monkeypatch)
    thief, provider = NodeKey.generate(), NodeKey.generate()
    client = connect(profile, thief)
    audits: list[Auditing] = []
    async with trio.open_nursery() as nursery:
        mock_clock.rate = FASTER
        await played.open(nursery)
        mock_clock.rate = FAST
        for number, key in enumerate(VALIDATORS):
            seat, chain = played.seats[number], hall.clients[number]
            members = Membership(key.address, MemoryNetwork(key, MemoryHub()), TRAINER.address, ())
            events = Events(EventFollower(chain, hall.pool, tmp_path / f"{number}.sqlite", poll=0.2), members)
            await events.start(nursery)
            keeper = CaseKeeper(chain, tmp_path / "cases")
            duties = Duties(seat.station)
            audit = Auditing(seat.station, chain, keeper, events.ledger, played.validators[number].leaves, duties)
            nursery.start_soon(duties.run)
            nursery.start_soon(audit.run)
            audits.append(audit)
        await until(lambda: all(audit._witness.now for audit in audits))

        await prepare_participant(client, DevnetFaucet(client), provider, thief, stake=100 * TOKEN)
        await client.join(hall.pool, "")
        epoch = await client.epoch_at(hall.pool)
        await client.commit_work(hall.pool, epoch, b"\xab" * 32, UNITS)
        info = await client.pool(hall.pool)
        assert (await client.work(hall.pool, thief.address, epoch)).reserved > 90 * TOKEN
        await until(lambda: all(audit._cases for audit in audits))
        chain_rpc("evm_increaseTime", info.window // 2 + EPOCH)
        chain_rpc("evm_mine")
        with trio.fail_after(600):
            await until(lambda: sum(audit.carried for audit in audits) > 0)
        nursery.cancel_scope.cancel()
    mock_clock.rate = 1
    work = await client.work(hall.pool, thief.address, epoch)
    stake = await client.stake_of(provider.address)
    assert work.voided and (stake.bonded, stake.frozen) == (50 * TOKEN, 50 * TOKEN)
    chain_rpc("evm_increaseTime", info.window)
    chain_rpc("evm_mine")
    with pytest.raises(Reverted, match=r"settle") as refused:
        await client.settle(hall.pool, thief.address, [epoch])
    assert refused.value.name == "WorkIsVoided"
    assert (await client.balances(provider.address)).token == 0
    [case] = [path for path in (tmp_path / "cases").iterdir() if "epoch" in path.name]
    assert f'"reason":{int(EpochFault.INVENTED)}' in case.read_text().replace(" ", "")
