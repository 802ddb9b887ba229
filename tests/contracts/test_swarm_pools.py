from typing import Any

import pytest

from contracts.bindings import PoolCreated, PoolEnded, PoolFunded, PoolRunSet, ValidatorsSet
from contracts.deploy import TOKEN
from protocol.identity import NodeKey

ROOT = b"\x33" * 32


def test_a_pool_is_as_its_creator_said(world: Any) -> None:
    manager, validators = world.person(), [NodeKey.generate() for _ in range(16)]
    opener = world.person()
    params = world.params(
        manager, validators, threshold=16, run_uri="https://example.org/run", bootnodes=("/ip4/1.2.3.4", "/dns/a")
    )
    number = world.contracts.pool_count() + 1
    receipt = world.send(world.contracts.create_pool(params), opener)
    event, seated = world.events(receipt)
    assert isinstance(seated, ValidatorsSet) and seated.validators == params.validators
    assert isinstance(event, PoolCreated)
    assert (event.pool, event.manager, event.params.run_root) == (number, manager.address, params.run_root)
    info = world.contracts.pool(number)
    assert (info.validators, info.threshold, info.run_uri) == (params.validators, 16, params.run_uri)
    assert (info.window, info.epoch_seconds, info.slash_amount) == (300, 100, 50 * TOKEN)
    assert (info.started_at, info.stopped_at, info.escrow, info.has_members) == (world.now(), 0, 0, False)
    assert (info.bootnodes, info.units_per_epoch, info.invited) == (params.bootnodes, 200_000, False)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"manager": "0x" + "00" * 20}, "ZeroAddress"),
        ({"run_uri": "x" * 257}, "TextTooLong"),
        ({"max_units_per_epoch": 0}, "ZeroAmount"),
        ({"epoch_seconds": 0}, "BadTimes"),
        ({"units_per_epoch": 0}, "ZeroAmount"),
        ({"window": 299}, "WindowTooShort"),
        ({"window": 2**24}, "BadTimes"),
        ({"slash_amount": 50 * TOKEN + 1}, "SlashTooHigh"),
        ({"bootnodes": ("x" * 1025,)}, "TextTooLong"),
        ({"lease_seconds": 99}, "BadTimes"),
        ({"window": 3501}, "WindowExceedsUnbonding"),
        ({"threshold": 0}, "BadQuorum"),
        ({"threshold": 3}, "BadQuorum"),
        ({"validators": ()}, "BadQuorum"),
        ({"validators": tuple(NodeKey.generate().address for _ in range(17))}, "BadQuorum"),
        ({"validators": ("0x" + "00" * 20,)}, "BadValidator"),
        ({"validators": ("0x" + "88" * 20, "0x" + "88" * 20)}, "BadValidator"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused(world: Any, refused: Any, changes: dict[str, Any], name: str) -> None:
    manager = world.person(10 * TOKEN)
    params = world.params(manager, [NodeKey.generate(), NodeKey.generate()], **changes)
    with refused(name):
        world.send(world.contracts.create_pool(params), manager)


def test_a_window_that_just_fits_the_unbonding_period_is_accepted(world: Any) -> None:
    manager = world.person(10 * TOKEN)
    world.send(world.contracts.create_pool(world.params(manager, [manager], window=3500)), manager)


def test_anybody_funds_an_open_pool(world: Any, pool: Any, refused: Any) -> None:
    donor = world.person(3 * TOKEN)
    before = pool.info.escrow
    receipt = world.send(world.contracts.fund_pool(pool.id, 3 * TOKEN), donor)
    (event,) = world.events(receipt)
    assert isinstance(event, PoolFunded) and event.escrow == before + 3 * TOKEN == pool.info.escrow
    with refused("ZeroAmount"):
        world.send(world.contracts.fund_pool(pool.id, 0), donor)
    with refused("PoolUnknown"):
        world.send(world.contracts.fund_pool(99, 1), donor)
    with refused("ERC20InsufficientAllowance"):
        world.send(world.contracts.fund_pool(pool.id, TOKEN), donor)
    with refused("EscrowTooLarge"):
        world.send(world.contracts.fund_pool(pool.id, 2**128), donor)


def test_the_manager_names_the_run_until_somebody_has_joined(world: Any, pool: Any, refused: Any) -> None:
    params = world.params(pool.manager, pool.validators)
    fresh = world.events(world.send(world.contracts.create_pool(params), pool.manager))[0].pool
    with refused("OnlyManager"):
        world.send(world.contracts.set_pool_run(fresh, ROOT), pool.node)
    receipt = world.send(world.contracts.set_pool_run(fresh, ROOT), pool.manager)
    assert isinstance(world.events(receipt)[0], PoolRunSet)
    assert world.contracts.pool(fresh).run_root == ROOT
    world.send(world.contracts.join(fresh, "x"), pool.node)
    with refused("RunAlreadyJoined"):
        world.send(world.contracts.set_pool_run(fresh, ROOT), pool.manager)


def test_an_ended_pool_takes_nothing_new(world: Any, pool: Any, refused: Any) -> None:
    with refused("OnlyOpener"):
        world.send(world.contracts.end_pool(pool.id), pool.node)
    receipt = world.send(world.contracts.end_pool(pool.id), pool.manager)
    assert isinstance(world.events(receipt)[0], PoolEnded)
    for call in (
        world.contracts.fund_pool(pool.id, 1),
        world.contracts.set_pool_run(pool.id, ROOT),
        world.contracts.end_pool(pool.id),
    ):
        with refused("PoolOver"):
            world.send(call, pool.manager)
    with refused("PoolOver"):
        world.send(world.contracts.join(pool.id, "x"), pool.node)
