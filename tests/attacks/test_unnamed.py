"""A validator that accepts and leaves the files out of its own roots: its word would decide, and pay nobody.

Real services in memory on a clock that jumps. Each move has a control.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.earnings import Accepted, judgement_of, unpaid_judgements
from protocol.messages import EpochRootSigned
from protocol.statements import signer_of
from tests.node.services.earners import DOMAIN, POOL, VALIDATORS, WORKERS, World, inline

FILES, EACH = 8, 9
HONEST, OTHER, LIAR = (key.address for key in VALIDATORS)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return World(tmp_path, epoch=100, window=160)


async def judged(world: World, works: Sequence[Any]) -> None:
    """After the epoch the two others name the liar's judgement of each of these files: as the pool decided."""
    await trio.sleep(105)
    leaves = [
        Accepted(POOL, LIAR, one.commitment.epoch, judgement_of(POOL, LIAR, one.id, one.commitment.epoch), EACH)
        for one in works
    ]
    for key in VALIDATORS[:2]:
        await world.root(key, works[0].commitment.epoch, leaves, number=7)


@pytest.mark.parametrize(
    ("named", "paid"),
    [
        (FILES, FILES * EACH),  # the control
        (FILES - 1, (FILES - 1) * EACH),  # what an accident costs
        (FILES // 2, FILES // 2 * EACH),
        (FILES // 2 - 1, 0),
        (0, 0),
    ],
)
async def test_a_validator_that_leaves_files_out_of_its_roots_is_not_paid_for_having_accepted_them(
    autojump_clock: Any, world: World, named: int, paid: int
) -> None:
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        works = [world.make(world.workers[n % 3], 50, world.validators[:2]) for n in range(FILES - named)]
        works += [world.make(world.workers[n % 3], 50) for n in range(named)]
        await judged(world, works)
        await trio.sleep(700)
        units = world.paid()
        assert {who: units[who] for who in world.accepted} == world.accepted, "the workers are, by the two others"
        assert units[LIAR] == paid
        assert len(world.chain.posts) == 1, "one table, and no second one"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("hidden", [False, True])
async def test_a_root_that_one_validator_alone_has_read_does_not_part_the_quorum(
    autojump_clock: Any, world: World, hidden: bool
) -> None:
    """Who lacks it would leave the judgements out; it takes the root from the other's table, and both sign the same.
    The control: hidden from both it counts for nobody, and the table comes all the same."""
    blind = {HONEST, OTHER} if hidden else {OTHER}

    def lose(to: str, message: Any) -> bool:
        if not isinstance(message, EpochRootSigned) or to not in blind:
            return False
        return signer_of(DOMAIN, message.statement, message.signature) == LIAR

    world.gossip.lost = lose
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        works = [world.make(world.workers[n % 3], 50) for n in range(FILES)]
        await judged(world, works)
        if hidden:
            world.nodes[LIAR].stop()  # else its own table would name its roots
        await trio.sleep(700)
        units = world.paid()
        assert {who: units[who] for who in world.accepted} == world.accepted
        assert units[LIAR] == (0 if hidden else FILES * EACH) and len(world.chain.posts) == 1
        nursery.cancel_scope.cancel()


def test_a_judgement_of_what_does_not_count_is_no_matter_of_leaves() -> None:
    """A rejection has no leaf to name; it is lost only to who leaves out more than it names."""
    worker = WORKERS[0].address
    files = [bytes([n]) * 32 for n in range(1, 6)]
    accepting = [judgement_of(POOL, LIAR, file, 3) for file in files]
    rejecting = judgement_of(POOL, LIAR, bytes([99]) * 32, 3)
    counted = [(worker, file) for file in files] + [(LIAR, work) for work in (*accepting, rejecting)]

    def unpaid(*named: bytes) -> set[bytes]:
        return unpaid_judgements(POOL, 3, counted, {LIAR: set(named), OTHER: set()})

    assert unpaid(*files) == set()
    assert unpaid(*files[:3]) == set(accepting[3:])
    assert unpaid(*files[:2]) == {*accepting, rejecting}
    assert unpaid_judgements(POOL, 4, counted, {LIAR: set()}) == set(), "an id names the epoch, too"
