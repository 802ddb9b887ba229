"""Tables that wait, over real services in memory: paid once they count, held, dropped, doubted, their numbers."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from contracts.bindings import NodeAttested
from protocol.messages import EarningsVote
from protocol.statements import Earnings, sign
from tests.node.services.earners import DOMAIN, POOL, START, VALIDATORS, WORKERS, World, inline


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return World(tmp_path, epoch=100, window=800)


def signed_by(world: World) -> dict[str, list[Earnings]]:
    """What each validator signed, in order."""
    found: dict[str, list[Earnings]] = {}
    for (author, kind), kept in world.gossip.kept.items():
        if kind is EarningsVote:
            found[author] = [one.message.earnings for _, one in kept.values()]
    return found


async def test_a_table_is_paid_once_it_counts_and_the_next_one_is_made_on_it(autojump_clock: Any, world: World) -> None:
    """A delay of 200 seconds, so that each table covers two epochs of 100."""
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(worker, 40)
        await trio.sleep(100)
        world.make(worker, 2)
        await trio.sleep(890)
        assert not world.chain.posts, "one epoch is mature, and a table covers two"
        await trio.sleep_until(1120)
        assert world.chain.posts == [(1, 42)] and not world.paid()
        pay = worker.claimer.status()["pay"]
        assert (pay.units.waiting, pay.units.certified, pay.units.in_table) == (42, 42, 0)
        assert {one.state for one in pay.epochs} == {"waiting"}
        counts_at = world.chain.told[-1].counts_at
        assert pay.waiting_until == counts_at and {one.claimable_at for one in pay.epochs} == {counts_at}
        assert "waits until" in world.validators[0].tabling.status()["earnings_table"]["waiting"]
        world.make(worker, 5)
        await trio.sleep_until(counts_at - START + 120)
        assert world.paid() == {WORKERS[0].address: 42}
        await trio.sleep_until(2600)
        assert world.paid() == world.accepted and not worker.claimer.status()["pay"].units.waiting
        assert all(after[0] - before[0] >= 2 for before, after in pairwise(world.chain.posts))
        nursery.cancel_scope.cancel()


async def test_what_is_held_is_told_and_paid_later_and_what_is_dropped_is_tabled_anew(
    autojump_clock: Any, world: World
) -> None:
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(worker, 40)
        await trio.sleep_until(1100)
        world.chain.hold(600)
        await trio.sleep(300)
        assert not world.paid()
        assert any("the guardian holds the table" in one for one in worker.claimer.status()["pay"].warnings)
        world.chain.drop()
        assert not next(iter(world.chain.ledgers)).tables, "it never counts"
        await trio.sleep(60)
        assert world.chain.posts == [(1, 40), (5, 40)], "another one takes its place at once"
        await trio.sleep(400)
        assert world.paid() == {WORKERS[0].address: 40}
        nursery.cancel_scope.cancel()


async def test_a_table_that_a_validator_would_not_have_signed_is_told(autojump_clock: Any, world: World) -> None:
    """Two of three sign what nobody earned; the third tells its owner, while the guardian may still hold it."""
    liars, honest = VALIDATORS[:2], world.validators[2]
    async with trio.open_nursery() as nursery:
        for node in [honest, *world.workers]:
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(world.workers[0], 40)
        await trio.sleep_until(1005)
        false = Earnings(POOL, 1, 1, bytes([9]) * 32, 10**6, bytes(32))
        await world.chain.post_earnings(false, [sign(key, DOMAIN, false) for key in liars])
        # The leaves of its own root are all that it has: with a liar's, the worker's file would be certified.
        honest.tabling._quorum = 1
        world.chain.threshold = 1
        world.chain.seat(VALIDATORS)
        await trio.sleep(90)
        trouble = [one.text for one in honest.progress.events if "contract earnings hold" in one.text]
        assert len(trouble) == 1 and "1,000,000 units" in trouble[0] and "finds 40" in trouble[0]
        nursery.cancel_scope.cancel()


async def test_validators_come_to_one_number_and_none_signs_two_tables_under_one(
    autojump_clock: Any, world: World
) -> None:
    """One validator hears a root late, and another one is started again in the middle of it."""
    first, second, third = world.validators
    world.gossip.lost = lambda to, message: to == third.key.address and not isinstance(message, EarningsVote)
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(world.workers[0], 40, judges=[first, second])
        world.make(world.workers[1], 7, judges=[second, third])
        await trio.sleep_until(1010)
        second.stop()
        await trio.sleep(5)
        nursery.start_soon(second.live)
        await trio.sleep_until(1500)
        assert world.paid() == world.accepted
        for author, said in signed_by(world).items():
            numbers: dict[tuple[int, int], Earnings] = {}
            for one in said:
                assert numbers.setdefault((one.epoch, one.number), one) == one, author
        nursery.cancel_scope.cancel()


async def test_what_was_attested_of_a_node_bounds_what_it_is_tabled(autojump_clock: Any, world: World) -> None:
    """The contract pays by size: a later word on it keeps nothing back that a table has promised."""
    world.chain.attested, world.chain.most = True, 30
    found = {"units": 1, "made_at": START, "until": START + 10**6, "block": START // 2}
    world.chain._tell(NodeAttested, node=WORKERS[0].address, **found)
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(world.workers[0], 40)
        world.make(world.workers[1], 40)  # nobody has attested it
        await trio.sleep_until(1500)
        assert world.paid() == {WORKERS[0].address: 30}
        nursery.cancel_scope.cancel()
