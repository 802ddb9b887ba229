from typing import Any

import pytest

from contracts.bindings import (
    Claimed,
    EarningsDropped,
    EarningsHeld,
    EarningsPosted,
    GivenBack,
    PostedEarnings,
    Slashed,
    WaitingEarnings,
)
from contracts.deploy import TOKEN
from tests.contracts.conftest import BASE, EPOCH, LEASE, PER_UNIT, line, table


def member(pool: Any) -> Any:
    return pool.contracts.member(pool.id, pool.node.address)


# ---- tables


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_line_of_a_table_can_be_shown_to_the_contract(world: Any, pool: Any, count: int) -> None:
    """Python's tree and the contract's agree, whichever leaves are carried up unchanged."""
    nodes = [pool.node, *(world.person() for _ in range(count - 1))]
    provider = world.provider(BASE + PER_UNIT * count)
    for node in nodes[1:]:
        world.register(provider, node)
        world.send(pool.contracts.join(pool.id, "x"), node)
    lines = {node.address: 10 + i for i, node in enumerate(nodes)}
    proofs = pool.earn(0, lines)
    for node, units in lines.items():
        (event,) = world.events(pool.claim(units, proofs[node], node=node))
        assert isinstance(event, Claimed) and event.units == units
    assert pool.info.owed == 0


def test_a_table_is_posted_from_the_second_on_in_which_its_epoch_is_mature(world: Any, pool: Any, refused: Any) -> None:
    root, mature = b"\x55" * 32, pool.info.maturity(3)
    assert pool.contracts.earnings(pool.id) == PostedEarnings(None, bytes(32), 0)
    with refused("NotMature"):
        pool.post(3, root, 1000, at=mature - 1)
    (event,) = world.events(pool.post(3, root, 1000, at=mature))
    assert isinstance(event, EarningsPosted)
    assert (event.pool, event.epoch, event.root, event.total) == (pool.id, 3, root, 1000)
    assert event.counts_at == mature + pool.info.delay
    assert event.signers == tuple(key.address for key in pool.validators)
    assert pool.contracts.earnings(pool.id) == PostedEarnings(3, root, 1000, 1000, 4)
    assert pool.contracts.earnings(pool.id).epochs_left(499_000) == 1996
    assert (pool.info.escrow, pool.info.owed) == (499 * TOKEN, TOKEN)
    for epoch in (3, 2):
        with refused("EpochNotLater"):
            pool.post(epoch, root, 2000)


def test_a_table_says_no_less_than_the_last_and_no_more_than_there_is(world: Any, pool: Any, refused: Any) -> None:
    root = b"\x55" * 32
    pool.post(0, root, 150_000)
    with refused("TotalFalls"):
        pool.post(1, root, 149_999)
    with refused("TooMuchForEpochs"):
        pool.post(1, root, 350_001)
    pool.post(1, root, 350_000)
    with refused("EscrowTooSmall"):  # 500 tokens are 500,000 units
        pool.post(2, root, 500_001)
    pool.post(2, root, 500_000)
    assert (pool.info.escrow, pool.info.owed) == (0, 500 * TOKEN)


def test_a_table_needs_the_quorum_for_exactly_this_statement(world: Any, pool: Any, refused: Any) -> None:
    from protocol.statements import Earnings

    root, (first, second) = b"\x55" * 32, pool.validators
    with refused("QuorumMissing"):
        pool.post(0, root, 10, by=[first])
    with refused("DuplicateVerdict"):
        pool.post(0, root, 10, by=[first, first])
    with refused("NotAValidator"):
        pool.post(0, root, 10, by=[first, world.person()])
    changes = ({"pool": 9}, {"epoch": 1}, {"number": 2}, {"root": bytes(32)}, {"total": 11}, {"blob": root})
    for change in changes:
        fields = {"pool": pool.id, "epoch": 0, "number": 1, "root": root, "total": 10, "blob": bytes(32)} | change
        with refused("NotAValidator"):
            pool.post(0, root, 10, signed=Earnings(**fields))
    pool.post(0, root, 10, by=[second, first])


def test_a_table_that_waits_is_held_and_dropped_and_its_signers_lose_their_stake(
    world: Any, pool: Any, refused: Any
) -> None:
    root, contracts, guardian = b"\x55" * 32, pool.contracts, pool.manager
    (posted,) = world.events(pool.post(3, root, 1000, waits=True))
    waiting = contracts.waiting(pool.id)
    assert waiting == WaitingEarnings(root, 1000, 3, posted.counts_at, False, waiting.signers)
    assert contracts.earnings(pool.id) == PostedEarnings(None, bytes(32), 0)
    with refused("TableWaits"):
        pool.post(2, root, 2000, at=world.now() + 1, waits=True)
    with refused("OnlyGuardian"):
        world.send(contracts.hold(pool.id), pool.provider)
    with refused("NotHeld"):
        world.send(contracts.drop(pool.id, posted.signers), world.deployer)
    (held,) = world.events(world.send(contracts.hold(pool.id), guardian))
    assert isinstance(held, EarningsHeld) and held.counts_at == world.now() + contracts.appeal_seconds()
    assert contracts.waiting(pool.id).held
    judge = contracts.node_info(pool.validators[0].address).owner
    before = contracts.stake_of(judge).bonded
    events = world.events(world.send(contracts.drop(pool.id, posted.signers), world.deployer))
    dropped = next(event for event in events if isinstance(event, EarningsDropped))
    assert (dropped.epoch, dropped.root) == (3, root)
    slashed = [event for event in events if isinstance(event, Slashed)]
    assert [(one.node, one.reason) for one in slashed] == [(key.address, 202) for key in pool.validators]
    assert before - contracts.stake_of(judge).bonded == 2 * pool.info.slash_amount
    assert contracts.waiting(pool.id) is None and pool.info.escrow == 500 * TOKEN and pool.info.validators == ()


# ---- claims


def test_a_claim_pays_what_was_not_paid_yet_whoever_carries_it(world: Any, pool: Any, refused: Any) -> None:
    node = pool.node.address
    (proof,) = pool.earn(0, {node: 1000}).values()
    assert proof == []
    (event,) = world.events(pool.claim(1000, proof))
    assert (event.node, event.provider) == (node, pool.provider.address)
    assert (event.units, event.amount) == (1000, TOKEN)
    assert world.contracts.token_balance(pool.provider.address) == TOKEN
    with refused("NothingToClaim"):
        pool.claim(1000, proof)
    (proof,) = pool.earn(1, {node: 1500}).values()
    with refused("BadProof"):
        pool.claim(1000, proof)
    pool.claim(1500, proof)
    assert pool.contracts.claimed(pool.id, node) == 1500
    assert world.contracts.token_balance(pool.provider.address) == TOKEN * 3 // 2


def test_a_proof_is_worth_nothing_for_other_units_other_nodes_and_other_pools(
    world: Any, pool: Any, refused: Any
) -> None:
    node, other = pool.node.address, pool.validators[0]
    world.send(pool.contracts.join(pool.id, "x"), other)
    proofs = pool.earn(0, {node: 1000, other.address: 10})
    for units, proof, who in (
        (1001, proofs[node], node),
        (1000, proofs[other.address], node),
        (1000, proofs[node], other.address),
        (1000, [], node),
        (1000, [*proofs[node], bytes(32)], node),
        (1000, [bytes(32)] * 33, node),
    ):
        with refused("BadProof"):
            pool.claim(units, proof, node=who)
    params = world.params(pool.manager, pool.validators)
    second = world.events(world.send(pool.contracts.create_pool(params), pool.manager))[0].pool
    world.send(pool.contracts.join(second, "x"), pool.node)
    with refused("BadProof"):
        world.send(pool.contracts.claim(second, node, 1000, proofs[node]), pool.manager)


def test_who_never_joined_is_paid_nothing(world: Any, pool: Any, refused: Any) -> None:
    stranger = world.person()
    (proof,) = pool.earn(0, {stranger.address: 10}).values()
    with refused("NotMember"):
        pool.claim(10, proof, node=stranger.address)


def test_a_node_is_paid_at_most_what_its_size_allows_since_it_joined(world: Any, pool: Any, refused: Any) -> None:
    """100,000 units per epoch: what is above can be claimed in later epochs."""
    node, late = pool.node.address, world.person()
    world.register(world.provider(), late)
    pool.post(4, bytes(32), 0)  # epoch 4 is mature in epoch 8
    world.send(pool.contracts.join(pool.id, "x"), late)
    assert pool.info.epoch_at(world.now()) == 8
    proofs = pool.earn(5, {node: 100, late.address: 150_000})
    assert pool.info.epoch_at(world.now()) == 9
    (event,) = world.events(pool.claim(150_000, proofs[late.address], node=late.address))
    assert event.units == 150_000
    (proof,) = pool.earn(6, {late.address: 350_000}).values()
    (event,) = world.events(pool.claim(350_000, proof, node=late.address))
    assert event.units == 100_000
    with refused("CapacityUsed"):
        pool.claim(350_000, proof, node=late.address)
    (event,) = world.events(pool.claim(350_000, proof, node=late.address, at=world.now() + EPOCH))
    assert event.units == 100_000


def test_what_a_node_earned_stays_due_after_its_removal(world: Any, pool: Any, refused: Any) -> None:
    world.send(pool.contracts.remove_node(pool.node.address), pool.provider)
    with refused("NodeTaken"):
        world.register(world.provider(), pool.node)
    (proof,) = pool.earn(0, {pool.node.address: 1000}).values()
    pool.claim(1000, proof)
    assert world.contracts.token_balance(pool.provider.address) == TOKEN


def test_a_slashed_node_is_paid_nothing_and_its_units_go_back_once_that_is_final(
    world: Any, pool: Any, refused: Any
) -> None:
    (proof,) = pool.earn(0, {pool.node.address: 1000}).values()
    pool.slash(pool.commitment(), world.person())
    with refused("CaseNotFinal"):
        pool.claim(1000, proof)
    world.send(pool.contracts.finalize(1), pool.manager, at=pool.contracts.case(1).final_at)
    (event,) = world.events(pool.claim(1000, proof))
    assert isinstance(event, GivenBack) and (event.node, event.units) == (pool.node.address, 1000)
    assert (pool.info.escrow, pool.info.owed) == (500 * TOKEN, 0)
    assert world.contracts.token_balance(pool.provider.address) == 0
    with refused("NothingToClaim"):
        pool.claim(1000, proof)


def test_a_pool_that_is_over_still_pays_and_is_swept_after_the_last_table(world: Any, pool: Any, refused: Any) -> None:
    world.send(pool.contracts.end_pool(pool.id), pool.manager)
    last = pool.info.epoch_at(pool.info.stopped_at)
    (proof,) = pool.earn(last, {pool.node.address: 1000}).values()
    until = pool.info.swept_from
    with refused("PoolStillOpen"):
        world.send(pool.contracts.sweep(pool.id), pool.provider, at=until - 1)
    before = world.contracts.token_balance(pool.manager.address)
    world.send(pool.contracts.sweep(pool.id), pool.provider, at=until)
    assert world.contracts.token_balance(pool.manager.address) - before == 499 * TOKEN
    assert (pool.info.escrow, pool.info.owed) == (0, TOKEN)
    with refused("PoolOver"):
        pool.post(last + 5, b"\x55" * 32, 1000)
    pool.claim(1000, proof)
    assert world.contracts.token_balance(pool.provider.address) == TOKEN


# ---- members


def test_members_can_be_read_without_their_logs(world: Any, pool: Any) -> None:
    others = [world.person() for _ in range(2)]
    for node in others:
        world.register(world.provider(), node)
        world.send(pool.contracts.join(pool.id, "x"), node)
    world.send(pool.contracts.leave(pool.id), others[0])
    assert pool.contracts.member_count(pool.id) == 3
    whole = pool.contracts.members(pool.id, 0, 10)
    assert [one.node for one in whole] == [pool.node.address, *(node.address for node in others)]
    assert [one.left for one in whole] == [False, True, False]
    assert pool.contracts.members(pool.id, 1, 1) == whole[1:2]
    assert pool.contracts.members(pool.id, 3, 10) == pool.contracts.members(pool.id, 9, 1) == []
    receipt = world.send(pool.contracts.join(pool.id, "/ip4/10.0.0.1/tcp/9"), pool.node)
    assert member(pool).joined_block == int(receipt["blockNumber"], 16)
    assert pool.contracts.member_count(pool.id) == 3


def test_a_renewed_lease_lasts_from_the_renewal_on(world: Any, pool: Any) -> None:
    """A whole lease from now, not a lease more than was left."""
    world.send(pool.contracts.join(pool.id, "x"), pool.node, at=world.now() + 10)
    assert member(pool).lease_until == world.now() + LEASE


def test_who_may_not_join(world: Any, pool: Any, refused: Any) -> None:
    with refused("NodeUnknown"):
        world.send(world.contracts.join(pool.id, "x"), world.person())
    with refused("PoolUnknown"):
        world.send(world.contracts.join(9, "x"), pool.node)
    with refused("TextTooLong"):
        world.send(world.contracts.join(pool.id, "x" * 161), pool.node)
    with refused("StakeTooLow"):
        world.send(world.contracts.unbond(PER_UNIT), pool.provider)


def test_a_node_leaves_and_may_come_back(world: Any, pool: Any, refused: Any) -> None:
    world.send(world.contracts.leave(pool.id), pool.node)
    assert member(pool).left
    with refused("NotMember"):
        world.send(world.contracts.leave(pool.id), pool.node)
    world.send(world.contracts.join(pool.id, "x"), pool.node)
    assert not member(pool).left


def test_the_helper_of_these_tests_makes_the_tree_that_the_design_says() -> None:
    """Golden: three lines, the third carried up unchanged."""
    from eth_hash.auto import keccak

    nodes = {"0x" + f"{i:02x}" * 20: i for i in (3, 1, 2)}
    first, second, third = (line(node, nodes[node]) for node in sorted(nodes))  # type: ignore[arg-type]
    inner = keccak(b"\1" + min(first, second) + max(first, second))
    assert table(nodes)[0] == keccak(b"\1" + min(inner, third) + max(inner, third))  # type: ignore[arg-type]
