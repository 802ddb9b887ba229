"""The contracts on chain have the code of the checked-in artifacts, whatever their constructors filled in."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from cli.contract.stake import approve_steps
from contracts import codes
from contracts.bindings import Contracts
from node.chain.client import ChainClient
from node.chain.errors import EndpointsDisagree, NotDeployed, OtherContracts
from node.chain.rpc import FallbackProvider
from node.preflight.chain import check_contracts
from tests.node.chain.chains import CHAIN_ID, with_contracts

SLOTS = [slot for slot in Contracts.SLOTS if slot != "token"]


@pytest.fixture
def fresh(people: Any, connect: Callable[..., ChainClient], meddler: Any) -> Callable[..., ChainClient]:
    """A client that has looked at nothing yet. meddled: by an endpoint that may lie; honest: true ones beside it."""

    def make(*, meddled: bool = False, honest: int = 1) -> ChainClient:
        true = people.client.profile.rpc_urls[0]
        urls = ((meddler.url,) if meddled else ()) + (true, true.replace("127.0.0.1", "localhost"))[:honest]
        return connect(msgspec.structs.replace(people.client.profile, rpc_urls=urls), people.node)

    return make


def code_of(chain_rpc: Any, chain: ChainClient, slot: str) -> tuple[str, bytearray]:
    place = getattr(chain.profile.contracts, slot)
    return place, bytearray(bytes.fromhex(chain_rpc("eth_getCode", place, "latest")[2:]))


async def test_what_was_deployed_has_our_code_though_its_immutables_are_its_own(fresh: Any, chain_rpc: Any) -> None:
    chain = fresh()
    await chain.connect()
    chain.require_own_code()
    for slot in SLOTS:
        wanted, places = codes.built(Contracts.SLOTS[slot])
        _, code = code_of(chain_rpc, chain, slot)
        assert bytes(code) != wanted and places, "the control: byte for byte it is not"
        assert codes.is_ours(slot, bytes(code))
    assert check_contracts(chain.profile, chain.other_code, chain.astray).level == "ok"


@pytest.mark.parametrize("slot", SLOTS)
@pytest.mark.parametrize("change", ["one bit", "one byte more", "one byte less", "another contract"])
async def test_a_contract_with_other_code_is_named_and_what_to_do(
    fresh: Any, chain_rpc: Any, slot: str, change: str
) -> None:
    chain = fresh()
    place, code = code_of(chain_rpc, chain, slot)
    if change == "one bit":
        code[len(code) - 40] ^= 1
    elif change == "another contract":
        code = code_of(chain_rpc, chain, "court" if slot == "chair" else "chair")[1]
    else:
        code = code + b"\0" if "more" in change else code[:-1]
    chain_rpc("anvil_setCode", place, "0x" + code.hex())
    assert not codes.is_ours(slot, bytes(code))
    await chain.connect()  # who has a stake here must get it out
    assert chain.other_code == (slot,)
    with pytest.raises(OtherContracts, match=f"^{slot} of the network|{slot}") as caught:
        chain.require_own_code()
    assert "contract source" in caught.value.remedy and "--verify" in caught.value.remedy
    finding = check_contracts(chain.profile, chain.other_code, chain.astray)
    assert finding.level == "failure" and slot in finding.what


async def test_an_answer_without_the_abis_form_names_the_contract_that_is_another(fresh: Any, chain_rpc: Any) -> None:
    chain = fresh()
    place, _ = code_of(chain_rpc, chain, "payroll")
    chain_rpc("anvil_setCode", place, "0x600160005260206000f3")  # answers each view with one word
    with pytest.raises(OtherContracts, match="payroll"):
        await chain.pool(1)


async def test_an_endpoint_that_runs_no_program_is_asked_for_the_code_itself(
    fresh: Any, chain_rpc: Any, meddler: Any
) -> None:
    meddler.rule = lambda request: (
        {"error": {"code": -32602, "message": "missing value for required argument: to"}}
        if request["method"] == "eth_call" and "to" not in request["params"][0]
        else None
    )
    chain = fresh(meddled=True, honest=0)
    await chain.connect()
    assert chain.other_code == ()
    place, code = code_of(chain_rpc, chain, "vault")
    code[100] ^= 1
    chain_rpc("anvil_setCode", place, "0x" + code.hex())
    chain = fresh(meddled=True, honest=0)
    await chain.connect()
    assert chain.other_code == ("vault",)


async def test_an_endpoint_that_hides_other_code_is_contradicted(fresh: Any, chain_rpc: Any, meddler: Any) -> None:
    """The control: alone it is believed."""
    chain = fresh()
    place, code = code_of(chain_rpc, chain, "payroll")
    true = chain_rpc("eth_call", {"data": "0x" + codes.program(chain.contracts.places()).hex()}, "latest")
    code[-1] ^= 1
    chain_rpc("anvil_setCode", place, "0x" + code.hex())
    meddler.rule = lambda request: (
        {"result": true} if request["method"] == "eth_call" and "to" not in request["params"][0] else None
    )
    alone = fresh(meddled=True, honest=0)
    await alone.connect()
    alone.require_own_code()
    with pytest.raises(EndpointsDisagree):
        await fresh(meddled=True, honest=1).connect()
    of_three = fresh(meddled=True, honest=2)
    await of_three.connect()
    with pytest.raises(OtherContracts):
        of_three.require_own_code()


@pytest.mark.parametrize("programs", [True, False], ids=["one question", "one by one"])
async def test_a_profile_that_names_a_contract_of_another_deployment_is_refused_though_its_code_is_ours(
    fresh: Any, meddler: Any, people: Any, connect: Callable[..., ChainClient], programs: bool
) -> None:
    """Whoever gives the profile has a vault of its own, with the same code: a stake that is put there is its."""
    if not programs:
        meddler.rule = lambda request: (
            {"error": {"code": -32602, "message": "missing value for required argument: to"}}
            if request["method"] == "eth_call" and "to" not in request["params"][0]
            else None
        )
    own = fresh(meddled=True, honest=0)
    profile, url = own.profile, people.client.profile.rpc_urls[0]
    provider = FallbackProvider([url], CHAIN_ID)
    try:
        others = await trio.to_thread.run_sync(
            partial(with_contracts, provider, url, "anvil_setBalance", min_window=10)
        )
    finally:
        provider.close()
    for slot in Contracts.SLOTS:
        mixed = msgspec.structs.replace(profile.contracts, **{slot: getattr(others.contracts, slot)})
        chain = connect(msgspec.structs.replace(profile, contracts=mixed), people.node)
        await chain.connect()
        assert chain.other_code == (), "the control: its code is ours"
        ties = {f"{one}.{slot}" for one, known in codes.TIES.items() if slot in known}
        assert ties <= set(chain.astray)
        with pytest.raises(OtherContracts, match="do not belong together"):
            chain.require_own_code()
        assert check_contracts(chain.profile, (), chain.astray).level == "failure"
        for put_in in (chain.bond(people.node.address, 1), approve_steps(chain, people.node.address, mixed.vault, 1)):
            with pytest.raises(OtherContracts):
                await put_in
    await own.connect()
    assert own.astray == ()


async def test_where_there_is_no_code_that_is_told_as_before(fresh: Any, chain_rpc: Any) -> None:
    chain = fresh()
    chain_rpc("anvil_setCode", chain.profile.contracts.swarm, "0x")
    with pytest.raises(NotDeployed, match="swarm"):
        await chain.connect()
