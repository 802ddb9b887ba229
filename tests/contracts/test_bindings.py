"""What Python and Solidity must agree on, and what hostile logs may not do."""

from typing import Any

import msgspec
import pytest
from eth_abi.abi import encode as abi_encode
from web3 import Web3

from contracts.bindings import (
    NOBODY,
    ChainEvent,
    ContractError,
    Contracts,
    Joined,
    PoolCreated,
    PoolEvent,
    artifact,
    function_forms,
    parse_log,
    parse_revert,
    raw_log,
    topic_of,
    write,
)
from protocol.statements import _FIELDS, type_string
from tests.contracts.conftest import WINDOW, Refused


def test_the_domain_is_the_same_on_both_sides(world: Any) -> None:
    assert world.domain.separator() == world.contracts.view("swarm", "domainSeparator")


def test_the_type_strings_are_the_same_on_both_sides() -> None:
    from contracts.bindings import ARTIFACTS

    source = (ARTIFACTS.parent / "src" / "Statements.sol").read_text()
    for kind in _FIELDS:
        assert f'"{type_string(kind)}"' in source


def sample(part: Any) -> Any:
    """A value of the type that an ABI names."""
    if part["type"].endswith("]"):
        return [sample({**part, "type": part["type"].partition("[")[0]})] * 2
    if part["type"] == "tuple":
        return tuple(sample(each) for each in part["components"])
    plain = {"address": "0x" + "77" * 20, "bool": True, "string": "text", "bytes": b"odd", "bytes32": b"\x05" * 32}
    return plain.get(part["type"], 3)


@pytest.mark.parametrize("contract", Contracts.SLOTS.values())
def test_a_call_is_written_as_web3_writes_it(contract: str) -> None:
    theirs = Web3().eth.contract(abi=artifact(contract)["abi"])
    functions = [entry for entry in artifact(contract)["abi"] if entry["type"] == "function"]
    assert len(functions) == len(function_forms(contract))
    for entry in functions:
        given = [sample(part) for part in entry["inputs"]]
        assert "0x" + write(NOBODY, contract, entry["name"], *given).data.hex() == theirs.encode_abi(
            entry["name"], args=given
        )


@pytest.mark.parametrize("given", [(5, bytes(31)), (5, bytes(33)), (-1, bytes(32)), (2**256, bytes(32)), (5, "r" * 32)])
def test_what_a_function_does_not_take_is_an_error_and_no_other_call(given: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="setPoolRun of Swarm does not take this"):
        write(NOBODY, "Swarm", "setPoolRun", *given)
    with pytest.raises(ValueError, match="does not take this"):
        write(NOBODY, "Swarm", "setPoolRun", 5)
    assert len(write(NOBODY, "Swarm", "setPoolRun", 5, bytes(32)).data) == 4 + 64, "the control"


def test_the_epochs_are_the_same_on_both_sides(world: Any, pool: Any) -> None:
    info = pool.info
    for epoch in (0, 1, 123):
        with pytest.raises(Refused) as caught:
            pool.post(epoch, bytes(32), 0, at=world.now() + 1)
        assert caught.value.revert is not None and caught.value.revert.name == "NotMature", caught.value
        assert caught.value.revert.args["mature_at"] == info.maturity(epoch) == info.epoch_end(epoch) + WINDOW
    assert [info.epoch_at(info.started_at + after) for after in (-9, 0, 99, 100, 12_345)] == [0, 0, 0, 1, 123]


def test_every_event_of_the_contracts_is_known_with_all_that_it_says() -> None:
    told = {
        entry["name"]: len(entry["inputs"])
        for contract in set(Contracts.SLOTS.values()) - {"TestToken"}
        for entry in artifact(contract)["abi"]
        if entry["type"] == "event"
    }
    kinds = [kind for family in (ChainEvent, PoolEvent) for kind in family.__subclasses__() if kind is not PoolEvent]
    place = len(ChainEvent.__struct_fields__)
    known = {kind.__name__: len(kind.__struct_fields__) - place for kind in kinds}
    births = {"SwarmSet", "CourtSet"}  # what the deployer sets once; no daemon follows them
    assert {name: parts for name, parts in told.items() if name not in births} == known


def test_a_new_pool_tells_all_its_terms(world: Any) -> None:
    opener, manager, guardian = world.person(), world.person(), world.person()
    terms = {"run_uri": "https://run", "requirement_root": b"\x44" * 32, "bootnodes": ("/ip4/1.2.3.4/tcp/1", "/dns/b")}
    terms |= {"delay": WINDOW // 3, "invited": True, "attested": True, "guardian": guardian.address}
    params = world.params(manager, world.validators(2), **terms, threshold=2)
    created = world.events(world.send(world.contracts.create_pool(params), opener))[0]
    assert isinstance(created, PoolCreated)
    assert (created.manager, created.opener, created.params) == (manager.address, opener.address, params)


def joined(world: Any, pool: Any) -> Any:
    receipt = world.send(world.contracts.join(pool.id, "contact"), pool.node)
    return raw_log(receipt["logs"][0])


def test_a_log_of_another_contract_is_not_ours(world: Any, pool: Any) -> None:
    log = joined(world, pool)
    assert isinstance(parse_log(log, world.contracts.addresses), Joined)
    moved = msgspec.structs.replace(log, address=world.contracts.addresses.token)
    assert parse_log(moved, world.contracts.addresses) is None


def test_a_contact_that_is_no_text_does_not_hide_its_member(world: Any, pool: Any) -> None:
    data = abi_encode(["bytes", "uint64"], [b"\xff\xfe", 7])
    event = parse_log(msgspec.structs.replace(joined(world, pool), data=data), world.contracts.addresses)
    assert isinstance(event, Joined) and event.contact == "\ufffd\ufffd" and event.node == pool.node.address


@pytest.mark.parametrize(
    "changes",
    [{"data": b""}, {"data": b"\xff" * 640}, {"data": bytes(20_000)}, {"topics": (topic_of(Joined),)}],
)
def test_a_log_that_breaks_its_form_is_refused(world: Any, pool: Any, changes: dict[str, Any]) -> None:
    broken = msgspec.structs.replace(joined(world, pool), **changes)
    with pytest.raises(ContractError):
        parse_log(broken, world.contracts.addresses)


def test_a_log_in_hex_is_the_log_that_web3_would_make_of_it() -> None:
    plain = {
        "address": "0x" + "11" * 20,
        "topics": [b"\x01" * 32, b"\x02" * 32],
        "data": b"\x03\x04",
        "blockNumber": 300,
        "blockHash": b"\x05" * 32,
        "transactionHash": b"\x06" * 32,
        "logIndex": 7,
    }
    hexed = {
        "address": plain["address"],
        "topics": ["0x" + "01" * 32, "0x" + "02" * 32],
        "data": "0x0304",
        "blockNumber": "0x12c",
        "blockHash": "0x" + "05" * 32,
        "transactionHash": "0x" + "06" * 32,
        "logIndex": "0x7",
    }
    assert raw_log(hexed) == raw_log(plain)
    for broken in ({"data": "0xzz"}, {"blockNumber": "many"}, {"topics": ["0x01"]}, {"address": "0x11"}):
        with pytest.raises(ContractError):
            raw_log(hexed | broken)


def test_unknown_revert_data_is_none() -> None:
    for data in (b"", b"\x00" * 4, bytes.fromhex("b08b5180"), b"\xff" * 40_000):
        assert parse_revert(data) is None
