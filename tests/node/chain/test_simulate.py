"""What a transaction would do and cost is told without sending any."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from contracts.deploy import TOKEN
from node.chain.client import ChainClient
from node.chain.errors import ChainError, InsufficientFunds, InsufficientStake, Reverted
from node.chain.profile import NetworkProfile
from node.chain.simulate import GAS_PRICE_ORACLE, SimulatedStep
from protocol.identity import NodeKey


def approve_and_bond(client: ChainClient, provider: NodeKey, amount: int) -> list[SimulatedStep]:
    vault = client.profile.contracts.vault
    approve = SimulatedStep("approve tokens", client.contracts.approve(vault, amount))
    return [approve, SimulatedStep("bond stake", client.contracts.bond(provider.address, amount))]


@pytest.fixture
async def rich(people: Any) -> NodeKey:
    """The manager with 10 tokens more."""
    await people.client.faucet(people.manager.address, 10 * TOKEN)
    return people.manager


async def test_steps_that_build_on_each_other_are_simulated_in_a_row(people: Any, rich: NodeKey) -> None:
    client = people.client
    before = await client.block()
    plan = approve_and_bond(client, rich, 10 * TOKEN)
    told = await client.simulate(plan, rich.address)
    assert told.complete and [step.action for step in told.steps] == ["approve tokens", "bond stake"]
    assert await client.block() == before
    used = [(await client.execute(step, rich)).gas_used for step in plan]
    assert [step.gas for step in told.steps] == pytest.approx(used, rel=0.05)


async def test_what_a_later_step_would_revert_with_is_told(people: Any, rich: NodeKey) -> None:
    with pytest.raises(InsufficientFunds, match="10 tokens and needs 11"):
        await people.client.simulate(approve_and_bond(people.client, rich, 11 * TOKEN), rich.address)


async def test_an_endpoint_that_cannot_simulate_in_a_row_leaves_a_guess(
    people: Any, rich: NodeKey, meddler: Any, connect: Callable[..., ChainClient]
) -> None:
    meddler.before["eth_simulateV1"] = {"error": {"code": -32601, "message": "no such method"}}
    client = connect(msgspec.structs.replace(people.client.profile, rpc_urls=(meddler.url,)))
    told = await client.simulate(approve_and_bond(client, rich, 10 * TOKEN), rich.address)
    assert not told.complete and [step.exact for step in told.steps] == [True, False]
    assert told.gas > 100_000


async def test_a_simulation_of_another_form_is_refused(
    people: Any, rich: NodeKey, meddler: Any, connect: Callable[..., ChainClient]
) -> None:
    client = connect(msgspec.structs.replace(people.client.profile, rpc_urls=(meddler.url,)))
    for nonsense in ([1], [{"calls": []}], [{"calls": [{}, {}]}], "x"):
        meddler.before["eth_simulateV1"] = {"result": nonsense}
        with pytest.raises(ChainError):
            await client.simulate(approve_and_bond(client, rich, TOKEN), rich.address)


async def test_a_single_step_tells_its_revert(people: Any) -> None:
    step = SimulatedStep("claim", people.client.contracts.claim(people.pool, people.node.address, 1, []))
    with pytest.raises(Reverted) as caught:
        await people.client.simulate([step], people.manager.address)
    assert caught.value.name == "NotMember"


async def test_taking_out_stake_that_nodes_need_says_what_would_be_left(people: Any) -> None:
    step = SimulatedStep("unbond stake", people.client.contracts.unbond(95 * TOKEN))
    with pytest.raises(Exception, match="5 tokens would be left") as caught:
        await people.client.simulate([step], people.provider.address)
    assert not isinstance(caught.value, InsufficientStake)


async def test_who_has_no_coin_is_told_the_cost(people: Any) -> None:
    step = SimulatedStep("mint test tokens", people.client.contracts.mint(people.manager.address, 1))
    with pytest.raises(InsufficientFunds, match="has 0 ETH"):
        await people.client.simulate([step], NodeKey.generate().address)


async def test_the_fee_for_data_on_the_layer_below_is_counted_where_there_is_one(
    people: Any, chain_rpc: Any, profile: NetworkProfile, connect: Callable[..., ChainClient]
) -> None:
    layered = connect(msgspec.structs.replace(profile, l1_fees=True))
    step = SimulatedStep("mint test tokens", layered.contracts.mint(people.manager.address, 1))
    assert (await layered.simulate([step], people.manager.address)).l1_fee == 0
    chain_rpc("anvil_setCode", GAS_PRICE_ORACLE, "0x61303960005260206000f3")  # returns 12345 whatever is asked
    told = await layered.simulate([step], people.manager.address)
    assert told.l1_fee == 12345 and told.cost == told.gas * told.fee + 12345
    assert (await people.client.simulate([step], people.manager.address)).l1_fee == 0
