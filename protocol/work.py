"""Work units and the Merkle tree of one node's files in one epoch.

One root per node and epoch goes on chain; a leaf can be shown with its proof when it is disputed. A leaf names one
work, all that was signed of it, so that no two readers can think of different work. What the leaves are made of is
published as a blob beside the root. Leaves and inner nodes hash under different prefixes, so neither can pass for the
other.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated

import msgspec
from eth_hash.auto import keccak

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address
from protocol.run import RunSpec
from protocol.statements import Outcome, Verdict, WorkCommitment, work_id

EMPTY_ROOT = bytes(32)
MAX_LEAVES = 65_536
MAX_LEAVES_BYTES = 84 * MAX_LEAVES
"""Two roots of 34 bytes, numbers of 9 and 5, and the array around each leaf and around all of them."""

Root = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Leaf(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one leaf says beside the tree's pool and node: the work's place, its file, its units (a worker's are output
    tokens). For judging and training see `judgement_leaf` and `policy_leaf`."""

    policy_root: Root
    index: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    file_root: Root
    units: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class EpochFault(IntEnum):
    """Why an epoch's commitment is refused as a whole; on chain the reason of an EpochVerdict."""

    INVENTED = 20
    """a leaf that no quorum accepted"""
    UNITS = 21
    """the units are not the sum of the leaves'"""
    TWICE = 22
    """a work that stands in another epoch, too"""
    UNDELIVERED = 23
    """the leaves were not to be had, or were none of the root's"""
    UNHEARD = 24
    """a leaf for judging or training of which nobody heard in time, though the work or the policy exists"""

    @property
    def outcome(self) -> Outcome:
        """What it costs: who signs an untrue root loses the stake; who hides what stands behind it, or counts what the
        others did not hear (which gossip may have lost), that epoch's pay."""
        return Outcome.REJECT if self in (EpochFault.UNDELIVERED, EpochFault.UNHEARD) else Outcome.SLASH


def commitment_of(pool: int, node: Address, leaf: Leaf) -> WorkCommitment:
    """What the node must have signed for this leaf to be its work."""
    return WorkCommitment(pool, node, leaf.policy_root, leaf.index, leaf.file_root, leaf.units)


def judgement_leaf(run: RunSpec, verdict: Verdict, checked: int, groups: int) -> Leaf:
    """What a validator is paid for a verdict: it names the judged work where a worker's leaf names a file.

    checked: groups that it recomputed, of `groups`. Units: judging * tokens * the paid share of the groups, rounded
    down.
    """
    id = work_id(verdict)
    paid = min(checked / groups, run.pay.judged_share)
    return Leaf(verdict.policy_root, int.from_bytes(id[:8]) >> 1, id, int(run.pay.judging * verdict.units * paid))


def policy_leaf(run: RunSpec, step: int, policy_root: bytes) -> Leaf:
    """What the trainer is paid for a policy: a leaf whose file is the policy itself."""
    rollout = run.rollout
    most = rollout.prompts_per_step * rollout.group_size * rollout.max_output_tokens
    return Leaf(policy_root, step, policy_root, min(int(run.pay.training * most), 2**32 - 1))


def leaf_hash(work: bytes) -> bytes:
    """keccak(0x00 | work): the leaf of the work of this `work_id`."""
    return keccak(b"\x00" + work)


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


def works_of(pool: int, node: Address, leaves: Sequence[Leaf]) -> list[bytes]:
    """The `work_id` that each leaf names, in order."""
    return [work_id(commitment_of(pool, node, leaf)) for leaf in leaves]


def tree_of(pool: int, node: Address, leaves: Sequence[Leaf]) -> list[bytes]:
    """The tree's leaves: the hash of each, in order."""
    return [leaf_hash(work) for work in works_of(pool, node, leaves)]


def encode_leaves(leaves: Sequence[Leaf]) -> bytes:
    """The blob that a worker publishes beside an epoch's root."""
    return msgspec.msgpack.encode(list(leaves))


def decode_leaves(data: bytes) -> tuple[Leaf, ...]:
    """Parse a stranger's leaves; raises ProtocolError, also if two of them stand for one place of a policy."""
    what = "malformed leaves"
    leaves = decode_msgpack(data, list[Leaf], limit=MAX_LEAVES_BYTES, error=ProtocolError, what=what)
    if len(leaves) > MAX_LEAVES:
        raise ProtocolError(what, f"{len(leaves)} are more than {MAX_LEAVES}")
    if len({(leaf.policy_root, leaf.index) for leaf in leaves}) != len(leaves):
        raise ProtocolError("doubled leaves", "two of them stand for one place of a policy")
    return tuple(leaves)


def checked_leaves(pool: int, node: Address, epoch_root: bytes, data: bytes) -> tuple[Leaf, ...]:
    """The leaves of an epoch; raises ProtocolError if they are malformed, doubled or not those of its root."""
    leaves = decode_leaves(data)
    if merkle_root(tree_of(pool, node, leaves)) != epoch_root:
        raise ProtocolError("wrong leaves", "they do not hash to the epoch's root")
    return leaves
