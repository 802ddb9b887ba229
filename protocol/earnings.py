"""What counts for pay: works, the leaves in which a validator names them, and why one counts no more.

After an epoch each validator signs one root over its leaves (`statements.EpochRoot`). Whoever wants a node's finds them
in one file of the tree. Validators make the table from the leaves of all (`table.py`). Beside the works the tree has a
line for each node, the sum of its works: what a node shows of the root on chain where no table came (`Payroll.file`).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec
from eth_hash.auto import keccak

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes, address_from_bytes
from protocol.pages import (
    PAGE_ROWS,
    Name,
    PageRow,
    TablePage,
    Word,
    check_order,
    check_pages,
    merkle_root,
    paged,
    proof,
)
from protocol.run import RunSpec
from protocol.statements import EpochRoot, Rechecked, Verdict, WorkCommitment, work_id

MAX_LEAF_PAGES = 256
"""Files of one root: a million works."""
MAX_LEAVES_BYTES = 64 * 1024
MAX_REFUSALS = 4_096
MAX_SIGNATURES = 16
"""Of one work: a pool has no more validators."""

Units = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Signature = Annotated[bytes, msgspec.Meta(min_length=65, max_length=65)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
WorkUnits = Annotated[int, msgspec.Meta(ge=1, lt=2**32)]

# what is paid


class Accepted(msgspec.Struct, frozen=True):
    """A work that counts. work: its id, 32 bytes; units: what is paid for it."""

    pool: int
    node: Address
    epoch: int
    work: bytes
    units: int


def of_file(commitment: WorkCommitment) -> Accepted:
    """A worker's file that was accepted."""
    return Accepted(commitment.pool, commitment.node, commitment.epoch, work_id(commitment), commitment.units)


def of_judgement(run: RunSpec, validator: Address, verdict: Verdict, checked: int, groups: int) -> Accepted:
    """A validator's verdict that was decided as said; checked: groups that it recomputed, of `groups`.

    Units: judging * tokens * the paid share of the groups, rounded down.
    """
    # Capped: a validator that recomputes everything in every file would else be paid without end for work that nobody
    # asked.
    paid = min(checked / groups, run.pay.judged_share)
    work = judgement_of(verdict.pool, validator, work_id(verdict), verdict.epoch)
    return Accepted(verdict.pool, validator, verdict.epoch, work, int(run.pay.judging * verdict.units * paid))


def judgement_of(pool: int, validator: Address, judged: bytes, epoch: int) -> bytes:
    """The id of a validator's judgement of a work. It names the judged work where a file's names policy and file, and
    no units: one judgement is one work, whatever is said of its size."""
    # Shifted by one bit: an index stays below 2^63, which is what SQLite and readers of JSON can hold.
    return work_id(WorkCommitment(pool, validator, judged, int.from_bytes(judged[:8]) >> 1, judged, 0, epoch))


def unpaid_judgements(
    pool: int, epoch: int, counted: Sequence[tuple[Address, bytes]], named: Mapping[Address, Collection[bytes]]
) -> set[bytes]:
    """Judgements of an epoch that are not paid, though a quorum named them: of a file that counts, and that the judge's
    own roots leave out. Who leaves out more of those that it accepted than it names is paid for none, as its word was
    worth nothing to whoever made them.

    counted: (node, work) that a quorum named alike; named: of each judge, the works in its own roots. Nothing but shown
    roots counts: who has read the same comes to the same, whatever words it heard.
    """
    unpaid = set[bytes]()
    for judge, own in named.items():
        judged = {work for node, work in counted if node == judge}
        if not judged:
            continue
        files = [work for node, work in counted if node != judge]
        left_out = {
            work for file in files if file not in own and (work := judgement_of(pool, judge, file, epoch)) in judged
        }
        if not left_out:
            continue
        shown = sum(judgement_of(pool, judge, file, epoch) in judged for file in files if file in own)
        unpaid |= judged if len(left_out) > shown else left_out
    return unpaid


def of_policy(run: RunSpec, pool: int, trainer: Address, step: int, root: bytes, epoch: int) -> Accepted:
    """A trainer's policy for which enough was accepted: a work whose file is the policy itself. Its id names no epoch:
    a policy that is announced again in another one is the same work."""
    units = policy_units(run)
    return Accepted(pool, trainer, epoch, work_id(WorkCommitment(pool, trainer, root, step, root, units)), units)


def policy_units(run: RunSpec) -> int:
    """What a policy is paid."""
    rollout = run.rollout
    most = rollout.prompts_per_step * rollout.group_size * rollout.max_output_tokens
    return min(int(run.pay.training * most), 2**32 - 1)


def contribution_units(run: RunSpec, learnt: int) -> int:
    """What a contribution to a round is paid. learnt: tokens of text, or rollouts: of these as much as a policy that is
    learnt from so many."""
    return min(int(run.pay.training * learnt * run.rollout.max_output_tokens), 2**32 - 1) if run.replicas else learnt


def most_files(run: RunSpec) -> int:
    """Submissions that one node may make for one policy: eight times what everybody learns from it, and some; one
    contribution a round.

    More than that nobody can use, and whoever commits to more only fills other people's tables.
    """
    return 1 if run.pretraining is not None else 8 * run.files_per_policy + 32


# the leaves of a root


class Leaf(PageRow, frozen=True):
    """One work of a node that counts, by one validator's word."""

    work: Word
    units: WorkUnits
    what: ClassVar[str] = "leaves of a root"

    @property
    def key(self) -> tuple[bytes, bytes]:
        return (self.node, self.work)

    def leaf(self) -> bytes:
        """keccak(0x04 | node | work | units as uint64): in the contracts `Statements.workLeaf`."""
        return keccak(b"\x04" + self.node + self.work + self.units.to_bytes(8, "big"))


class EarningsLine(PageRow, frozen=True):
    """Units of one node: those of its works under a root, or in a table those since the pool began, as far as they can
    be paid."""

    units: Units
    what: ClassVar[str] = "lines of a root or table"

    def leaf(self) -> bytes:
        """keccak(0x00 | node | units as uint64): in the contracts `Statements.leaf`."""
        return keccak(b"\x00" + self.node + self.units.to_bytes(8, "big"))


LeafPages = Annotated[tuple[TablePage, ...], msgspec.Meta(min_length=1, max_length=MAX_LEAF_PAGES)]


class Leaves(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The file beside a root: those in which its leaves are, by node, then work, and those of its lines."""

    pages: LeafPages
    lines: LeafPages

    def tops(self) -> list[bytes]:
        return [page.top for page in (*self.pages, *self.lines)]

    def root(self) -> bytes:
        return merkle_root(self.tops())

    def proof_of_line(self, number: int, rows: Sequence[EarningsLine], line: EarningsLine) -> tuple[bytes, ...]:
        """From a line among the rows of the file of lines with this number up to the root."""
        own = proof([row.leaf() for row in rows], rows.index(line))
        return own + proof(self.tops(), len(self.pages) + number)


def lines_of(leaves: Iterable[Leaf]) -> list[EarningsLine]:
    """What the works of each node come to, by node."""
    sums = Counter[bytes]()
    for leaf in leaves:
        sums[leaf.node] += leaf.units
    return [EarningsLine(node, sums[node]) for node in sorted(sums)]


def leaves_of(works: Sequence[Accepted]) -> tuple[Leaves, list[bytes]]:
    """The file of a root over these works (some, each once), and those that it names: of works, then of lines."""
    rows = sorted((Leaf(address_bytes(one.node), one.work, one.units) for one in works), key=lambda row: row.key)
    files, lines = paged(rows), paged(lines_of(rows))
    found = Leaves(tuple(page for page, _ in files), tuple(page for page, _ in lines))
    return found, [data for _, data in (*files, *lines)]


def own_line(found: Leaves, works: Sequence[Accepted], node: Address) -> tuple[int, tuple[bytes, ...]] | None:
    """Of a root that `leaves_of` made of these works: units of the node's line and the way up; None without one."""
    lines = lines_of(Leaf(address_bytes(one.node), one.work, one.units) for one in works)
    for at, line in enumerate(lines):
        if line.node == address_bytes(node):
            number = at // PAGE_ROWS
            return line.units, found.proof_of_line(number, lines[number * PAGE_ROWS : (number + 1) * PAGE_ROWS], line)
    return None


def all_leaves(said: EpochRoot, found: Leaves, files: Sequence[Sequence[Leaf]]) -> tuple[Leaf, ...]:
    """Of a root with all its files of works; raises ProtocolError where they or its lines are not as `leaves_of` makes
    them."""
    what = "malformed leaves of a root"
    if any(len(rows) != PAGE_ROWS for rows in files[:-1]):
        raise ProtocolError(what, "a file that is not the last one is not full")
    leaves = tuple(row for rows in files for row in rows)
    check_order(leaves)
    if sum(one.units for one in leaves) != said.total:
        raise ProtocolError(what, "they come to another total")
    if [page.top for page, _ in paged(lines_of(leaves))] != [page.top for page in found.lines]:
        raise ProtocolError(what, "its lines are not what the works of each node come to")
    return leaves


def proof_of(leaves: Sequence[Leaf], leaf: Leaf) -> tuple[bytes, ...]:
    """From one of all leaves of a root, in their order, up to it."""
    at = leaves.index(leaf)
    page, place = divmod(at, PAGE_ROWS)
    own = [one.leaf() for one in leaves[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]]
    files = (*paged(leaves), *paged(lines_of(leaves)))
    return proof(own, place) + proof([each.top for each, _ in files], page)


def decode_leaves(data: bytes, said: EpochRoot) -> Leaves:
    """Parse a stranger's; raises ProtocolError, also where it is of another root."""
    what = "malformed leaves of a root"
    found = decode_msgpack(data, Leaves, limit=MAX_LEAVES_BYTES, error=ProtocolError, what=what)
    for pages in (found.pages, found.lines):
        check_pages(pages, what)
    if found.root() != said.root:
        raise ProtocolError("wrong leaves of a root", "they do not hash to it")
    return found


# what counts no more


class WordAgainst(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One validator's signed word against a work; rechecked: found in a dispute."""

    outcome: Annotated[int, msgspec.Meta(ge=1, le=2)]
    reason: Annotated[int, msgspec.Meta(ge=0, le=255)]
    values: Word
    rechecked: bool
    signature: Signature


class RefusedWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Why a certified work counts no more: a quorum refused it before its window was over. commitment: its fields
    behind the pool."""

    node: Name
    policy_root: Word
    index: Epoch
    file_root: Word
    units: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    epoch: Epoch
    said: Annotated[tuple[WordAgainst, ...], msgspec.Meta(max_length=MAX_SIGNATURES)]

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


def refusal_of(said: Sequence[tuple[Verdict, bytes]]) -> RefusedWork:
    """The proof that a quorum refused a work, of signed verdicts about it (at least one)."""
    verdict = said[0][0]
    kept = [WordAgainst(v.outcome, v.reason, v.values, isinstance(v, Rechecked), signature) for v, signature in said]
    place = (verdict.policy_root, verdict.index, verdict.file_root, verdict.units, verdict.epoch)
    return RefusedWork(address_bytes(verdict.node), *place, tuple(kept[:MAX_SIGNATURES]))
