from functools import partial
from typing import Any

import pytest
from web3 import Web3

from contracts.bindings import (
    Bonded,
    CaseState,
    StakeFrozen,
    StakeSlashed,
    Unbonding,
    Withdrawn,
    creation,
    parse_revert,
    write,
)
from contracts.deploy import TOKEN
from node.chain.refusals import EndpointRefused

UNBONDING = 3600


def deploy_vault(world: Any, key: Any, *args: Any) -> Any:
    place = Web3.to_checksum_address(world.send(creation("StakeVault", *args), key)["contractAddress"])
    return partial(write, place, "StakeVault")


def test_anybody_may_bond_for_a_provider(world: Any) -> None:
    payer, provider = world.person(5 * TOKEN), world.person()
    before = world.contracts.token_balance(world.contracts.addresses.vault)
    receipt = world.send(world.contracts.bond(provider.address, 5 * TOKEN), payer)
    (event,) = world.events(receipt)
    assert isinstance(event, Bonded)
    assert (event.provider, event.payer, event.bonded) == (provider.address, payer.address, 5 * TOKEN)
    assert world.contracts.stake_of(provider.address).bonded == 5 * TOKEN
    assert world.contracts.token_balance(world.contracts.addresses.vault) == before + 5 * TOKEN


def test_bonding_nothing_or_for_nobody_or_without_tokens_is_refused(world: Any, refused: Any) -> None:
    person = world.person(TOKEN)
    with refused("ZeroAmount"):
        world.send(world.contracts.bond(person.address, 0), person)
    with refused("ZeroAddress"):
        world.send(world.contracts.bond("0x" + "00" * 20, 1), person)
    with refused("ERC20InsufficientAllowance"):
        world.send(world.contracts.bond(person.address, 2 * TOKEN), person)
    with refused("AmountTooLarge"):
        world.send(world.contracts.bond(person.address, 2**128), person)


def test_unbonded_stake_is_paid_out_at_the_exact_second_and_not_before(world: Any, refused: Any) -> None:
    provider = world.provider(10 * TOKEN)
    receipt = world.send(world.contracts.unbond(4 * TOKEN), provider)
    (event,) = world.events(receipt)
    assert isinstance(event, Unbonding)
    assert event.withdrawable_at == world.now() + UNBONDING
    with refused("StillUnbonding"):
        world.send(world.contracts.withdraw(), provider, at=event.withdrawable_at - 1)
    receipt = world.send(world.contracts.withdraw(), provider, at=event.withdrawable_at)
    assert isinstance(world.events(receipt)[0], Withdrawn)
    assert world.contracts.token_balance(provider.address) == 4 * TOKEN
    with refused("NothingToWithdraw"):
        world.send(world.contracts.withdraw(), provider)


def test_a_second_unbonding_joins_the_first_and_restarts_the_clock(world: Any, refused: Any) -> None:
    provider = world.provider(10 * TOKEN)
    world.send(world.contracts.unbond(4 * TOKEN), provider)
    first = world.contracts.stake_of(provider.address).withdrawable_at
    world.send(world.contracts.unbond(5 * TOKEN), provider, at=first - 10)
    with refused("StillUnbonding"):
        world.send(world.contracts.withdraw(), provider, at=first)
    world.send(world.contracts.withdraw(), provider, at=first - 10 + UNBONDING)
    assert world.contracts.token_balance(provider.address) == 9 * TOKEN


def test_no_more_than_what_is_bonded_can_be_unbonded(world: Any, refused: Any) -> None:
    provider = world.provider(TOKEN)
    with refused("StakeTooSmall"):
        world.send(world.contracts.unbond(TOKEN + 1), provider)
    with refused("ZeroAmount"):
        world.send(world.contracts.unbond(0), provider)


def test_unbonding_stake_can_be_bonded_again(world: Any, refused: Any) -> None:
    provider = world.provider(10 * TOKEN)
    with refused("ZeroAmount"):
        world.send(world.contracts.rebond(0), provider)
    world.send(world.contracts.unbond(4 * TOKEN), provider)
    world.send(world.contracts.rebond(3 * TOKEN), provider)
    stake = world.contracts.stake_of(provider.address)
    assert (stake.bonded, stake.unbonding) == (9 * TOKEN, TOKEN)
    with refused("StakeTooSmall"):
        world.send(world.contracts.rebond(TOKEN + 1), provider)


def test_stake_that_nodes_stand_on_cannot_leave_before_them(world: Any, pool: Any, refused: Any) -> None:
    with refused("StakeTooLow"):
        world.send(world.contracts.unbond(40 * TOKEN + 1), pool.provider)
    world.send(world.contracts.unbond(40 * TOKEN), pool.provider)
    world.send(world.contracts.remove_provider([pool.node.address]), pool.provider)
    world.send(world.contracts.unbond(60 * TOKEN), pool.provider)


def test_only_the_swarm_slashes(world: Any, refused: Any) -> None:
    provider = world.provider(TOKEN)
    for caller in (provider, world.deployer):
        with refused("OnlySwarm"):
            world.send(world.contracts.write("vault", "slash", provider.address, 1), caller)


def test_the_swarm_is_set_once_by_the_deployer(world: Any, refused: Any) -> None:
    stranger = world.person()
    vault = deploy_vault(world, world.deployer, world.contracts.addresses.token, vault_params())
    with refused("OnlyDeployer"):
        world.send(vault("setSwarm", stranger.address), stranger)
    with refused("ZeroAddress"):
        world.send(vault("setSwarm", "0x" + "00" * 20), world.deployer)
    world.send(vault("setSwarm", stranger.address), world.deployer)
    with refused("SwarmAlreadySet"):
        world.send(vault("setSwarm", stranger.address), world.deployer)


def vault_params(**changes: Any) -> tuple[Any, ...]:
    someone = Web3.to_checksum_address("0x" + "77" * 20)
    fields = {
        "unbonding": 20,
        "appeal": 10,
        "treasury": someone,
        "arbiter": Web3.to_checksum_address("0x" + "78" * 20),
        "burn": 0,
        "bond": 2_500,
        "least": 1,
    }
    return tuple((fields | changes).values())


def test_a_vault_is_not_born_with_senseless_parameters(world: Any) -> None:
    token, nobody = world.contracts.addresses.token, "0x" + "00" * 20
    for args, name in (
        ((token, vault_params(burn=10_001)), "BadShare"),
        ((token, vault_params(arbiter=vault_params()[2])), "ArbiterIsTreasury"),
        ((token, vault_params(unbonding=19)), "UnbondingTooShort"),
        ((token, vault_params(bond=10_001)), "BadShare"),
        ((token, vault_params(least=0)), "ZeroAmount"),
        ((token, vault_params(appeal=0)), "ZeroAmount"),
        ((nobody, vault_params()), "ZeroAddress"),
        ((token, vault_params(treasury=nobody)), "ZeroAddress"),
        ((token, vault_params(arbiter=nobody)), "ZeroAddress"),
    ):
        with pytest.raises(EndpointRefused) as caught:
            world.web3.eth.estimate_gas({**creation("StakeVault", *args).fields(), "from": world.deployer.address})
        revert = parse_revert(bytes.fromhex(str(caught.value.data)[2:]))
        assert revert is not None and revert.name == name


def test_the_faucet_gives_up_to_its_cap(world: Any, refused: Any) -> None:
    person = world.person()
    world.send(world.contracts.mint(person.address, 10**6 * TOKEN), person)
    with refused("FaucetCapExceeded"):
        world.send(world.contracts.mint(person.address, 10**6 * TOKEN + 1), person)


def test_a_slash_by_judgement_freezes_and_is_final_after_the_appeal(world: Any, pool: Any, refused: Any) -> None:
    frozen = frozen_case(world, pool.slash(pool.commitment(), world.person()))
    finalize, anybody = world.contracts.finalize(frozen.case_id), world.person()
    with refused("AppealOpen"):
        world.send(finalize, anybody, at=frozen.final_at - 1)
    receipt = world.send(finalize, anybody, at=frozen.final_at)
    (gone,) = [event for event in world.events(receipt) if isinstance(event, StakeSlashed)]
    assert (gone.case_id, gone.amount, gone.burned) == (frozen.case_id, 50 * TOKEN, 0)
    assert world.contracts.case(frozen.case_id).state == CaseState.FINAL
    with refused("CaseClosed"):
        world.send(finalize, anybody)


def test_an_appeal_gives_the_arbiter_time_and_the_arbiter_gives_everything_back(
    world: Any, pool: Any, refused: Any
) -> None:
    frozen = frozen_case(world, pool.slash(pool.commitment(), world.person()))
    overturn = world.contracts.overturn(pool.id, pool.node.address)
    with refused("OnlyProvider"):
        world.send(world.contracts.appeal(frozen.case_id), world.person())
    world.put_up(pool.provider, frozen.bond)
    world.send(world.contracts.appeal(frozen.case_id), pool.provider, at=frozen.final_at - 1)
    with refused("AlreadyAppealed"):
        world.send(world.contracts.appeal(frozen.case_id), pool.provider)
    with refused("OnlyArbiter"):
        world.send(overturn, pool.manager)
    world.send(overturn, world.deployer, at=frozen.final_at + 1)
    stake = world.contracts.stake_of(pool.provider.address)
    assert (stake.bonded, stake.frozen) == (100 * TOKEN, 0)
    assert (frozen.pool, frozen.bond, world.contracts.case(frozen.case_id).carrier) == (
        pool.id,
        50 * TOKEN // 4,
        frozen.carrier,
    )
    assert world.contracts.credit_of(pool.provider.address) == frozen.bond + frozen.bond * 9 // 10
    assert world.contracts.credit_of(frozen.carrier) == 0
    world.send(world.contracts.collect(pool.provider.address), world.person())
    assert world.contracts.token_balance(pool.provider.address) == frozen.bond + frozen.bond * 9 // 10
    with refused("NothingToCollect"):
        world.send(world.contracts.collect(pool.provider.address), world.person())
    owner = world.contracts.node_info(pool.validators[0].address).owner
    assert world.contracts.stake_of(owner).bonded == 110 * TOKEN
    with refused("AlreadyJudged"):
        pool.slash(pool.commitment(), world.person())


def frozen_case(world: Any, receipt: Any) -> StakeFrozen:
    (event,) = [event for event in world.events(receipt) if isinstance(event, StakeFrozen)]
    return event
