"""Work units and the Merkle tree of one node's files in one epoch.

One root per node and epoch goes on chain; a leaf can be shown with its proof when it is disputed. What the leaves are
made of is published as a blob beside the root. Leaves and inner nodes hash under different prefixes, so neither can
pass for the other.
"""

from collections.abc import Sequence

import msgspec
from eth_hash.auto import keccak

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes
from protocol.run import RunSpec

EMPTY_ROOT = bytes(32)
MAX_LEAVES = 65_536
MAX_LEAVES_BYTES = 48 * MAX_LEAVES

Leaf = tuple[bytes, int]
"""(file root, units): what a leaf of the tree is made of, beside its node."""


def leaf(node: Address, file_root: bytes, units: int) -> bytes:
    """keccak(0x00 | node | file_root | units as uint32 big-endian)."""
    return keccak(b"\x00" + address_bytes(node) + file_root + units.to_bytes(4))


def _parent(left: bytes, right: bytes) -> bytes:
    return keccak(b"\x01" + min(left, right) + max(left, right))


def _level_up(level: Sequence[bytes]) -> list[bytes]:
    pairs = [_parent(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
    return pairs + list(level[len(level) - len(level) % 2 :])


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root over the leaves in order; an odd one is carried up unchanged; 32 zero bytes for none."""
    if not leaves:
        return EMPTY_ROOT
    level = list(leaves)
    while len(level) > 1:
        level = _level_up(level)
    return level[0]


def proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings from leaf `index` up to the root."""
    path: list[bytes] = []
    level = list(leaves)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(level[sibling])
        level, index = _level_up(level), index // 2
    return tuple(path)


def verify(root: bytes, leaf_hash: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` leads from the leaf to the root."""
    current = leaf_hash
    for sibling in path:
        current = _parent(current, sibling)
    return current == root


def most_files(run: RunSpec) -> int:
    """Submissions that one node may make for one policy: eight times what a whole step needs, and some.

    More than that nobody can use, and whoever commits to more only fills other people's tables.
    """
    return 8 * run.rollout.files_per_step + 32


def tree_of(node: Address, leaves: Sequence[Leaf]) -> list[bytes]:
    """The tree's leaves: the hash of each, in order."""
    return [leaf(node, root, units) for root, units in leaves]


def encode_leaves(leaves: Sequence[Leaf]) -> bytes:
    """The blob that a worker publishes beside an epoch's root."""
    return msgspec.msgpack.encode(list(leaves))


def decode_leaves(data: bytes) -> tuple[Leaf, ...]:
    """Parse a stranger's leaves; raises ProtocolError."""
    what = "malformed leaves"
    leaves = decode_msgpack(data, list[Leaf], limit=MAX_LEAVES_BYTES, error=ProtocolError, what=what)
    if len(leaves) > MAX_LEAVES or any(len(root) != 32 or not 0 <= units < 1 << 32 for root, units in leaves):
        raise ProtocolError(what, "too many, or a root or number of units out of range")
    return tuple(leaves)


def checked_leaves(node: Address, epoch_root: bytes, data: bytes) -> tuple[Leaf, ...]:
    """The leaves of an epoch; raises ProtocolError if they are malformed or not those of its root."""
    leaves = decode_leaves(data)
    if merkle_root(tree_of(node, leaves)) != epoch_root:
        raise ProtocolError("wrong leaves", "they do not hash to the epoch's root")
    return leaves
