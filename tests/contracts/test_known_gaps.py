"""Attacks on the money that succeed on chain today, shown as they are; docs/attacks/money.md lists them.

A test here asserts what happens now. Whoever mends a gap turns its test round. Beside them stand attacks of the same
kind that fail.
"""

from typing import Any

from contracts.deploy import TOKEN
from protocol.statements import sign


def test_known_gap_a_node_whose_stake_is_gone_is_a_member_until_somebody_expels_it(world: Any, pool: Any) -> None:
    """It is in no table: validators ask the chain for its stake before they sign."""
    provider, nodes = world.provider(110 * TOKEN), [world.person() for _ in range(2)]
    for node in nodes:
        world.register(provider, node)
        world.send(world.contracts.join(pool.id, "x"), node)
    c = pool.commitment()
    c = type(c)(c.pool, nodes[0].address, c.policy_root, c.index, c.file_root, c.units, c.epoch)
    call = world.contracts.slash(c, sign(nodes[0], world.domain, c), 5, pool.verdicts(c, 5), [bytes(32)] * 2, 0)
    world.send(call, pool.manager)
    world.send(world.contracts.finalize(1), pool.manager, at=world.contracts.case(1).final_at)
    assert world.contracts.node_info(nodes[1].address).pool == pool.id
    backing = world.contracts.backing_of(provider.address)
    assert backing < world.contracts.required_stake(provider.address), "what the clearing service asks before it expels"
    world.send(world.contracts.expel(nodes[1].address), pool.manager)
    assert world.contracts.node_info(nodes[1].address).pool == 0


def test_unbonding_just_before_a_slash_saves_nothing(world: Any, pool: Any) -> None:
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    world.send(world.contracts.unbond(100 * TOKEN), pool.provider)
    pool.slash(pool.commitment(), pool.manager)
    assert world.contracts.stake_of(pool.provider.address).unbonding == 50 * TOKEN


def test_known_gap_a_fault_that_is_found_after_the_withdrawal_costs_nothing(
    world: Any, pool: Any, refused: Any
) -> None:
    """Judges reach nobody whose last work is mature; a stake is there for longer."""
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    world.send(world.contracts.unbond(100 * TOKEN), pool.provider)
    world.send(world.contracts.withdraw(), pool.provider, at=world.now() + 3600)
    with refused("NotMember"):
        pool.slash(pool.commitment(), pool.manager)
    assert world.contracts.token_balance(pool.provider.address) == 100 * TOKEN
