from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.statements import Outcome, WorkCommitment, work_id
from protocol.work import (
    EMPTY_ROOT,
    MAX_LEAVES,
    MAX_LEAVES_BYTES,
    EpochFault,
    Leaf,
    checked_leaves,
    decode_leaves,
    encode_leaves,
    leaf_hash,
    merkle_root,
    proof,
    tree_of,
    verify,
)

POOL, POLICY = 3, b"\x0a" * 32
NODE = NodeKey(b"\x05" * 32).address
leaves = st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=40, unique=True)


@given(leaves)
def test_every_leaf_proves_itself_and_nothing_else(items: list[bytes]) -> None:
    root = merkle_root(items)
    for index, item in enumerate(items):
        assert verify(root, item, proof(items, index))
        assert not verify(root, bytes(32), proof(items, index)) or item == bytes(32)


@given(leaves)
def test_an_inner_node_cannot_pass_for_a_leaf(items: list[bytes]) -> None:
    made = [leaf_hash(item) for item in items]
    assert merkle_root(made) not in made or len(made) == 1


def test_a_leaf_names_everything_that_was_signed() -> None:
    leaf, other = Leaf(POLICY, 0, b"\x01" * 32, 100), NodeKey(b"\x06" * 32).address
    commitment = WorkCommitment(POOL, NODE, POLICY, 0, b"\x01" * 32, 100)
    assert tree_of(POOL, NODE, [leaf]) == [leaf_hash(work_id(commitment))]
    others = [Leaf(b"\x0b" * 32, 0, b"\x01" * 32, 100), Leaf(POLICY, 1, b"\x01" * 32, 100)]
    others += [Leaf(POLICY, 0, b"\x02" * 32, 100), Leaf(POLICY, 0, b"\x01" * 32, 101)]
    hashes = {*tree_of(POOL, NODE, [leaf, *others]), *tree_of(POOL + 1, NODE, [leaf]), *tree_of(POOL, other, [leaf])}
    assert len(hashes) == 7


def test_the_leaf_of_a_work_is_what_the_contracts_were_built_with() -> None:
    leaf = Leaf(POLICY, 7, b"\x01" * 32, 961)
    assert tree_of(POOL, NODE, [leaf])[0].hex() == "6275f582724c7fc3d34acbf8862ea536d932f353b997f6e792bc9a99bc223b3b"


def test_no_work_has_the_empty_root() -> None:
    assert merkle_root([]) == EMPTY_ROOT


def test_published_leaves_are_read_back_only_if_they_make_the_root_on_chain() -> None:
    made = (Leaf(POLICY, 0, b"\x01" * 32, 100), Leaf(POLICY, 1, b"\x02" * 32, 7))
    root = merkle_root(tree_of(POOL, NODE, made))
    assert checked_leaves(POOL, NODE, root, encode_leaves(made)) == made
    for other in (made[:1], made[::-1][:1], (Leaf(POLICY, 0, b"\x01" * 32, 101), made[1])):
        with pytest.raises(ProtocolError, match="do not hash"):
            checked_leaves(POOL, NODE, root, encode_leaves(other))
    with pytest.raises(ProtocolError, match="do not hash"):
        checked_leaves(POOL + 1, NODE, root, encode_leaves(made))


@pytest.mark.parametrize("units", [100, 101])
def test_two_leaves_for_one_place_are_refused_even_if_they_make_the_root(units: int) -> None:
    made = [Leaf(POLICY, 0, b"\x01" * 32, 100), Leaf(POLICY, 0, b"\x01" * 32, units)]
    with pytest.raises(ProtocolError, match="one place"):
        checked_leaves(POOL, NODE, merkle_root(tree_of(POOL, NODE, made)), encode_leaves(made))


ROOT = b"\x01" * 32
MALFORMED = [
    [[POLICY, 0, b"\x01" * 31, 1]],
    [[b"", 0, ROOT, 1]],
    [[POLICY, 0, ROOT, 1 << 32]],
    [[POLICY, 0, ROOT, -1]],
    [[POLICY, 1 << 63, ROOT, 1]],
    [[POLICY, -1, ROOT, 1]],
    [[POLICY, 0, ROOT]],
    [[POLICY, 0, ROOT, 1, 1]],
    [[POLICY, 0, ROOT, 1.0]],
    [[ROOT, 1]],
    [7],
    {},
]


@pytest.mark.parametrize("leaves", MALFORMED)
def test_malformed_leaves_are_refused(leaves: Any) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        checked_leaves(POOL, NODE, bytes(32), msgspec.msgpack.encode(leaves))


def test_as_many_leaves_as_may_be_are_read_whatever_their_numbers_and_no_more() -> None:
    widest = [Leaf(POLICY, 2**63 - 1 - i, ROOT, 2**32 - 1) for i in range(MAX_LEAVES + 1)]
    data = encode_leaves(widest[:MAX_LEAVES])
    assert len(data) <= MAX_LEAVES_BYTES and len(decode_leaves(data)) == MAX_LEAVES
    with pytest.raises(ProtocolError, match="malformed"):
        decode_leaves(encode_leaves([Leaf(POLICY, i, ROOT, 1) for i in range(MAX_LEAVES + 1)]))


def test_what_a_node_signed_costs_its_stake_and_what_others_did_not_get_only_the_pay() -> None:
    costs = {fault.name: fault.outcome for fault in EpochFault}
    assert costs.pop("UNDELIVERED") is costs.pop("UNHEARD") is Outcome.REJECT
    assert set(costs.values()) == {Outcome.SLASH}
