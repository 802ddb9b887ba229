"""A node that leaves: with everything that it earned, from wherever it is interrupted; and those who claim for who is
away."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.services import claim_carrier
from node.services.claim_carrier import OWED
from node.services.claimer import Gathering, when
from node.state.leave import LEAVING, leaves
from tests.node.services.earners import WORKERS, Node, World, inline


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return World(tmp_path, epoch=100, window=800, delay=2, round_seconds=20.0)


async def keep(node: Node) -> None:
    """A guardian: until it has left, or is not wanted."""
    while node.wanted:
        await node.live()
        await trio.sleep(1)


async def begin(world: World, nursery: trio.Nursery) -> Node:
    for node in world.validators:
        nursery.start_soon(node.live)
    worker = world.workers[0]
    nursery.start_soon(keep, worker)
    await trio.sleep(10)
    return worker


def wait_of(node: Node) -> tuple[int, int]:
    """Units that are not paid yet, and the chain's second at which the last of them can be claimed."""
    told = node.leaving.status()["leaving"]
    return told.units, told.until


async def test_who_leaves_in_mid_window_is_paid_to_the_unit_and_goes_on_leaving_when_it_is_killed(
    autojump_clock: Any, world: World
) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        world.make(worker, 40)
        await trio.sleep(250)
        world.make(worker, 60)
        world.make(worker, 7, judges=world.validators[:1])  # no quorum ever certifies it
        await trio.sleep(5)
        await worker.leaving.leave()
        await trio.sleep(30)
        assert worker.manager.leaving.is_set() and wait_of(worker) == (107, 1000 + 300 + 802)
        assert "107 units wait for the table of" in worker.leaving.activity()
        while worker.wanted:
            await trio.sleep(90)
            if worker.lives:
                worker.stop()
        assert world.paid() == {WORKERS[0].address: 100} and world.now() < 2400
        units = worker.claimer.status()["pay"].units
        assert (units.claimed, units.missed, units.unclear, units.in_table) == (100, 7, 0, 0)
        nursery.cancel_scope.cancel()


async def test_who_has_earned_nothing_leaves_at_once_and_who_waits_for_a_silent_chain_does_not(
    autojump_clock: Any, world: World
) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        world.chain.down = True
        await worker.leaving.leave()
        await trio.sleep(500)
        assert worker.lives and "waits for the chain's word" in worker.leaving.activity()
        world.chain.down = False
        await trio.sleep(60)
        assert not worker.lives and not world.chain.claims
        nursery.cancel_scope.cancel()


async def test_a_chain_that_is_silent_or_refuses_the_claim_keeps_a_leaving_node_until_it_is_paid(
    autojump_clock: Any, world: World
) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        world.make(worker, 40)
        await trio.sleep(200)
        await worker.leaving.leave()
        await worker.leaving.leave()  # twice is once
        world.chain.claims_fail = True
        await trio.sleep(1000)
        assert world.chain.posts and worker.lives and wait_of(worker)[0] == 40
        world.chain.down = True
        await trio.sleep(300)
        world.chain.down = world.chain.claims_fail = False
        await trio.sleep(60)
        assert world.paid() == {WORKERS[0].address: 40} and not worker.lives
        nursery.cancel_scope.cancel()


async def test_who_leaves_waits_for_debts_beyond_the_table_and_says_when_or_why_nobody_knows(
    autojump_clock: Any, world: World, tmp_path: Path
) -> None:
    world = World(tmp_path, epoch=100, window=800, escrow=60, delay=2)
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        world.chain.per_epoch = 40
        world.make(worker, 100)
        await trio.sleep(5)
        await worker.leaving.leave()
        await paid(world, 40)
        assert wait_of(worker)[0] == 60 and "60 units are owed beyond the table" in worker.leaving.activity()
        assert f"the next one comes from {when(1000 + 2 * 100 + 800)} on" in worker.leaving.activity()
        await paid(world, 60)
        activity = worker.leaving.activity()
        assert worker.lives and "no date: the pool has no money" in activity and "contract pool fund 7" in activity
        world.chain.fund(1000)
        await paid(world, 100)
        assert not worker.lives
        nursery.cancel_scope.cancel()


async def paid(world: World, units: int) -> None:
    """Returns a moment after so many are, and no more."""
    with trio.fail_after(2000):
        while world.paid()[WORKERS[0].address] < units:
            await trio.sleep(5)
    await trio.sleep(30)
    assert world.paid() == {WORKERS[0].address: units}


async def test_a_pool_that_is_over_and_swept_keeps_nobody(autojump_clock: Any, world: World) -> None:
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        world.make(worker, 40)
        await trio.sleep(160)
        assert worker.claimer.account.certified == 40
        for node in world.validators:  # nobody tables it any more
            node.stop()
        world.chain.stopped_at, world.chain.free = world.now(), 0
        await worker.leaving.leave()
        await trio.sleep(1500)
        assert worker.lives, "a table may come"
        await trio.sleep(400)
        assert worker.lives and "40 units are filed" in worker.leaving.activity()
        await trio.sleep(800)
        assert not worker.lives and not world.paid()
        assert world.chain.redeemed == [(WORKERS[0].address, 0)], "there was no money any more"
        nursery.cancel_scope.cancel()


async def test_what_is_owed_to_who_is_away_is_claimed_by_one_of_the_others_a_week_later(
    autojump_clock: Any, world: World
) -> None:
    """A week of a thousand seconds."""
    world.turns |= {"week": 1000, "turn": 50}
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, *world.workers[:2]]:
            nursery.start_soon(node.live)
        await trio.sleep(10)
        gone, stays = world.workers[:2]
        world.make(gone, 40)
        world.make(stays, 5)
        stays.claimer.gathering = Gathering(
            stays.claimer._books, on=True
        )  # it is there, and lets its pay gather: nobody claims for it
        await trio.sleep_until(200)
        gone.stop()
        await trio.sleep_until(1850)
        assert world.chain.posts and not world.chain.claims, "less than a week after its table"
        restarted = world.validators[0]
        restarted.stop()
        await trio.sleep(1)
        nursery.start_soon(restarted.live)
        owed = msgspec.msgpack.decode(restarted.journal.recall(OWED) or b"", type=claim_carrier.Owed)
        assert list(owed) == [bytes.fromhex(WORKERS[0].address[2:])], "a restart waits no week more"
        await trio.sleep(350)
        assert world.paid() == {WORKERS[0].address: 40}
        await trio.sleep(300)
        assert sum(node.bringing.brought for node in world.validators) == 1 == len(world.chain.claims)
        assert all(not msgspec.msgpack.decode(node.journal.recall(OWED) or b"\x80") for node in world.validators)
        nursery.cancel_scope.cancel()


async def test_who_has_left_is_claimed_for_sooner_than_a_member_that_may_come_back(
    autojump_clock: Any, world: World
) -> None:
    world.turns |= {"day": 200, "week": 1500, "turn": 5}
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, *world.workers[:2]]:
            nursery.start_soon(node.live)
        await trio.sleep(10)
        left, away = world.workers[:2]
        world.make(left, 40)
        world.make(away, 30)
        await trio.sleep(300)
        left.stop()
        away.stop()
        world.gone.add(left.key.address)
        await trio.sleep_until(1600)
        assert world.paid() == {left.key.address: 40}
        await trio.sleep_until(3200)
        assert world.paid() == {left.key.address: 40, away.key.address: 30}
        nursery.cancel_scope.cancel()


async def test_who_is_slashed_is_claimed_for_by_nobody(autojump_clock: Any, world: World) -> None:
    world.turns |= {"week": 100, "turn": 5}
    async with trio.open_nursery() as nursery:
        worker = await begin(world, nursery)
        other = world.workers[1]
        nursery.start_soon(other.live)
        await trio.sleep(5)
        world.make(worker, 40)
        world.make(other, 30)
        await trio.sleep(300)
        for node in (worker, other):
            node.wanted = False
            node.stop()
        world.chain.slash(WORKERS[0].address, case=3)
        await trio.sleep(1200)
        assert world.paid() == {WORKERS[1].address: 30}, "the control: who is only away is paid"
        nursery.cancel_scope.cancel()


def test_the_wish_to_leave_is_a_fact_of_its_pool_alone(world: World) -> None:
    journal = world.workers[0].journal
    journal.remember(LEAVING, b"1:0xab:7")
    assert leaves(journal, "1:0xab:7") and not leaves(journal, "1:0xab:8")
