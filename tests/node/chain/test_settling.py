"""Pay that arrives by itself on a real chain: the follower's books, the worker's daemon part, the real contracts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trio

from node.chain.client import ChainClient
from node.chain.follower import EventFollower
from node.network.memory import MemoryHub, MemoryNetwork
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
    station: Any = SimpleNamespace(pool=people.pool, key=people.node, journal=journal)
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
    """Three epochs, a restart between them; a stranger settles one; the pool has no money for the last."""
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
        assert any("only 97000 of 98000 units are reserved" in warning for warning in settling.warnings)
    chain_rpc("evm_increaseTime", 200)
    chain_rpc("evm_mine")
    await client.settle(pool, node, [second], key=people.manager)
    async with life(people, tmp_path) as settling:
        await until(settling, paid=100_000 * REWARD, waiting=0, due=0)
        assert settling.status()["pay"]["provider"] == people.provider.address
    assert await paid() - before == 100_000 * REWARD
