"""A validator's status says that it could carry no slash, before one is to be carried."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.node.services.earners import Node, World, inline


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    world = World(tmp_path)
    world.gathers = True
    return world


def told(node: Node) -> list[str]:
    return [one for one in node.claimer.status()["pay"].warnings if "takes a bond" in one]


async def test_a_validator_that_has_no_bond_says_so_until_its_provider_lends_one(
    autojump_clock: Any, world: World
) -> None:
    judge, worker = world.validators[0], world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in (judge, worker):
            nursery.start_soon(node.live)
        await trio.sleep(600)
        (warning,) = told(judge)
        assert f"intellect-node contract node lend {judge.key.address}" in warning and not told(worker)
        world.chain.tokens[judge.key.address] = 3
        await trio.sleep(3600)
        assert told(judge) and told(judge) != [warning], "the amounts are those of now"
        assert len([one for one in judge.progress.events if "takes a bond" in one.text]) == 1
        world.chain.tokens[judge.key.address] = 100
        world.chain.lends.add(judge.key.address)
        await trio.sleep(3600)
        assert not told(judge)
        nursery.cancel_scope.cancel()
