from typing import Any

import pytest
from web3 import Web3
from web3.exceptions import ContractCustomError

from contracts.bindings import Bonded, StakeSlashed, Unbonding, Withdrawn, artifact, parse_revert
from contracts.deploy import TOKEN

UNBONDING = 3600


def deploy_vault(world: Any, key: Any, *args: Any) -> Any:
    factory = world.web3.eth.contract(abi=artifact("StakeVault")["abi"], bytecode=artifact("StakeVault")["bytecode"])
    receipt = world.send(factory.constructor(*args), key)
    return world.web3.eth.contract(address=receipt["contractAddress"], abi=artifact("StakeVault")["abi"])


def test_anybody_may_bond_for_a_provider(world: Any) -> None:
    payer, provider = world.person(5 * TOKEN), world.person()
    receipt = world.send(world.contracts.bond(provider.address, 5 * TOKEN), payer)
    (event,) = world.events(receipt)
    assert isinstance(event, Bonded)
    assert (event.provider, event.payer, event.bonded) == (provider.address, payer.address, 5 * TOKEN)
    assert world.contracts.stake_of(provider.address).bonded == 5 * TOKEN
    assert world.contracts.token_balance(world.contracts.addresses.vault) == 5 * TOKEN


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
        world.send(world.contracts.rebond(), provider)
    world.send(world.contracts.unbond(4 * TOKEN), provider)
    world.send(world.contracts.rebond(), provider)
    stake = world.contracts.stake_of(provider.address)
    assert (stake.bonded, stake.unbonding) == (10 * TOKEN, 0)


def test_only_the_swarm_slashes(world: Any, refused: Any) -> None:
    provider = world.provider(TOKEN)
    vault = world.contracts.vault.functions
    for caller in (provider, world.deployer):
        with refused("OnlySwarm"):
            world.send(vault.slash(provider.address, 1, caller.address), caller)


def test_the_swarm_is_set_once_by_the_deployer(world: Any, refused: Any) -> None:
    stranger = world.person()
    vault = deploy_vault(world, world.deployer, world.contracts.addresses.token, 10, stranger.address, 0)
    with refused("OnlyDeployer"):
        world.send(vault.functions.setSwarm(stranger.address), stranger)
    with refused("ZeroAddress"):
        world.send(vault.functions.setSwarm("0x" + "00" * 20), world.deployer)
    world.send(vault.functions.setSwarm(stranger.address), world.deployer)
    with refused("SwarmAlreadySet"):
        world.send(vault.functions.setSwarm(stranger.address), world.deployer)


@pytest.fixture
def own_vault(world: Any) -> Any:
    """A vault whose swarm is a person, who can so slash at will; 10 tokens of one provider in it."""
    swarm = world.person(20 * TOKEN)
    treasury = Web3.to_checksum_address("0x" + "77" * 20)
    vault = deploy_vault(world, world.deployer, world.contracts.addresses.token, UNBONDING, treasury, 1_000)
    world.send(vault.functions.setSwarm(swarm.address), world.deployer)
    provider = world.person(10 * TOKEN)
    world.send(world.contracts.approve(vault.address, 10 * TOKEN), provider)
    world.send(vault.functions.bond(provider.address, 10 * TOKEN), provider)
    return vault, swarm, provider, treasury


def test_a_slash_takes_unbonding_stake_first_even_after_its_period(world: Any, own_vault: Any) -> None:
    vault, swarm, provider, _ = own_vault
    world.send(vault.functions.unbond(4 * TOKEN), provider)
    mature = vault.functions.stakeOf(provider.address).call()[2]
    world.send(vault.functions.slash(provider.address, 5 * TOKEN, swarm.address), swarm, at=mature + 100)
    bonded, unbonding, _ = vault.functions.stakeOf(provider.address).call()
    assert (bonded, unbonding) == (5 * TOKEN, 0)


def test_a_slash_takes_at_most_what_is_there_and_splits_it(world: Any, own_vault: Any) -> None:
    vault, swarm, provider, treasury = own_vault
    reporter = world.person()
    world.send(vault.functions.slash(provider.address, 999 * TOKEN, reporter.address), swarm)
    assert vault.functions.stakeOf(provider.address).call()[:2] == (0, 0)
    assert world.contracts.token_balance(reporter.address) == 1 * TOKEN
    assert world.contracts.token_balance(treasury) == 9 * TOKEN
    assert world.contracts.token_balance(vault.address) == 0


def test_a_vault_is_not_born_with_senseless_parameters(world: Any) -> None:
    token, treasury, nobody = world.contracts.addresses.token, world.deployer.address, "0x" + "00" * 20
    factory = world.web3.eth.contract(abi=artifact("StakeVault")["abi"], bytecode=artifact("StakeVault")["bytecode"])
    for args, name in (
        ((token, 10, treasury, 2_001), "ReporterShareTooHigh"),
        ((token, 0, treasury, 0), "ZeroAmount"),
        ((nobody, 10, treasury, 0), "ZeroAddress"),
        ((token, 10, nobody, 0), "ZeroAddress"),
    ):
        with pytest.raises(ContractCustomError) as caught:
            factory.constructor(*args).estimate_gas({"from": world.deployer.address})
        revert = parse_revert(bytes.fromhex(str(caught.value.data)[2:]))
        assert revert is not None and revert.name == name


def test_the_faucet_gives_up_to_its_cap(world: Any, refused: Any) -> None:
    person = world.person()
    world.send(world.contracts.mint(person.address, 10**6 * TOKEN), person)
    with refused("FaucetCapExceeded"):
        world.send(world.contracts.mint(person.address, 10**6 * TOKEN + 1), person)


def test_slashes_are_told(world: Any, pool: Any) -> None:
    receipt = pool.slash(pool.commitment(), world.person())
    told = [event for event in world.events(receipt) if isinstance(event, StakeSlashed)]
    assert told[0].amount == 50 * TOKEN and told[0].reporter_share == 5 * TOKEN
