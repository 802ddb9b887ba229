from typing import Any

from contracts.bindings import NodeRegistered, NodeReleased, NodeRemoved
from contracts.deploy import TOKEN
from protocol.identity import NodeKey
from protocol.statements import Domain
from tests.contracts.conftest import UNBONDING

CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def high_s(signature: bytes) -> bytes:
    """The second encoding of the same signature: s negated, v flipped."""
    s = CURVE_ORDER - int.from_bytes(signature[32:64])
    return signature[:32] + s.to_bytes(32) + bytes([55 - signature[64]])


def test_a_provider_registers_a_node_that_consents(world: Any) -> None:
    provider, node = world.provider(160 * TOKEN), NodeKey.generate()
    receipt = world.register(provider, node, units=3)
    (event,) = world.events(receipt)
    assert isinstance(event, NodeRegistered)
    assert (event.provider, event.node, event.units) == (provider.address, node.address, 3)
    info = world.contracts.node_info(node.address)
    assert (info.provider, info.units, info.nonce) == (provider.address, 3, 1)
    assert world.contracts.required_stake(provider.address) == 160 * TOKEN
    assert world.contracts.view("swarm", "requiredStake", provider.address) == 160 * TOKEN


def test_a_node_is_not_its_own_provider(world: Any, refused: Any) -> None:
    provider = world.provider()
    with refused("NodeIsProvider"):
        world.register(provider, provider)


def test_a_node_has_one_provider(world: Any, refused: Any) -> None:
    first, second, node = world.provider(), world.provider(), NodeKey.generate()
    world.register(first, node)
    for provider in (first, second):
        with refused("NodeTaken"):
            world.register(provider, node)


def test_units_are_bounded(world: Any, refused: Any) -> None:
    provider = world.provider()
    for units in (0, 1_000_001):
        with refused("UnitsOutOfRange"):
            world.register(provider, NodeKey.generate(), units)


def test_the_stake_must_cover_all_nodes_of_a_provider(world: Any, refused: Any) -> None:
    provider = world.provider(160 * TOKEN)
    world.register(provider, NodeKey.generate(), units=2)
    with refused("StakeTooLow"):
        world.register(provider, NodeKey.generate(), units=2)
    world.register(provider, NodeKey.generate(), units=1)


def test_unbonding_stake_covers_no_node(world: Any, refused: Any) -> None:
    provider = world.provider(60 * TOKEN)
    world.send(world.contracts.unbond(1), provider)
    with refused("StakeTooLow"):
        world.register(provider, NodeKey.generate())


def test_a_consent_expires(world: Any, refused: Any) -> None:
    provider, node = world.provider(), NodeKey.generate()
    deadline, signature = world.consent(provider.address, node)
    call = world.contracts.register_node(node.address, 1, deadline, signature)
    with refused("SignatureExpired"):
        world.send(call, provider, at=deadline + 1)


def test_a_consent_holds_at_its_deadline(world: Any) -> None:
    provider, node = world.provider(), NodeKey.generate()
    deadline, signature = world.consent(provider.address, node)
    world.send(world.contracts.register_node(node.address, 1, deadline, signature), provider, at=deadline)


def test_a_consent_is_for_one_provider_units_nonce_chain_and_contract(world: Any, refused: Any) -> None:
    provider, other, node = world.provider(), world.provider(), NodeKey.generate()
    contract = world.contracts.addresses.swarm
    wrong = [
        world.consent(other.address, node),
        world.consent(provider.address, node, 2),
        world.consent(provider.address, node, nonce=1),
        world.consent(provider.address, node, domain=Domain(1, contract)),
        world.consent(provider.address, node, domain=Domain(31337, world.contracts.addresses.vault)),
        world.consent(provider.address, NodeKey.generate()),
    ]
    for deadline, signature in wrong:
        with refused("WrongSigner"):
            world.send(world.contracts.register_node(node.address, 1, deadline, signature), provider)


def test_a_consent_is_good_for_one_registration(world: Any, refused: Any) -> None:
    provider, node = world.provider(), NodeKey.generate()
    deadline, signature = world.consent(provider.address, node)
    call = world.contracts.register_node(node.address, 1, deadline, signature)
    world.send(call, provider)
    world.send(world.contracts.remove_node(node.address), provider)
    with refused("WrongSigner"):
        world.send(call, provider)


def test_a_malleated_or_malformed_consent_is_refused(world: Any, refused: Any) -> None:
    provider, node = world.provider(), NodeKey.generate()
    deadline, signature = world.consent(provider.address, node)
    with refused("ECDSAInvalidSignatureS"):
        world.send(world.contracts.register_node(node.address, 1, deadline, high_s(signature)), provider)
    with refused("ECDSAInvalidSignatureLength"):
        world.send(world.contracts.register_node(node.address, 1, deadline, signature[:64]), provider)


def test_a_removed_node_frees_its_share_of_the_stake_once_it_need_not_answer(world: Any, refused: Any) -> None:
    contracts, provider, node, other = world.contracts, world.provider(260 * TOKEN), NodeKey.generate(), world.person()
    world.register(provider, node, units=5)
    with refused("NotYourNode"):
        world.send(contracts.remove_node(node.address), world.person())
    receipt = world.send(contracts.remove_node(node.address), provider)
    (removed,) = world.events(receipt)
    info = contracts.node_info(node.address)
    assert isinstance(removed, NodeRemoved) and removed.free_at == info.free_at == world.now() + UNBONDING
    assert (info.provider, info.units, contracts.leaving_units(provider.address)) == (None, 5, 5)
    assert contracts.required_stake(provider.address) == 0
    assert contracts.required_stake(provider.address, 1) == 310 * TOKEN, "one more, beside what leaves"
    assert contracts.required_stake(provider.address, 5, node.address) == 260 * TOKEN, "the same again"
    for again, name in (
        (contracts.remove_node(node.address), "NodeUnknown"),
        (contracts.release([node.address]), "NodeStillAnswers"),
    ):
        with refused(name):
            world.send(again, provider)
    with refused("StakeTooLow"):
        world.register(provider, other)
    receipt = world.send(contracts.release([node.address]), other, at=info.free_at)
    (released,) = world.events(receipt)
    assert isinstance(released, NodeReleased) and (released.node, released.units) == (node.address, 5)
    assert contracts.node_info(node.address).units == contracts.leaving_units(provider.address) == 0
    world.register(provider, other, units=5)


def test_a_slash_is_of_each_unit_of_the_node(world: Any, pool: Any) -> None:
    world.send(world.contracts.remove_node(pool.node.address), pool.provider)
    world.put_up(pool.provider, 10 * TOKEN)
    world.send(world.contracts.bond(pool.provider.address, 10 * TOKEN), pool.provider)
    world.register(pool.provider, pool.node, units=2)
    world.send(world.contracts.join(pool.id, "x"), pool.node)
    assert world.contracts.slash_of(pool.id, pool.node.address) == 100 * TOKEN
    pool.slash(pool.commitment(), pool.manager)
    assert (world.contracts.case(1).amount, world.contracts.case(1).bond) == (100 * TOKEN, 25 * TOKEN)
