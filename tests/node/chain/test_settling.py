"""Pay that arrives by itself on a real chain: the follower's books, the worker's daemon part, the real contracts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from contracts.deploy import TOKEN
from node.chain.client import ChainClient
from node.chain.follower import EventFollower
from node.chain.ledger import Ledger
from node.chain.simulate import Step
from node.network.memory import MemoryHub, MemoryNetwork
from node.progress import ProgressRecord
from node.services.clearing import Clearing
from node.services.membership.events import Events
from node.services.settling import Settling
from node.state.journal import Journal
from node.swarm.membership import Membership

REWARD = 10**15


@asynccontextmanager
async def life(people: Any, folder: Path) -> AsyncIterator[Settling]:
    """The part of a worker's daemon that looks after its pay; its state directory stays."""
    client: ChainClient = people.client
    membership = Membership(people.node.address, MemoryNetwork(people.node, MemoryHub()), people.manager.address, ())
    events = Events(EventFollower(client, people.pool, folder / "chain.sqlite", poll=0.02), membership)
    journal = Journal(folder / "journal.sqlite")
    own = {"pool": people.pool, "key": people.node}
    station: Any = SimpleNamespace(**own, journal=journal, progress=ProgressRecord())
    async with trio.open_nursery() as nursery:
        await events.start(nursery)
        settling = Settling(station, client, events.ledger, gather=0.0)
        nursery.start_soon(settling.run)
        yield settling
        nursery.cancel_scope.cancel()
    journal.close()


async def until(settling: Settling, **wanted: int) -> None:
    with trio.fail_after(10):
        while True:
            account = settling.account
            if all(getattr(account, name) == value for name, value in wanted.items()):
                return
            await trio.sleep(0.02)


async def test_a_worker_is_paid_without_anybody_doing_anything(
    people: Any, chain_rpc: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """Three epochs, a restart between them; a stranger settles one; the pool has money for the last one only later."""
    monkeypatch.setattr("node.services.settling.PAUSES", (0.02, 0.02))
    client, pool, node = people.client, people.pool, people.node.address
    await client.join(pool, "")

    async def commit(units: int) -> int:
        epoch = await client.epoch_at(pool)
        await client.commit_work(pool, epoch, bytes([1 + epoch % 255]) * 32, units)
        chain_rpc("evm_increaseTime", 10)
        chain_rpc("evm_mine")
        return epoch

    async def paid() -> int:
        return (await client.balances(people.provider.address)).token

    before = await paid()
    async with life(people, tmp_path) as settling:
        await commit(1_000)
        second = await commit(2_000)
        info = await client.pool(pool)
        await until(settling, waiting=3_000 * REWARD, until=info.maturity(second - 1))
        await commit(98_000)
        await until(settling, waiting=100_000 * REWARD, unfunded=1_000)
        assert any("reserved for 1000 of its 98000 units" in warning for warning in settling.warnings)
        await client.faucet(people.manager.address, TOKEN)
        await client.fund_pool(pool, TOKEN, key=people.manager)
        await until(settling, waiting=101_000 * REWARD, unfunded=0)
        assert not any("reserved" in warning for warning in settling.warnings)
    chain_rpc("evm_increaseTime", 200)
    chain_rpc("evm_mine")
    await client.settle(pool, node, [second], key=people.manager)
    async with life(people, tmp_path) as settling:
        await until(settling, paid=101_000 * REWARD, waiting=0, due=0)
        assert settling.status()["pay"]["provider"] == people.provider.address
    assert await paid() - before == 101_000 * REWARD


async def test_what_is_left_of_a_pool_that_is_over_is_swept_by_the_trainers_daemon(
    people: Any, chain_rpc: Callable[..., Any]
) -> None:
    """Its escrow at once, its bond when no slash can be overturned any more: to the wei, and to the manager."""
    client, pool, manager = people.client, people.pool, people.manager.address
    clearing = Clearing(pool, client, Ledger(manager))

    async def swept_after(seconds: int) -> int:
        chain_rpc("evm_increaseTime", seconds)
        chain_rpc("evm_mine")
        before = (await client.balances(manager)).token
        await clearing.sweep()
        return (await client.balances(manager)).token - before

    info = await client.pool(pool)
    await client.execute(Step("end the pool", client.contracts.end_pool(pool)), people.manager)
    assert await swept_after(info.window - 1) == 0
    assert await swept_after(info.epoch_seconds + 1) == info.escrow > 0
    assert await swept_after(await client.appeal_seconds()) == 0
    assert await swept_after(await client.appeal_seconds()) == info.bond > 0
    assert await swept_after(1) == 0
