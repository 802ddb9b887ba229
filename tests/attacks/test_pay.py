"""Pay under attack: roots that reach one worker, the last second of an epoch, a bench that does not come back.

Real services in memory on a clock that jumps; each move has a control that would notice a test which sees nothing.
"""

from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.messages import EarningsVote, EpochRootSigned
from protocol.statements import signer_of
from tests.node.services.earners import DOMAIN, VALIDATORS, WORKERS, World, inline
from tests.node.services.test_earnings_reporter import NEW

DAY = 86_400


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return World(tmp_path, epoch=100, window=160)


@pytest.mark.parametrize("mute", [False, True])
async def test_a_validator_that_shows_its_root_to_one_worker_only_favours_nobody(
    autojump_clock: Any, world: World, mute: bool
) -> None:
    """Its word is needed, and the others take it from its table. The control: with that withheld, nobody is paid."""
    liar, favoured = VALIDATORS[0].address, WORKERS[0].address
    world.chain.threshold, kept = 3, [0]

    def lose(to: str, message: Any) -> bool:
        if isinstance(message, EarningsVote):
            return mute and to != liar and signer_of(DOMAIN, message.earnings, message.signature) == liar
        if not isinstance(message, EpochRootSigned) or to in (favoured, liar):
            return False
        lost = signer_of(DOMAIN, message.statement, message.signature) == liar
        kept[0] += lost
        return lost

    world.gossip.lost = lose
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        for worker in world.workers:
            world.make(worker, 50)
        await trio.sleep(500)
        assert kept[0] > 0
        assert world.paid() == ({} if mute else world.accepted)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("found_after", [30.0, 100.0])
async def test_a_commitment_in_the_last_second_of_an_epoch_is_paid_once_and_in_it(
    autojump_clock: Any, world: World, found_after: float
) -> None:
    """However long validators need for it, up to half of the window; later it is too late, and nobody may wait so."""
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(99.5)
        before = world.epoch
        world.make(worker, 7)
        await trio.sleep(0.2 + found_after)
        world.make(worker, 50, epoch=before)
        await trio.sleep(500)
        in_time = found_after < 80
        assert world.paid() == {worker.key.address: 57 if in_time else 7}
        assert world.chain.posts == [(0, 57 if in_time else 7)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("bench", [NEW, (VALIDATORS[0], *NEW[:2]), VALIDATORS])
async def test_a_quorum_that_is_away_for_a_day_and_comes_back_with_other_members_pays_what_was_certified(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: tuple[Any, ...]
) -> None:
    """Nothing is posted meanwhile, and nothing twice afterwards. What nobody named before they left is not paid."""
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    hour, slow = 3600, (1800.0, 1800.0)
    world = World(tmp_path, epoch=4 * hour, window=8 * hour, round_seconds=900.0, pauses=(slow, slow))
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(60)
        for number, worker in enumerate(world.workers):
            world.make(worker, 50 + number)
        await trio.sleep(5 * hour)
        for node in world.validators:
            node.stop()
        world.make(world.workers[0], 1000, judges=[])
        await trio.sleep(DAY)
        assert not world.chain.posts
        world.chain.seat(bench)
        for key in bench:
            nursery.start_soon((world.nodes.get(key.address) or world.hire(key)).live)
        await trio.sleep(12 * hour)
        assert world.paid() == {key.address: 50 + number for number, key in enumerate(WORKERS)}
        assert [total for _, total in world.chain.posts] == [153]
        nursery.cancel_scope.cancel()
