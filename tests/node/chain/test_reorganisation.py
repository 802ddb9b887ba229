"""One to five blocks are replaced by others: what did not happen is taken back, what was sent is sent once."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import Joined
from node.chain.client import ChainClient
from node.chain.follower import EventFollower, EventStore, RolledBack
from node.chain.outbox import Fate
from node.chain.profile import NetworkProfile
from protocol.identity import NodeKey
from tests.node.chain.chains import Participants, deployed_chain
from tests.node.chain.test_follower import following, nothing_more, take
from tests.node.chain.test_sender import PATIENT, Sending, sending, until

__all__ = ["sending"]
RECEIPT = "eth_getTransactionReceipt"


@pytest.fixture(scope="module")
def deployed(anvil_cache: Path) -> Iterator[NetworkProfile]:
    """A chain that is never put back: one that was may forget the state of the blocks that are replaced."""
    with deployed_chain(anvil_cache) as profile:
        yield profile


@pytest.fixture
def profile(deployed: NetworkProfile) -> NetworkProfile:
    return deployed


@pytest.fixture
async def people(profile: NetworkProfile, connect: Callable[..., ChainClient]) -> Participants:
    """Of a pool of the test's own."""
    people = Participants(connect(profile, NodeKey.generate()))
    await people.prepare()
    return people


@pytest.mark.parametrize(("depth", "confirmations"), [(1, 0), (5, 0), (2, 2), (5, 2)])
async def test_the_follower_takes_back_what_it_told_of_replaced_blocks_and_nothing_else(
    people: Any, tmp_path: Path, chain_rpc: Any, depth: int, confirmations: int
) -> None:
    people.client.profile = msgspec.structs.replace(people.client.profile, confirmations=confirmations)
    chain_rpc("anvil_mine", hex(confirmations))
    told = max(depth - confirmations, 0)
    async with following(people, tmp_path / "f.sqlite") as follower:
        await take(follower, 2)
        fork = await people.client.block()
        for number in range(depth):
            await people.client.join(people.pool, f"old {number}")
        olds = await take(follower, told)
        await trio.to_thread.run_sync(chain_rpc, "anvil_reorg", depth, [])
        await people.client.join(people.pool, "new", key=people.validator)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", hex(confirmations))
        *undone, new = await take(follower, 2 if told else 1)
        for one in undone:
            assert isinstance(one, RolledBack) and one.events == tuple(olds) and one.block <= fork.number
        assert isinstance(new, Joined) and new.contact == "new"
        assert await nothing_more(follower)


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_log_that_is_gone_behind_blocks_that_were_passed_over_is_taken_back_if_its_block_is(
    people: Any, tmp_path: Path, chain_rpc: Any, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """replaced: else a machine lags, and tells no logs."""
    client, real = people.client, people.client.logs
    follower = EventFollower(client, people.pool, tmp_path / "f.sqlite")
    with closing(EventStore(tmp_path / "f.sqlite")) as store:
        while await follower._step(store, await client.block()):
            pass
        await client.join(people.pool, "told")
        await follower._step(store, await client.block())
        told = [follower.events.receive_nowait() for _ in range(follower.events.statistics().current_buffer_used)]
        if replaced:
            await trio.to_thread.run_sync(chain_rpc, "anvil_reorg", 1, [])
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x4")

        async def none(*_: Any, **named: Any) -> list[Any]:
            await trio.lowlevel.checkpoint()
            return []

        if not replaced:
            monkeypatch.setattr(client, "logs", none)
        again = await follower._step(store, await client.block())
        assert again is replaced, "it asked for the block that it had read last"
        monkeypatch.setattr(client, "logs", real)
        await follower._step(store, await client.block())
        news = [follower.events.receive_nowait() for _ in range(follower.events.statistics().current_buffer_used)]
        assert [one.events for one in news if isinstance(one, RolledBack)] == ([(told[-1],)] if replaced else [])


@pytest.mark.parametrize("depth", [1, 5])
async def test_a_transaction_in_replaced_blocks_is_sent_again_and_arrives_once(
    sending: Sending, chain_rpc: Any, depth: int
) -> None:
    limits = msgspec.structs.replace(PATIENT, confirmations=depth, bump_after=60)
    start = int(chain_rpc("eth_blockNumber"), 16)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending.client(limits=limits).faucet, sending.gets, 5)
        await until(lambda: int(chain_rpc("eth_blockNumber"), 16) > start)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", hex(depth - 1))
        await trio.sleep(0.1)  # it has seen its receipt
        await trio.to_thread.run_sync(chain_rpc, "anvil_reorg", depth, [])
        await until(lambda: int(chain_rpc("eth_blockNumber"), 16) == start + depth + 1)
        assert await sending.got() == 5 and sending.mined() == 0
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", hex(depth))
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED]


async def test_who_believed_blocks_that_were_replaced_still_sends_what_comes_next(
    sending: Sending, chain_rpc: Any
) -> None:
    """Without confirmations that is the network's risk; the numbers that became free do not hold up the next one."""
    client = sending.client()
    for amount in (1, 2, 4):
        await client.faucet(sending.gets, amount)
    await trio.to_thread.run_sync(chain_rpc, "anvil_reorg", 2, [])
    await client.faucet(sending.gets, 8)
    assert await sending.got() == 9


async def test_a_receipt_that_moved_to_a_later_block_counts_from_there(
    sending: Sending, chain_rpc: Any, meddler: Any
) -> None:
    limits = msgspec.structs.replace(PATIENT, confirmations=4, bump_after=60)
    start = int(chain_rpc("eth_blockNumber"), 16)
    done = trio.Event()

    async def send() -> None:
        await sending.client(meddler.url, limits=limits).faucet(sending.gets, 5)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await until(lambda: int(chain_rpc("eth_blockNumber"), 16) > start)
        ours = chain_rpc("eth_getBlockByNumber", hex(start + 1), False)["transactions"][0]
        raw = chain_rpc("eth_getRawTransactionByHash", ours)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x3")
        meddler.before[RECEIPT] = {"result": chain_rpc(RECEIPT, ours)}  # no look in the middle
        await trio.to_thread.run_sync(chain_rpc, "anvil_reorg", 4, [[raw, 3]])
        del meddler.before[RECEIPT]
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x1")  # five on the old one, two on the new
        await trio.sleep(0.3)
        assert not done.is_set() and sending.mined() == 0
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x5")
    assert await sending.got() == 5
    assert sending.fates() == [Fate.MINED]
