"""Attacks on the money that succeed on chain today, shown as they are; docs/attacks.md lists them.

A test here asserts what happens now. Whoever mends a gap turns its test round. Beside them stand attacks of the same
kind that fail.
"""

from typing import Any

from contracts.bindings import Slashed
from contracts.deploy import TOKEN
from protocol.statements import EpochVerdict, Outcome, WorkCommitment, sign, work_id
from protocol.work import EpochFault, leaf_hash, merkle_root, proof

REWARD = 10**15


def settle(world: Any, pool: Any, *epochs: int) -> int:
    """Wei paid to the node's provider."""
    before = world.contracts.token_balance(pool.provider.address)
    at = max(world.now() + 1, pool.info.maturity(max(epochs)))
    world.send(world.contracts.settle(pool.id, pool.node.address, list(epochs)), pool.manager, at=at)
    return world.contracts.token_balance(pool.provider.address) - before


def test_known_gap_the_same_root_is_paid_in_two_epochs(world: Any, pool: Any) -> None:
    files = [pool.commitment(file=bytes([i]) * 32, index=i, units=500) for i in range(2)]
    root = merkle_root([leaf_hash(work_id(c)) for c in files])
    pool.commit(0, units=1000, root=root)
    pool.commit(1, units=1000, root=root, at=pool.info.epoch_end(0))
    assert settle(world, pool, 0, 1) == 2 * 1000 * REWARD


def test_known_gap_a_root_of_nothing_is_paid_up_to_the_nodes_capacity(world: Any, pool: Any) -> None:
    pool.commit(0, units=100_000, root=b"\xab" * 32)
    assert settle(world, pool, 0) == 100_000 * REWARD


def test_known_gap_a_leaf_that_stands_twice_in_a_tree_is_taken_out_once(world: Any, pool: Any, refused: Any) -> None:
    c = pool.commitment(units=500)
    leaves = [leaf_hash(work_id(c))] * 2
    pool.commit(0, units=1000, root=merkle_root(leaves))
    verdicts = pool.verdicts(c, 8, outcome=Outcome.REJECT)
    world.send(world.contracts.invalidate(c, 0, proof(leaves, 0), 1, 8, verdicts), pool.manager)
    with refused("AlreadyInvalidated"):
        world.send(world.contracts.invalidate(c, 0, proof(leaves, 1), 1, 8, verdicts), pool.manager)
    assert settle(world, pool, 0) == 500 * REWARD


def test_known_gap_one_file_is_paid_to_two_nodes_of_a_provider(world: Any, pool: Any) -> None:
    """Honest validators refuse the copy; the chain pays for it where nobody carries their verdict there."""
    twin = world.person()
    world.register(pool.provider, twin)
    world.send(world.contracts.join(pool.id, "/ip4/127.0.0.1/tcp/2"), twin)
    for node in (pool.node, twin):
        c = WorkCommitment(pool.id, node.address, b"\x11" * 32, 0, b"\x44" * 32, 1000)
        root = merkle_root([leaf_hash(work_id(c))])
        world.send(world.contracts.commit_work(pool.id, 0, root, 1000), node)
    at = pool.info.maturity(0)
    for number, node in enumerate((pool.node, twin)):
        world.send(world.contracts.settle(pool.id, node.address, [0]), pool.manager, at=at + number)
    assert world.contracts.token_balance(pool.provider.address) == 2 * 1000 * REWARD


def test_a_quorum_takes_an_epoch_that_is_of_no_tree(world: Any, pool: Any, refused: Any) -> None:
    """The contract's answer to all of the above; validators give it (tests/attacks/validators/test_epochs.py)."""
    pool.commit(0, units=100_000, root=b"\xab" * 32)
    verdict = EpochVerdict(pool.id, pool.node.address, 0, b"\xab" * 20, Outcome.REJECT, EpochFault.UNDELIVERED)
    signatures = [sign(key, world.domain, verdict) for key in pool.validators]
    call = world.contracts.invalidate_epoch(pool.id, pool.node.address, 0, verdict.outcome, verdict.reason, signatures)
    world.send(call, pool.manager)
    with refused("NothingCommitted"):
        settle(world, pool, 0)


def test_a_quorum_slashes_for_an_epoch_of_invented_work(world: Any, pool: Any) -> None:
    pool.commit(0, units=100_000, root=b"\xab" * 32)
    verdict = EpochVerdict(pool.id, pool.node.address, 0, b"\xab" * 20, Outcome.SLASH, EpochFault.INVENTED)
    signatures = [sign(key, world.domain, verdict) for key in pool.validators]
    call = world.contracts.invalidate_epoch(pool.id, pool.node.address, 0, verdict.outcome, verdict.reason, signatures)
    (slashed,) = [one for one in world.events(world.send(call, pool.manager)) if isinstance(one, Slashed)]
    assert (slashed.reason, slashed.amount) == (EpochFault.INVENTED, 50 * TOKEN)
    assert slashed.file_root[:20] == b"\xab" * 20
    assert world.contracts.work(pool.id, pool.node.address, 0).voided


def test_known_gap_nodes_of_one_provider_share_a_stake_that_two_slashes_empty(world: Any, pool: Any) -> None:
    """A node more needs 10 tokens of stake, a slash takes 50: the third cheat of one provider costs it nothing."""
    nodes = [world.person() for _ in range(5)]
    for node in nodes:
        world.register(pool.provider, node)
        world.send(world.contracts.join(pool.id, "/ip4/127.0.0.1/tcp/2"), node)
    taken = []
    for node in nodes:
        c = pool.commitment()
        c = type(c)(c.pool, node.address, c.policy_root, c.index, c.file_root, c.units)
        before = world.contracts.stake_of(pool.provider.address).bonded
        signature = sign(node, world.domain, c)
        world.send(world.contracts.slash(c, signature, 5, pool.verdicts(c, 5)), pool.manager)
        taken.append(before - world.contracts.stake_of(pool.provider.address).bonded)
    assert taken == [50 * TOKEN, 50 * TOKEN, 0, 0, 0]


def test_known_gap_a_node_whose_stake_is_gone_works_until_somebody_expels_it(world: Any, pool: Any) -> None:
    twin, third = world.person(), world.person()
    for node in (twin, third):
        world.register(pool.provider, node)
        world.send(world.contracts.join(pool.id, "/ip4/127.0.0.1/tcp/2"), node)
    for node in (pool.node, twin):
        c = pool.commitment()
        c = type(c)(c.pool, node.address, c.policy_root, c.index, c.file_root, c.units)
        world.send(world.contracts.slash(c, sign(node, world.domain, c), 5, pool.verdicts(c, 5)), pool.manager)
    assert world.contracts.stake_of(pool.provider.address).bonded == 0
    world.send(world.contracts.commit_work(pool.id, 0, b"\x33" * 32, 100), third)


def test_unbonding_just_before_a_slash_saves_nothing(world: Any, pool: Any, refused: Any) -> None:
    pool.commit(0)
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    world.send(world.contracts.unbond(100 * TOKEN), pool.provider)
    pool.slash(pool.commitment(), pool.manager)
    assert world.contracts.stake_of(pool.provider.address).unbonding == 50 * TOKEN
    with refused("WorkIsVoided"):
        settle(world, pool, 0)


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
