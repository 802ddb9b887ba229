"""What counts for pay: certified works, the table of everybody's units, and its Merkle tree.

A node shows its certificates as a blob; validators check the signatures, and compute from the union of what all nodes
show a table: node -> units since the pool began. Equal inputs give equal tables, byte for byte. The table names the
blobs that it was made of and the works that it leaves out, with the proof, so that whoever came to another table can
fetch what it lacks. Leaves and inner nodes of the tree hash under different prefixes: neither can pass for the other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
from eth_hash.auto import keccak

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes, address_from_bytes
from protocol.run import RunSpec
from protocol.statements import Accepted, Rechecked, Verdict, WorkCommitment, work_id

EMPTY_ROOT = bytes(32)
# Far beyond what a node makes in an epoch; it bounds how many signatures a stranger's blob makes us check.
MAX_WORKS = 65_536
"""Works of one node in one epoch that a blob may name."""
MAX_SHOWN_BYTES = 16 * 2**20
MAX_LINES = 16_384
MAX_SOURCES = 65_536
MAX_REFUSALS = 4_096
MAX_TABLE_BYTES = 16 * 2**20
MAX_SIGNATURES = 16
"""Of one work: a pool has no more validators."""

Word = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, msgspec.Meta(min_length=65, max_length=65)]
Name = Annotated[bytes, msgspec.Meta(min_length=20, max_length=20)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Signatures = Annotated[tuple[Signature, ...], msgspec.Meta(max_length=MAX_SIGNATURES)]

# what is paid


def of_file(commitment: WorkCommitment) -> Accepted:
    """A worker's file that was accepted."""
    return Accepted(commitment.pool, commitment.node, commitment.epoch, work_id(commitment), commitment.units)


def of_judgement(run: RunSpec, validator: Address, verdict: Verdict, checked: int, groups: int) -> Accepted:
    """A validator's verdict that was decided as said; checked: groups that it recomputed, of `groups`.

    Units: judging * tokens * the paid share of the groups, rounded down. The work's id names the judged work where a
    file's names the file, and no units: one judgement is one work, whatever is said of its size.
    """
    id = work_id(verdict)
    # Capped: a validator that recomputes everything in every file would else be paid without end for work that nobody
    # asked.
    paid = min(checked / groups, run.pay.judged_share)
    # Shifted by one bit: an index stays below 2^63, which is what SQLite and readers of JSON can hold.
    place = (verdict.policy_root, int.from_bytes(id[:8]) >> 1, id, 0, verdict.epoch)
    work = work_id(WorkCommitment(verdict.pool, validator, *place))
    return Accepted(verdict.pool, validator, verdict.epoch, work, int(run.pay.judging * verdict.units * paid))


def of_policy(run: RunSpec, pool: int, trainer: Address, step: int, root: bytes, epoch: int) -> Accepted:
    """A trainer's policy for which enough was accepted: a work whose file is the policy itself."""
    units = policy_units(run)
    return Accepted(pool, trainer, epoch, work_id(WorkCommitment(pool, trainer, root, step, root, units, epoch)), units)


def policy_units(run: RunSpec) -> int:
    """What a policy is paid."""
    rollout = run.rollout
    most = rollout.prompts_per_step * rollout.group_size * rollout.max_output_tokens
    return min(int(run.pay.training * most), 2**32 - 1)


def contribution_units(run: RunSpec, learnt: int) -> int:
    """What a contribution to a round is paid. learnt: tokens of text, or rollouts: of these as much as a policy that is
    learnt from so many."""
    return min(int(run.pay.training * learnt * run.rollout.max_output_tokens), 2**32 - 1) if run.seats else learnt


def most_files(run: RunSpec) -> int:
    """Submissions that one node may make for one policy: eight times what everybody learns from it, and some; one
    contribution a round.

    More than that nobody can use, and whoever commits to more only fills other people's tables.
    """
    return 1 if run.pretraining is not None else 8 * run.files_per_policy + 32


# what a node shows


class ShownWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One work with the signatures that its node has: of Accepted, by different validators."""

    work: Word
    units: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]
    signatures: Signatures


class Shown(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All that one node shows of one epoch, by rising work."""

    node: Name
    epoch: Epoch
    works: Annotated[tuple[ShownWork, ...], msgspec.Meta(max_length=MAX_WORKS)]

    def statement(self, pool: int, work: ShownWork) -> Accepted:
        """What the signatures of a work are of."""
        return Accepted(pool, address_from_bytes(self.node), self.epoch, work.work, work.units)


def encode_certificates(node: Address, epoch: int, works: Iterable[ShownWork]) -> bytes:
    """The blob that a node shows of an epoch."""
    # One order, so that the same certificates are the same blob, whoever shows them.
    ordered = sorted(works, key=lambda one: one.work)[:MAX_WORKS]
    return msgspec.msgpack.encode(Shown(address_bytes(node), epoch, tuple(ordered)))


def decode_certificates(data: bytes, node: Address, epoch: int) -> Shown:
    """Parse what a stranger shows; raises ProtocolError, also where it is another node's, another epoch's or doubled.
    Checks no signature."""
    what = "malformed certificates"
    shown = decode_msgpack(data, Shown, limit=MAX_SHOWN_BYTES, error=ProtocolError, what=what)
    if shown.node != address_bytes(node) or shown.epoch != epoch:
        raise ProtocolError(what, "they are another node's or another epoch's")
    # Strictly rising: one comparison finds both a wrong order and a work that is shown twice.
    if any(one.work >= two.work for one, two in zip(shown.works, shown.works[1:], strict=False)):
        raise ProtocolError(what, "the works are doubled or not in order")
    return shown


# the table


class Source(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """A blob of certificates that went into a table. node: 20 bytes; root, size: of the blob."""

    epoch: Epoch
    node: Name
    root: Word
    size: Annotated[int, msgspec.Meta(gt=0, le=MAX_SHOWN_BYTES)]


class Said(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One validator's signed word against a work; rechecked: found in a dispute."""

    outcome: Annotated[int, msgspec.Meta(ge=1, le=2)]
    reason: Annotated[int, msgspec.Meta(ge=0, le=255)]
    values: Word
    rechecked: bool
    signature: Signature


class Refusal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Why a certified work counts no more: a quorum refused it before its window was over. commitment: its fields
    behind the pool."""

    node: Name
    policy_root: Word
    index: Epoch
    file_root: Word
    units: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    epoch: Epoch
    said: Annotated[tuple[Said, ...], msgspec.Meta(max_length=MAX_SIGNATURES)]

    def statements(self, pool: int) -> list[tuple[Verdict, bytes]]:
        """(what was signed, its signature)."""
        place = (pool, address_from_bytes(self.node), self.policy_root, self.index, self.file_root, self.units)
        return [
            (
                (Rechecked if one.rechecked else Verdict)(*place, one.outcome, one.reason, self.epoch, one.values),
                one.signature,
            )
            for one in self.said
        ]

    def work(self, pool: int) -> bytes:
        """The work's id."""
        place = (self.policy_root, self.index, self.file_root, self.units, self.epoch)
        return work_id(WorkCommitment(pool, address_from_bytes(self.node), *place))


def refusal_of(said: Sequence[tuple[Verdict, bytes]]) -> Refusal:
    """The proof that a quorum refused a work, of signed verdicts about it (at least one)."""
    verdict = said[0][0]
    kept = [Said(v.outcome, v.reason, v.values, isinstance(v, Rechecked), signature) for v, signature in said]
    place = (verdict.policy_root, verdict.index, verdict.file_root, verdict.units, verdict.epoch)
    return Refusal(address_bytes(verdict.node), *place, tuple(kept[:MAX_SIGNATURES]))


class Line(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one node has earned since the pool began. node: 20 bytes."""

    node: Name
    units: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Table(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What all nodes have earned through `epoch`, by rising node. sources, refusals: what is new in it rests on."""

    pool: Annotated[int, msgspec.Meta(ge=0)]
    epoch: Epoch
    lines: Annotated[tuple[Line, ...], msgspec.Meta(max_length=MAX_LINES)]
    sources: Annotated[tuple[Source, ...], msgspec.Meta(max_length=MAX_SOURCES)] = ()
    refusals: Annotated[tuple[Refusal, ...], msgspec.Meta(max_length=MAX_REFUSALS)] = ()

    @property
    def total(self) -> int:
        return sum(line.units for line in self.lines)

    def root(self) -> bytes:
        return merkle_root([leaf_hash(line) for line in self.lines])

    def units_of(self, node: Address) -> int:
        """0 for a node that is not in it."""
        name = address_bytes(node)
        return next((line.units for line in self.lines if line.node == name), 0)

    def proof(self, node: Address) -> tuple[bytes, ...]:
        """From the node's line up to the root; raises KeyError for a node that is not in it."""
        name = address_bytes(node)
        for number, line in enumerate(self.lines):
            if line.node == name:
                return proof([leaf_hash(one) for one in self.lines], number)
        raise KeyError(node)


def table_after(
    pool: int,
    epoch: int,
    before: Table | None,
    earned: Mapping[Address, int],
    sources: Iterable[Source] = (),
    refusals: Iterable[Refusal] = (),
) -> Table:
    """The table that follows `before` (None for the first one) with what was earned since."""
    units = {line.node: line.units for line in before.lines} if before else {}
    for node, more in earned.items():
        units[address_bytes(node)] = units.get(address_bytes(node), 0) + more
    lines = tuple(Line(node, units[node]) for node in sorted(units) if units[node])
    return Table(pool, epoch, lines, tuple(sorted(sources))[:MAX_SOURCES], tuple(refusals)[:MAX_REFUSALS])


def encode_table(table: Table) -> bytes:
    """The blob beside a signed table."""
    return msgspec.msgpack.encode(table)


def decode_table(data: bytes, pool: int) -> Table:
    """Parse a stranger's table; raises ProtocolError, also where it is another pool's or not in order."""
    what = "malformed table of earnings"
    table = decode_msgpack(data, Table, limit=MAX_TABLE_BYTES, error=ProtocolError, what=what)
    if table.pool != pool:
        raise ProtocolError(what, f"it is pool {table.pool}'s")
    if any(one.node >= two.node for one, two in zip(table.lines, table.lines[1:], strict=False)):
        raise ProtocolError(what, "the nodes are doubled or not in order")
    if table.total >= 2**63:
        raise ProtocolError(what, "its total is out of range")
    return table


def checked_table(data: bytes, pool: int, root: bytes) -> Table:
    """The table of this Merkle root; raises ProtocolError."""
    table = decode_table(data, pool)
    if table.root() != root:
        raise ProtocolError("wrong table of earnings", "its lines do not hash to the root")
    return table


def largest_that_fits(first: int, last: int, total: Callable[[int], int], free: int, per_epoch: int) -> int | None:
    """The latest of the epochs first..last through which a table can be posted, None if none can: no more new units
    than are funded, nor than so many epochs may bring. total: new units through an epoch."""
    for epoch in range(last, first - 1, -1):
        if total(epoch) <= min(free, (epoch - first + 1) * per_epoch):
            return epoch
    return None


# the tree


def leaf_hash(line: Line) -> bytes:
    """keccak(0x00 | node | units as uint64)."""
    return keccak(b"\x00" + line.node + line.units.to_bytes(8, "big"))


def _parent(left: bytes, right: bytes) -> bytes:
    return keccak(b"\x01" + min(left, right) + max(left, right))


def _levels(leaves: Sequence[bytes]) -> Iterator[list[bytes]]:
    """From the leaves to the root; an odd one is carried up unchanged."""
    level = list(leaves)
    yield level
    while len(level) > 1:
        pairs = [_parent(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
        yield level


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Root over the leaves in order; 32 zero bytes for none."""
    *_, top = _levels(leaves)
    return top[0] if top else EMPTY_ROOT


def proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings from leaf `index` up to the root."""
    path: list[bytes] = []
    for level in _levels(leaves):
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        index //= 2
    return tuple(path)


def verify(root: bytes, leaf: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` leads from the leaf to the root."""
    current = leaf
    for sibling in path:
        current = _parent(current, sibling)
    return current == root
