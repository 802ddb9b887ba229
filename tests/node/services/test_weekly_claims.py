"""Pay is claimed once a week, at each node's own time; at once by who leaves, and with the last table of a pool."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.upkeep import DAY, WEEK, slot_began
from tests.node.services.earners import START, WORKERS, Node, World, inline

EPOCH = 6 * 3600


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    slow = (1800.0, 1800.0)
    epoch = getattr(request, "param", EPOCH)
    world = World(tmp_path, epoch=epoch, window=DAY, round_seconds=1800.0, pauses=(slow, slow))
    world.gathers = True
    return world


async def work(world: World, nodes: Sequence[Node], epochs: int) -> None:
    for _ in range(epochs):
        for node in nodes:
            if node.lives:
                world.make(node, 10)
        await trio.sleep(world.chain.epoch)


def claims_of(world: World, node: Node) -> list[int]:
    """When its pay was claimed, by the chain."""
    (ledger,) = [one for one in world.chain.ledgers if one._own == node.key.address]
    return [2 * one.block for one in ledger.claims]


# Each epoch is work for everybody, and two weeks have many.
@pytest.mark.parametrize("world", [2 * EPOCH], indirect=True, ids=["long epochs"])
async def test_each_node_claims_once_a_week_however_often_it_is_started(autojump_clock: Any, world: World) -> None:
    steady, restless = world.workers[0], world.workers[2]
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, steady]:
            nursery.start_soon(node.live)

        async def start_again() -> None:
            while True:
                with trio.move_on_after(9 * 3600):
                    await restless.live()

        nursery.start_soon(start_again)
        await trio.sleep(60)
        await work(world, [steady, restless], 16 * 2)
        for node in (steady, restless):
            times = claims_of(world, node)
            assert len(times) == 2, "the first one within a week of the first table"
            assert all(abs(after - before - WEEK) < 4000 for before, after in pairwise(times))
            assert all(one - slot_began(node.key.address, one) < 4000 for one in times)
        assert abs(claims_of(world, steady)[0] - claims_of(world, restless)[0]) > 3600, "not in one block"
        nursery.cancel_scope.cancel()


async def test_who_leaves_waits_for_no_day_of_the_week(autojump_clock: Any, world: World) -> None:
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, worker]:
            nursery.start_soon(node.live)
        await trio.sleep(60)
        # In the week of its claims that has just begun; so the next one is far away.
        await trio.sleep_until(slot_began(WORKERS[0].address, START) + WEEK + 60 - START)
        await work(world, [worker], 4)
        await trio.sleep(2 * DAY)
        assert worker.claimer.account.due == 40 and not world.chain.claims, "the control"
        world.chain.dear = True
        await worker.leaving.leave()
        await trio.sleep(DAY)
        assert world.paid() == {WORKERS[0].address: 40} and not worker.lives
        nursery.cancel_scope.cancel()


async def test_the_last_table_of_a_pool_is_claimed_once_and_at_once(autojump_clock: Any, world: World) -> None:
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, worker]:
            nursery.start_soon(node.live)
        await trio.sleep_until(slot_began(WORKERS[0].address, START) + WEEK + 60 - START)
        await work(world, [worker], 4)
        world.chain.stopped_at = world.now() - 10
        await trio.sleep(2 * DAY)
        assert world.chain.claims == [(WORKERS[0].address, 40)]
        assert len({epoch for epoch, _ in world.chain.posts}) >= 3
        nursery.cancel_scope.cancel()


async def test_a_claim_waits_while_gas_is_dear_and_the_rest_of_the_books_goes_on(
    autojump_clock: Any, world: World
) -> None:
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, worker]:
            nursery.start_soon(node.live)
        await trio.sleep(60)
        await work(world, [worker], 4)
        world.chain.dear = True
        await trio.sleep_until(slot_began(WORKERS[0].address, START) + WEEK + DAY - START)
        assert worker.claimer.account.due == 40 and not world.chain.claims
        assert not [event.text for event in worker.progress.events if "could not be claimed" in event.text]
        world.chain.dear = False
        await trio.sleep(3600)
        assert world.chain.claims == [(WORKERS[0].address, 40)]
        nursery.cancel_scope.cancel()
