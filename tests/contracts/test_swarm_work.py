from typing import Any

from contracts.bindings import Joined, Left, Settled, Slashed, WorkCommitted, WorkInvalidated, WorkToppedUp
from contracts.deploy import TOKEN
from protocol.statements import Outcome, work_id
from protocol.work import leaf_hash, merkle_root, proof

REWARD, EPOCH, LEASE = 10**15, 100, 1000


def member(pool: Any) -> Any:
    return pool.contracts.member_states(pool.id, [pool.node.address])[0]


# ---- membership


def test_a_registered_node_joins_and_may_join_again_to_tell_a_new_contact(world: Any, pool: Any) -> None:
    receipt = world.send(world.contracts.join(pool.id, "/ip4/10.0.0.1/tcp/9"), pool.node)
    (event,) = world.events(receipt)
    assert isinstance(event, Joined)
    assert (event.node, event.provider) == (pool.node.address, pool.provider.address)
    assert event.contact == "/ip4/10.0.0.1/tcp/9"
    assert event.lease_until == world.now() + LEASE == member(pool).lease_until


def test_who_may_not_join(world: Any, pool: Any, refused: Any) -> None:
    with refused("NodeUnknown"):
        world.send(world.contracts.join(pool.id, "x"), world.person())
    with refused("PoolUnknown"):
        world.send(world.contracts.join(9, "x"), pool.node)
    with refused("TextTooLong"):
        world.send(world.contracts.join(pool.id, "x" * 161), pool.node)
    with refused("StakeTooLow"):
        world.send(world.contracts.unbond(90 * TOKEN), pool.provider)


def test_a_node_leaves_and_may_come_back(world: Any, pool: Any, refused: Any) -> None:
    receipt = world.send(world.contracts.leave(pool.id), pool.node)
    assert isinstance(world.events(receipt)[0], Left)
    assert member(pool).left
    with refused("NotMember"):
        world.send(world.contracts.leave(pool.id), pool.node)
    with refused("NotMember"):
        pool.commit(0)
    world.send(world.contracts.join(pool.id, "x"), pool.node)
    assert not member(pool).left
    pool.commit(0)


def test_a_stranger_cannot_leave(world: Any, pool: Any, refused: Any) -> None:
    with refused("NotMember"):
        world.send(world.contracts.leave(pool.id), world.person())


def test_committing_renews_the_lease_and_a_lapsed_one_is_told(world: Any, pool: Any, refused: Any) -> None:
    until = member(pool).lease_until
    epoch = pool.info.epoch_at(until)
    pool.commit(epoch, at=until)
    assert member(pool).lease_until == until + LEASE
    later = pool.info.epoch_at(until + LEASE + 1)
    with refused("LeaseLapsed"):
        pool.commit(later, at=until + LEASE + 1)
    world.send(world.contracts.join(pool.id, "x"), pool.node)
    pool.commit(later)


# ---- committing


def test_committed_work_reserves_its_pay(world: Any, pool: Any) -> None:
    receipt = pool.commit(0, units=2000)
    (event,) = world.events(receipt)
    assert isinstance(event, WorkCommitted)
    assert (event.epoch, event.units, event.reserved_units) == (0, 2000, 2000)
    assert (pool.info.escrow, pool.info.reserved) == (498 * TOKEN, 2 * TOKEN)
    work = world.contracts.work(pool.id, pool.node.address, 0)
    assert (work.root, work.units, work.reserved) == (b"\x33" * 20, 2000, 2 * TOKEN)
    assert pool.info.has_work


def test_a_short_escrow_reserves_what_there_is(world: Any, pool: Any) -> None:
    receipts = [pool.commit(epoch, units=100_000, at=pool.info.epoch_end(epoch)) for epoch in range(7)]
    reserved = [world.events(receipt)[0].reserved_units for receipt in receipts]
    assert reserved == [100_000] * 5 + [0, 0]


def test_what_the_escrow_lacked_is_reserved_when_somebody_tops_it_up(world: Any, pool: Any, refused: Any) -> None:
    for epoch in range(6):
        pool.commit(epoch, units=100_000, at=pool.info.epoch_end(epoch))
    top_up = world.contracts.swarm.functions.topUp(pool.id, pool.node.address, 5)
    with refused("ZeroAmount"):
        world.send(top_up, world.person())
    donor = world.person(TOKEN)
    world.send(world.contracts.fund_pool(pool.id, TOKEN), donor)
    (event,) = world.events(world.send(top_up, world.person()))
    assert isinstance(event, WorkToppedUp)
    assert (event.node, event.epoch, event.units) == (pool.node.address, 5, 1000)
    assert world.contracts.work(pool.id, pool.node.address, 5).reserved == TOKEN


def test_an_epoch_takes_one_root_per_node(world: Any, pool: Any, refused: Any) -> None:
    pool.commit(0)
    with refused("AlreadyCommitted"):
        pool.commit(0, root=b"\x55" * 32)


def test_senseless_commitments_are_refused(world: Any, pool: Any, refused: Any) -> None:
    with refused("EmptyRoot"):
        pool.commit(0, root=bytes(32))
    for units in (0, 100_001):
        with refused("UnitsOutOfRange"):
            pool.commit(0, units=units)
    with refused("NotMember"):
        world.send(world.contracts.commit_work(pool.id, 0, b"\x01" * 32, 1), world.person())


def test_an_epoch_opens_with_its_first_second_and_closes_half_a_window_after_its_end(
    world: Any, pool: Any, refused: Any
) -> None:
    info = pool.info
    with refused("EpochNotStarted"):
        pool.commit(1, at=info.epoch_end(0) - 1)
    pool.commit(1, at=info.epoch_end(0))
    pool.commit(0, at=info.commit_until(0) - 1)
    with refused("CommitTooLate"):
        pool.commit(2, at=info.commit_until(2))


def test_a_removed_node_commits_nothing(world: Any, pool: Any, refused: Any) -> None:
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    with refused("NotMember"):
        pool.commit(0)


# ---- one window


def test_work_is_settled_from_the_very_second_on_in_which_it_can_no_longer_be_voided(
    world: Any, pool: Any, refused: Any
) -> None:
    pool.commit(0)
    reporter = world.person()
    mature = pool.info.maturity(0)
    assert world.contracts.swarm.functions.maturityOf(pool.id, 0).call() == mature
    settle = world.contracts.settle(pool.id, pool.node.address, [0])
    with refused("NotMature"):
        world.send(settle, reporter, at=mature - 1)
    receipt = world.send(settle, reporter, at=mature)
    (event,) = world.events(receipt)
    assert isinstance(event, Settled) and event.amount == TOKEN
    assert world.contracts.token_balance(pool.provider.address) == TOKEN
    assert pool.info.reserved == 0
    with refused("NothingCommitted"):
        world.send(settle, reporter)


def test_a_slash_in_the_last_second_voids_and_settling_then_pays_nothing(world: Any, pool: Any, refused: Any) -> None:
    pool.commit(0)
    mature = pool.info.maturity(0)
    receipt = pool.slash(pool.commitment(), world.person(), at=mature - 1)
    (case,) = [event.case_id for event in world.events(receipt) if isinstance(event, Slashed)]
    assert world.contracts.work(pool.id, pool.node.address, 0).voided
    with refused("WorkIsVoided"):
        world.send(world.contracts.settle(pool.id, pool.node.address, [0]), pool.manager, at=mature)
    release = world.contracts.release(pool.id, pool.node.address, 0)
    with refused("NotVoided"):  # the slash may still be overturned
        world.send(release, pool.manager)
    world.send(world.contracts.finalize(case), pool.manager, at=world.contracts.case(case).final_at)
    world.send(release, pool.manager)
    assert (pool.info.escrow, pool.info.reserved) == (500 * TOKEN, 0)


def test_a_slash_in_the_first_mature_second_leaves_the_pay(world: Any, pool: Any) -> None:
    pool.commit(0)
    mature = pool.info.maturity(0)
    pool.slash(pool.commitment(), world.person(), at=mature)
    world.send(world.contracts.settle(pool.id, pool.node.address, [0]), pool.manager)
    assert world.contracts.token_balance(pool.provider.address) == TOKEN


def test_a_node_has_one_provider_for_life_who_is_paid_even_after_its_removal(
    world: Any, pool: Any, refused: Any
) -> None:
    pool.commit(0)
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    with refused("NodeTaken"):
        world.register(world.provider(), pool.node)
    world.send(world.contracts.settle(pool.id, pool.node.address, [0]), pool.manager, at=pool.info.maturity(0))
    assert world.contracts.token_balance(pool.provider.address) == TOKEN


# ---- rejected files


def tree(pool: Any) -> tuple[list[Any], list[bytes]]:
    files = [pool.commitment(file=bytes([i]) * 32, index=i, units=100 * (i + 1)) for i in range(5)]
    return files, [leaf_hash(work_id(c)) for c in files]


def invalidate(pool: Any, c: Any, path: Any, *, at: int | None = None, **changes: Any) -> Any:
    verdicts = changes.get("verdicts") or pool.verdicts(c, 8, outcome=Outcome.REJECT)
    call = pool.contracts.invalidate(c, changes.get("epoch", 0), path, changes.get("outcome", 1), 8, verdicts)
    return pool.world.send(call, pool.manager, at=at)


def test_a_rejected_file_loses_exactly_its_own_units(world: Any, pool: Any, refused: Any) -> None:
    files, leaves = tree(pool)
    pool.commit(0, units=1500, root=merkle_root(leaves))
    receipt = invalidate(pool, files[4], proof(leaves, 4))
    (event,) = world.events(receipt)
    assert isinstance(event, WorkInvalidated) and (event.units, event.reason) == (500, 8)
    work = world.contracts.work(pool.id, pool.node.address, 0)
    assert (work.units, work.reserved) == (1000, TOKEN)
    assert (pool.info.escrow, pool.info.reserved) == (499 * TOKEN, TOKEN)
    with refused("AlreadyInvalidated"):
        invalidate(pool, files[4], proof(leaves, 4))
    for i in range(4):
        invalidate(pool, files[i], proof(leaves, i))
    assert world.contracts.work(pool.id, pool.node.address, 0).reserved == 0
    assert pool.info.escrow == 500 * TOKEN


def test_a_file_is_invalidated_only_with_proof_quorum_and_in_time(world: Any, pool: Any, refused: Any) -> None:
    files, leaves = tree(pool)
    pool.commit(0, units=1500, root=merkle_root(leaves))
    with refused("BadProof"):
        invalidate(pool, files[0], proof(leaves, 1))
    with refused("BadProof"):
        invalidate(pool, files[0], [bytes(32)] * 33)
    with refused("QuorumMissing"):
        invalidate(pool, files[0], proof(leaves, 0), verdicts=pool.verdicts(files[0], 8, outcome=1)[:1])
    with refused("NotAValidator"):
        invalidate(pool, files[0], proof(leaves, 0), verdicts=pool.verdicts(files[0], 8, outcome=Outcome.SLASH))
    with refused("NothingCommitted"):
        invalidate(pool, files[0], proof(leaves, 0), epoch=1)
    with refused("AlreadyMature"):
        invalidate(pool, files[0], proof(leaves, 0), at=pool.info.maturity(0))


def test_a_file_is_invalidated_in_the_last_second_of_the_window(world: Any, pool: Any) -> None:
    files, leaves = tree(pool)
    pool.commit(0, units=1500, root=merkle_root(leaves))
    invalidate(pool, files[0], proof(leaves, 0), at=pool.info.maturity(0) - 1)
    assert world.contracts.work(pool.id, pool.node.address, 0).units == 1400
