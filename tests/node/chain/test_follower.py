import contextlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import (
    Bonded,
    Joined,
    Left,
    PoolCreated,
    PoolFunded,
    RawLog,
    ValidatorsSet,
    pool_topic,
    topic_of,
)
from node.chain import follower as follower_module
from node.chain.blocks import Block
from node.chain.follower import AGAIN, KEPT_BLOCKS, Delivery, EventFollower, EventStore, RolledBack
from node.chain.refusals import EndpointRefused, RefusalKind
from node.chain.simulate import SimulatedStep
from node.state.tables import SEAL
from protocol.identity import Address


@contextlib.asynccontextmanager
async def following(people: Any, path: Path, **options: Any) -> AsyncIterator[EventFollower]:
    follower = EventFollower(people.client, people.pool, path, **{"poll": 0.02, "patience": 0.3, **options})
    async with trio.open_nursery() as nursery:
        await nursery.start(follower.run)
        yield follower
        nursery.cancel_scope.cancel()


async def take(follower: EventFollower, count: int) -> list[Delivery]:
    """Without the first bench, which every pool begins with."""
    found: list[Delivery] = []
    with trio.fail_after(60):
        while len(found) < count:
            delivery = await follower.events.receive()
            found += [] if isinstance(delivery, ValidatorsSet) else [delivery]
    return found


async def nothing_more(follower: EventFollower) -> bool:
    await trio.sleep(0.15)
    try:
        follower.events.receive_nowait()
    except trio.WouldBlock:
        return True
    return False


async def test_events_come_in_order_and_once(people: Any, tmp_path: Path) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        created, funded = await take(follower, 2)
        assert isinstance(created, PoolCreated) and isinstance(funded, PoolFunded)
        await people.client.join(people.pool, "here")
        await people.client.leave(people.pool)
        joined, left = await take(follower, 2)
        assert isinstance(joined, Joined) and joined.contact == "here"
        assert isinstance(left, Left)
        assert await nothing_more(follower)
        assert follower.healthy and follower.block is not None


async def test_a_block_without_events_takes_two_questions(
    people: Any, tmp_path: Path, chain_rpc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        await take(follower, 2)
        with trio.fail_after(30):
            while follower.block != await people.client.block():
                await trio.sleep(0.02)
        block, logs, asked = people.client.block, people.client.logs, list[Any]()

        async def told(number: int | None = None) -> Any:
            found = await block(number)
            if found.number > head:
                asked.append(number)
            return found

        async def told_logs(first: int, last: int, *rest: Any, **more: Any) -> Any:
            asked.append((first, last))
            return await logs(first, last, *rest, **more)

        head = (await block()).number
        monkeypatch.setattr(people.client, "block", told)
        monkeypatch.setattr(people.client, "logs", told_logs)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x1")
        with trio.fail_after(30):
            while not follower.block or follower.block.number == head:
                await trio.sleep(0.02)
        assert [one for one in asked if one is not None] == [(max(0, head + 1 - AGAIN), head + 1)]


async def test_who_takes_office_is_told_too(people: Any, tmp_path: Path) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        with trio.fail_after(60):
            _, seated = await follower.events.receive(), await follower.events.receive()
        assert isinstance(seated, ValidatorsSet) and seated.validators == (await people.client.pool(1)).validators


async def test_a_restart_tells_the_history_again_and_then_what_was_missed(people: Any, tmp_path: Path) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        first = await take(follower, 2)
    await people.client.join(people.pool, "here")
    async with following(people, tmp_path / "f.sqlite") as follower:
        again = await take(follower, 3)
        assert again[:2] == first and isinstance(again[2], Joined)
        assert await nothing_more(follower)


async def test_rows_of_another_pool_are_forgotten(people: Any, tmp_path: Path) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        await take(follower, 2)
    people.pool += 1
    async with following(people, tmp_path / "f.sqlite") as follower:
        assert await nothing_more(follower)


async def test_replaced_blocks_are_taken_back(people: Any, tmp_path: Path, chain_rpc: Any) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        await take(follower, 2)
        snapshot = chain_rpc("evm_snapshot")
        fork = await people.client.block()
        await people.client.join(people.pool, "first")
        await people.client.leave(people.pool)
        undone = await take(follower, 2)
        chain_rpc("evm_revert", snapshot)
        await people.client.join(people.pool, "second")
        rolled_back, joined = await take(follower, 2)
        assert rolled_back == RolledBack(fork.number, tuple(undone))  # type: ignore[arg-type]
        assert isinstance(joined, Joined) and joined.contact == "second"
    async with following(people, tmp_path / "f.sqlite") as follower:
        assert joined in await take(follower, 3)
        assert await nothing_more(follower)


async def test_a_block_replaced_between_its_logs_and_its_hash_is_taken_back(
    people: Any, tmp_path: Path, chain_rpc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a chunk that ends with an empty block, whose logs tell nothing of what became of it."""
    client = people.client
    client.profile = msgspec.structs.replace(client.profile, confirmations=1)
    async with following(people, tmp_path / "f.sqlite") as follower:
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x2")
        await take(follower, 2)
        snapshot = chain_rpc("evm_snapshot")
        monkeypatch.setattr(follower, "_poll", 0.5)  # so that all of it is one chunk
        await trio.sleep(0.2)
        real, replaced, head = client.logs, trio.Event(), (await client.block()).number

        async def logs(first: int, last: int, *rest: Any, **more: Any) -> Any:
            found = await real(first, last, *rest, **more)
            if any(entry.block > head for entry in found) and not replaced.is_set():
                replaced.set()
                await trio.to_thread.run_sync(chain_rpc, "evm_revert", snapshot)
                await trio.to_thread.run_sync(chain_rpc, "evm_increaseTime", "0x3e8")
                await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x6")
            return found

        async def alone(*given: Any, **named: Any) -> Any:
            return await client.block(), None

        monkeypatch.setattr(client, "logs", logs)
        monkeypatch.setattr(client, "newest_with_logs", alone)
        await client.execute(SimulatedStep("join", client.contracts.join(people.pool, "first")), client.key)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x3")
        joined, rolled_back = await take(follower, 2)
        assert isinstance(joined, Joined) and isinstance(rolled_back, RolledBack)
        assert rolled_back.events == (joined,)


async def test_blocks_replaced_while_it_slept_are_taken_back_at_the_start(
    people: Any, tmp_path: Path, chain_rpc: Any
) -> None:
    snapshot = chain_rpc("evm_snapshot")
    async with following(people, tmp_path / "f.sqlite") as follower:
        await people.client.join(people.pool, "first")
        await take(follower, 3)
    chain_rpc("evm_revert", snapshot)
    async with following(people, tmp_path / "f.sqlite") as follower:
        deliveries = await take(follower, 4)
        assert isinstance(deliveries[3], RolledBack)
        assert [event.contact for event in deliveries[3].events if isinstance(event, Joined)] == ["first"]


async def test_an_outage_is_seen_and_survived(people: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        await take(follower, 2)
        provider = people.client._provider
        urls = provider.endpoints._urls
        provider.endpoints._urls = ("http://127.0.0.1:9",)
        with trio.fail_after(60):
            while follower.healthy:
                await trio.sleep(0.02)
        provider.endpoints._urls = urls
        await people.client.join(people.pool, "back")
        assert isinstance((await take(follower, 1))[0], Joined)
        assert follower.healthy


async def test_a_start_while_the_chain_is_silent_tells_what_was_known(people: Any, tmp_path: Path) -> None:
    async with following(people, tmp_path / "f.sqlite") as follower:
        first = await take(follower, 2)
        assert not follower.unanswered
    provider = people.client._provider
    urls, provider.endpoints._urls = provider.endpoints._urls, ("http://127.0.0.1:9",)
    async with following(people, tmp_path / "f.sqlite") as follower:
        assert await take(follower, 2) == first
        with trio.fail_after(60):
            while not follower.unanswered:
                await trio.sleep(0.02)
        assert follower.block is None
        provider.endpoints._urls = urls
        with trio.fail_after(60):
            while follower.block is None:
                await trio.sleep(0.02)
        assert not follower.unanswered


def told(kind: type[Joined | Left], node: int, block: int, lease_until: int = 0) -> RawLog:
    """As the chain tells that a member joined, renewed its lease, or left."""
    data = (64).to_bytes(32) + lease_until.to_bytes(32) + bytes(32)
    topics = (topic_of(kind), pool_topic(1), node.to_bytes(32), bytes(32))
    return RawLog(Address("0x" + "11" * 20), topics, data, block, bytes(32), "0x", node)


def test_what_renewals_and_ghosts_left_behind_is_forgotten_between_two_starts(tmp_path: Path) -> None:
    store = EventStore(tmp_path / "f.sqlite")
    store.bind("one pool")
    renewed = [told(Joined, 1, block, 100 * block + 3600) for block in (10, 20, 30, 40)]
    ghost = [told(Joined, 2, 11, 1000), told(Joined, 2, 12, 2000)]
    gone = [told(Joined, 3, 13, 10**9), told(Left, 3, 14)]
    recent = [told(Joined, 4, 5000 - KEPT_BLOCKS + 1, 2000), told(Joined, 4, 4999, 3000)]
    store.advance(Block(5000, bytes(32), 4000), [*renewed, *ghost, *gone, *recent])
    assert store.time() == 4000
    left = store.compact()
    assert left == store.events() == [renewed[0], renewed[3], *recent], "a replaced block may still undo the last two"
    store.advance(Block(9000, b"\x01" * 32, 10**6), [])
    assert store.compact() == store.events() == []
    store.bind("another pool")
    assert store.time() == 0
    store.close()


async def test_a_bit_that_flipped_in_a_row_makes_the_chain_be_read_again(people: Any, tmp_path: Path) -> None:
    """SQLite's own check does not see it, and a member's address would be another."""
    path = tmp_path / "f.sqlite"
    async with following(people, path) as follower:
        first = await take(follower, 2)
    with closing(sqlite3.connect(path)) as db:
        db.create_function(SEAL, -1, lambda *_: b"another!", deterministic=True)
        body = db.execute("SELECT body FROM chain_events WHERE log_index = 0").fetchone()[0]
        flipped = body[:40] + bytes([body[40] ^ 1]) + body[41:]
        assert db.execute("UPDATE chain_events SET body = ? WHERE body = ?", (flipped, body)).rowcount
        db.commit()
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    async with following(people, path) as follower:
        assert await take(follower, 2) == first
        assert await nothing_more(follower)


async def test_a_slow_consumer_loses_nothing(people: Any, tmp_path: Path) -> None:
    async with following(people, tmp_path / "f.sqlite", capacity=1) as follower:
        for number in range(6):
            await people.client.join(people.pool, str(number))
        events = await take(follower, 8)
        assert [event.contact for event in events if isinstance(event, Joined)] == [str(n) for n in range(6)]


@pytest.mark.parametrize("blocks", [0, 100])
async def test_an_endpoint_that_lags_is_waited_for_and_takes_nothing_back(
    people: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain_rpc: Any, blocks: int
) -> None:
    async with following(people, tmp_path / "f.sqlite", patience=60) as follower:
        await take(follower, 2)
        real, behind = people.client.block, (await people.client.block()).number
        chain_rpc("anvil_mine", hex(blocks))
        await people.client.join(people.pool, "here")
        assert isinstance((await take(follower, 1))[0], Joined)

        async def lagging(number: int | None = None) -> Any:
            return await real(behind if number is None else number)

        monkeypatch.setattr(people.client, "block", lagging)
        assert await nothing_more(follower)
        monkeypatch.setattr(people.client, "block", real)
        await people.client.leave(people.pool)
        assert isinstance((await take(follower, 1))[0], Left)


async def test_events_wait_for_the_finality_that_the_network_asks_for(
    people: Any, tmp_path: Path, chain_rpc: Any
) -> None:
    people.client.profile = msgspec.structs.replace(people.client.profile, finality="safe")
    chain_rpc("anvil_mine", "0x28")
    async with following(people, tmp_path / "f.sqlite") as follower:
        await take(follower, 2)
        await people.client.join(people.pool, "here")
        assert await nothing_more(follower)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x28")
        assert isinstance((await take(follower, 1))[0], Joined)


async def test_everything_is_followed_when_no_pool_is_named(people: Any, tmp_path: Path) -> None:
    people.pool = None
    async with following(people, tmp_path / "f.sqlite") as follower:
        kinds = {type(event) for event in await take(follower, 7)}
        assert {Bonded, PoolCreated, PoolFunded} < kinds


async def test_a_range_that_an_endpoint_refuses_is_asked_for_in_parts(
    people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = people.client._logs._ask, []

    def grudging(first: int, last: int, *rest: Any) -> Any:
        asked.append((first, last))
        if last - first > 1:
            raise EndpointRefused(
                RefusalKind.RANGE, "eth_getLogs", "query exceeds max block range", people.client._provider.endpoints.url
            )
        return real(first, last, *rest)

    monkeypatch.setattr(people.client._logs, "_ask", grudging)
    head = (await people.client.block()).number
    logs = await people.client.logs(0, head, [])
    assert [one for one in asked if one[1] - one[0] <= 1] and len(logs) >= 3
    assert sorted({log.block for log in logs}) == [log for log in dict.fromkeys(log.block for log in logs)]


async def test_a_node_goes_on_while_it_reads_a_long_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(follower_module, "parse_log", lambda entry, contracts: read.append(entry))
    client: Any = SimpleNamespace(profile=SimpleNamespace(contracts=None, deployed_block=0))
    follower = EventFollower(client, 1, tmp_path / "f.sqlite")
    seen: set[int] = set()

    async def beside() -> None:
        while True:
            seen.add(len(read))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beside)
        await follower._deliver([object()] * 100)  # type: ignore[list-item]
        nursery.cancel_scope.cancel()
    assert len(read) == 100 and len(seen) > 20


async def test_blocks_that_were_seen_on_both_sides_of_a_time_are_told(people: Any, tmp_path: Path) -> None:
    follower = EventFollower(people.client, people.pool, tmp_path / "db")
    assert follower.around(50) == (None, None)
    for number, at in ((3, 30), (4, 48), (7, 50), (9, 62)):
        follower._see(Block(number, bytes([number]) * 32, at, bytes([number - 1]) * 32))
    assert follower.around(50) == (4, 7) and follower.around(51) == (7, 9)
    assert follower.around(30) == (None, 3) and follower.around(63) == (9, None)
    follower._see(Block(7, b"another", 50, bytes([6]) * 32))
    assert follower.around(60) == (7, None), "what was replaced counts no more"
