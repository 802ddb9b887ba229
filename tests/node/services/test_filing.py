"""What no table has after a pool's end is filed by the node itself, once, whatever interrupts it, and redeemed."""

from pathlib import Path
from typing import Any

import pytest
import trio

from cli.contributions import pay_state
from protocol.earnings import Accepted
from tests.node.services.earners import POOL, PRICE, VALIDATORS, WORKERS, Node, World, inline

OWN = WORKERS[0].address


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Epochs of 100 s, and a window of 800: of a pool that ends in its second epoch filing begins at 1,800 s."""
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return World(tmp_path, epoch=100, window=800, delay=200, round_seconds=20.0)


async def begin(world: World, nursery: trio.Nursery) -> Node:
    """A worker is accepted 40 units in the first epoch, and 60 in the second; then its validators fall silent, and the
    pool ends."""
    worker = world.workers[0]
    for node in [*world.validators, worker]:
        nursery.start_soon(node.live)
    await trio.sleep(10)
    world.make(worker, 40)
    await trio.sleep(110)
    world.make(worker, 60)
    await trio.sleep(160)
    assert worker.claimer.account.certified == 100
    for node in world.validators:
        node.stop()
    world.chain.stopped_at = 1150
    return worker


async def restart(node: Node, nursery: trio.Nursery) -> None:
    node.stop()
    await trio.sleep(1)
    nursery.start_soon(node.live)
    await trio.sleep(5)


async def test_what_a_silent_quorum_named_is_filed_once_and_redeemed_once(autojump_clock: Any, world: World) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        await trio.sleep_until(1_790)
        assert not world.chain.filed and worker.claimer.account.certified == 100
        assert worker.claimer.status()["pay"].filing.starts == 2_800
        await trio.sleep_until(1_900)
        assert world.chain.filed == {OWN: {0: 40, 1: 60}} and world.chain.files_sent == 1
        told = worker.claimer.status()["pay"]
        assert (told.units.certified, told.units.filed, told.units.missed) == (0, 100, 0)
        assert [(one.epoch, one.state, one.claimable_at) for one in told.epochs] == [
            (0, "filed", 3_800),
            (1, "filed", 3_800),
        ]
        await restart(worker, nursery)
        await trio.sleep_until(2_790)
        assert world.chain.files_sent == 1 and not world.chain.redeemed
        await restart(worker, nursery)
        await trio.sleep_until(2_900)
        assert world.chain.redeemed == [(OWN, 100)]
        told = worker.claimer.status()["pay"]
        assert (told.units.certified, told.units.filed, told.units.missed) == (0, 0, 0)
        assert {one.state for one in told.epochs} == {"redeemed"}
        assert int(told.paid_wei) == int(told.earned_wei) == 100 * PRICE
        record = await worker.journal.do(worker.journal.pay.record)
        assert record and (record.filed, record.redeemed, record.over) == ((0, 1), True, True)
        files = worker.journal.files.records(10)
        assert [pay_state(one, record) for one in files] == ["redeemed", "redeemed"]
        await restart(worker, nursery)
        await trio.sleep(300)
        assert len(world.chain.redeemed) == 1
        nursery.cancel_scope.cancel()


async def test_a_root_that_is_heard_late_adds_what_is_more(autojump_clock: Any, world: World) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        await trio.sleep_until(1_900)
        more = [Accepted(POOL, OWN, 1, bytes([9]) * 32, 25)]
        await world.root(VALIDATORS[0], 1, more, number=9_000)
        await trio.sleep(60)
        assert world.chain.filed[OWN][1] == 60, "one validator is no quorum"
        await world.root(VALIDATORS[1], 1, more, number=9_001)
        await trio.sleep(60)
        assert world.chain.filed[OWN] == {0: 40, 1: 85} and world.chain.files_sent == 2
        assert worker.claimer.account.filed == 125
        nursery.cancel_scope.cancel()


async def test_an_answer_that_is_lost_files_nothing_twice(autojump_clock: Any, world: World) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        world.chain.loses_answers = True
        await trio.sleep_until(1_804)
        assert world.chain.files_sent >= 1
        await restart(worker, nursery)
        world.chain.loses_answers = False
        await trio.sleep_until(1_900)
        assert world.chain.filed == {OWN: {0: 40, 1: 60}}
        assert worker.claimer.account.filed == 100
        nursery.cancel_scope.cancel()


async def test_a_quorum_that_comes_back_in_time_tables_it_and_nothing_is_filed(
    autojump_clock: Any, world: World
) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        await trio.sleep_until(1_300)
        for node in world.validators:
            nursery.start_soon(node.live)
        await trio.sleep_until(3_000)
        assert world.paid() == {OWN: 100} and not world.chain.filed and not world.chain.redeemed
        assert worker.claimer.filing.filed.over
        nursery.cancel_scope.cancel()


async def test_what_was_filed_by_hand_is_not_filed_again_and_is_redeemed(autojump_clock: Any, world: World) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        world.read_until = 0.0
        await trio.sleep_until(1_900)
        assert not world.chain.filed, "who has not read the log does not know what was filed"
        world.read_until = float("inf")
        world.chain.file_by_hand(OWN, {0: 40, 1: 60})
        world.chain.redeemed = []
        await trio.sleep_until(2_700)
        assert world.chain.files_sent == 0, "the chain has it"
        world.read_until = 0.0
        await restart(worker, nursery)
        await trio.sleep_until(2_890)
        assert world.chain.redeemed == [(OWN, 100)] and not worker.claimer.filing.filed.over
        world.read_until = float("inf")
        await trio.sleep_until(2_930)
        assert world.chain.redeemed == [(OWN, 100)] and worker.claimer.filing.filed.over
        nursery.cancel_scope.cancel()
