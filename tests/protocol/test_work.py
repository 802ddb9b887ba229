import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.work import EMPTY_ROOT, checked_leaves, encode_leaves, leaf, merkle_root, proof, tree_of, verify

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
    made = [leaf(NODE, item, 1) for item in items]
    assert merkle_root(made) not in made or len(made) == 1


def test_units_and_node_are_part_of_the_leaf() -> None:
    other = NodeKey(b"\x06" * 32).address
    assert len({leaf(NODE, bytes(32), 1), leaf(NODE, bytes(32), 2), leaf(other, bytes(32), 1)}) == 3


def test_no_work_has_the_empty_root() -> None:
    assert merkle_root([]) == EMPTY_ROOT


def test_published_leaves_are_read_back_only_if_they_make_the_root_on_chain() -> None:
    made = ((b"\x01" * 32, 100), (b"\x02" * 32, 7))
    root = merkle_root(tree_of(NODE, made))
    assert checked_leaves(NODE, root, encode_leaves(made)) == made
    for other in (made[:1], made[::-1] * 2, ((b"\x01" * 32, 101), made[1])):
        with pytest.raises(ProtocolError, match="do not hash"):
            checked_leaves(NODE, root, encode_leaves(other))


@pytest.mark.parametrize(
    "leaves", [[(b"\x01" * 31, 1)], [(b"\x01" * 32, 1 << 32)], [(b"\x01" * 32, -1)], [(b"", 0)] * 65_537]
)
def test_malformed_leaves_are_refused(leaves: list[tuple[bytes, int]]) -> None:
    with pytest.raises(ProtocolError, match="malformed"):
        checked_leaves(NODE, bytes(32), encode_leaves(leaves))
