"""How often a node asks the chain for its books, over real services in memory."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from contracts.bindings import Claimed
from tests.node.services.earners import World, inline

EPOCH = 100


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return World(tmp_path, epoch=EPOCH, window=100)


async def epochs_of(world: World, count: int) -> dict[str, Counter[str]]:
    """What each node of a role asks in so many epochs, in each of which one worker makes a file."""
    before = {key: node.asked.copy() for key, node in world.nodes.items()}
    for _ in range(count):
        world.make(world.workers[0], 40)
        await trio.sleep(EPOCH)
    asked = {key: node.asked - before[key] for key, node in world.nodes.items()}
    idle, paid = (asked[worker.key.address] for worker in (world.workers[1], world.workers[0]))
    return {
        "idle": idle,
        "paid": paid,
        "validators": sum((asked[one.key.address] for one in world.validators), Counter()),
    }


async def test_an_epoch_in_which_nothing_of_ones_own_changes_takes_one_question_and_no_poll(
    autojump_clock: Any, world: World
) -> None:
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        await epochs_of(world, 4)
        posts, epochs = len(world.chain.posts), 10
        asked = await epochs_of(world, epochs)
        assert len(world.chain.posts) - posts == epochs, "a table in each"
        # A table counts.
        assert asked["idle"].pop("tables") <= epochs + 1
        # The pool itself and the stake once in ten minutes, as no event tells of all that moves them.
        assert asked["idle"].total() <= 2 * (epochs * EPOCH / 120 + 1), asked["idle"]
        paid = asked["paid"]
        assert paid["claim"] == epochs, "who has something is paid in each"
        # That it was paid its claim's receipt says, and then the log.
        assert not paid["claimed"] and paid.total() <= 2 * epochs + 2 * (epochs * EPOCH / 120 + 1) + 1, paid
        judged = asked["validators"]
        assert judged["post_earnings"] == epochs and judged.total() <= 3 * 8 * epochs, judged
        nursery.cancel_scope.cancel()


async def test_a_look_sums_up_the_journal_only_where_something_was_written_or_the_books_are_others(
    autojump_clock: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, summed, looks = world.workers[0], list[int](), list[int]()
    pay = worker.journal.pay
    sums = pay.sums
    monkeypatch.setattr(pay, "sums", lambda *given: (summed.append(1), sums(*given))[1])
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(worker, 40)
        await trio.sleep(5 * EPOCH)
        assert worker.claimer.account.claimed == 40 and len(summed) >= 2
        summed.clear()
        worker.claimer.looked.follow(lambda: looks.append(1))
        for _ in range(5):
            worker.claimer._bell.ring()
            await trio.sleep(1)
        assert len(looks) == 5 and len(summed) <= 1, "a table may have come since"
        worker.journal.remember("something", b"else")
        worker.claimer._bell.ring()
        await trio.sleep(1)
        assert len(looks) == 6 and 1 <= len(summed) <= 2
        nursery.cancel_scope.cancel()


async def test_a_claim_whose_event_comes_late_is_not_sent_again_and_one_that_a_block_lost_is(
    autojump_clock: Any, world: World
) -> None:
    worker = world.workers[0]
    own, held = worker.key.address, []
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        (ledger,) = [one for one in world.chain.ledgers if one._own == own]
        apply = ledger.apply
        ledger.apply = lambda event: held.append(event) if isinstance(event, Claimed) else apply(event)
        world.make(worker, 40)
        while not worker.asked["claim"]:
            await trio.sleep(1)
        await trio.sleep(100)
        assert worker.claimer.account.claimed == 40 and not worker.asked["claimed"]
        await trio.sleep(100)
        assert worker.asked["claim"] == worker.asked["claimed"] == 1 and worker.claimer.account.claimed == 40
        del world.chain.units[own]
        world.chain.owed += 40
        await trio.sleep(250)
        assert worker.asked["claim"] == 2 and worker.claimer.account.claimed == world.chain.units[own] == 40
        for event in held[-1:]:
            apply(event)
        await trio.sleep(250)
        assert worker.asked["claim"] == 2 and worker.asked["claimed"] <= 4, "the log says the same"
        nursery.cancel_scope.cancel()
