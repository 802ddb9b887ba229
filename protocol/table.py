"""The table of earnings: node -> units since the pool began that can be paid, and what is certified and cannot be yet.

All of it follows from one number: how many units all lines together may say. The oldest epochs come first; inside the
one that fits in part everybody has the same share; what does not fit stays in the table, owed, and is paid by a later
one. Equal inputs give equal tables, byte for byte. A table names the roots that it was made of and the works that it
leaves out, with the proof, so that whoever came to another one can fetch what it lacks. Its rows are in files
(`pages.py`) under its root; a line that the chain has as claimed is dropped, and comes back with the node's next unit.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

import msgspec
from eth_hash.auto import keccak

from protocol.codec import decode_msgpack
from protocol.earnings import MAX_REFUSALS, EarningsLine, Epoch, RefusedWork, Units
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes
from protocol.pages import PageRow, Pages, TablePage, check_order, check_pages, merkle_root, paged, pages_of, proof

MAX_SOURCES = 16_384
MAX_HEAD_BYTES = 16 * 2**20
OWED_EPOCHS = 32
"""Epochs that are told apart in what is owed; the newest ones beyond are owed together."""
_WHAT = "malformed table of earnings"

Sum = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Owed(PageRow, frozen=True):
    """What one node's certified work of an epoch comes to that is not paid in whole."""

    epoch: Epoch
    units: Units
    what: ClassVar[str] = "debts of a table of earnings"

    @property
    def key(self) -> tuple[bytes, int]:
        return (self.node, self.epoch)

    def leaf(self) -> bytes:
        return keccak(b"\x02" + self.node + self.epoch.to_bytes(8, "big") + self.units.to_bytes(8, "big"))


class Owing(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """epoch: the oldest one that is owed, of whose `of` units `part` are paid; behind: all units that are certified and
    cannot be paid yet."""

    epoch: Epoch
    part: Sum
    of: Units
    behind: Units
    pages: Pages

    def leaf(self) -> bytes:
        numbers = b"".join(one.to_bytes(8, "big") for one in (self.epoch, self.part, self.of, self.behind))
        return keccak(b"\x03" + numbers + merkle_root([page.top for page in self.pages]))

    def share(self, row: Owed) -> int:
        """How much of a row is in the node's line."""
        return row.units * self.part // self.of if row.epoch == self.epoch else 0


Signed = Annotated[bytes, msgspec.Meta(max_length=512)]
"""The envelope of a validator's signed root (`messages.EpochRootSigned`), of whose leaves a table was made."""


class TableHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The blob beside a signed table: all but its rows. total: of all lines since the pool began, those that were
    dropped too; sources, refusals: what is new in it rests on."""

    pool: Annotated[int, msgspec.Meta(ge=0)]
    epoch: Epoch
    total: Units
    pages: Pages
    owing: Owing | None = None
    sources: Annotated[tuple[Signed, ...], msgspec.Meta(max_length=MAX_SOURCES)] = ()
    refusals: Annotated[tuple[RefusedWork, ...], msgspec.Meta(max_length=MAX_REFUSALS)] = ()

    @property
    def debts(self) -> tuple[TablePage, ...]:
        """The files of what is owed."""
        return self.owing.pages if self.owing else ()

    def _tops(self) -> list[bytes]:
        return [page.top for page in self.pages] + ([self.owing.leaf()] if self.owing else [])

    def root(self) -> bytes:
        return merkle_root(self._tops())

    def bare(self) -> "TableHead":
        """Without what it rests on, which validators may have heard otherwise: what `Earnings.blob` names."""
        return msgspec.structs.replace(self, sources=(), refusals=())

    def pages_of(self, node: Address) -> range:
        """Numbers of the files of lines that may have the node's."""
        return pages_of(self.pages, address_bytes(node))

    def share(self, node: Address, lines: Mapping[int, Sequence[EarningsLine]], owed: Iterable[Owed]) -> "Share":
        """What it says of one node. lines: rows by the number of their page, of all pages that may have the node's."""
        name = address_bytes(node)
        rest = sum(row.units - self.owing.share(row) for row in owed if self.owing and row.node == name)
        for number, rows in lines.items():
            for at, line in enumerate(rows):
                if line.node == name:
                    path = proof([row.leaf() for row in rows], at) + proof(self._tops(), number)
                    return Share(line.units, rest, path)
        return Share(None, rest, ())


class Share(msgspec.Struct, frozen=True):
    """units: of the node's line, None for one without a line: then all that it ever had is claimed; rest: certified,
    and not payable yet; proof: from its line to the root."""

    units: int | None
    rest: int
    proof: tuple[bytes, ...]


class EarningsTable(msgspec.Struct, frozen=True):
    """All of one. part: units of the oldest owed epoch that are in the lines."""

    pool: int
    epoch: int
    total: int
    lines: tuple[EarningsLine, ...]
    owed: tuple[Owed, ...] = ()
    part: int = 0
    sources: tuple[bytes, ...] = ()
    refusals: tuple[RefusedWork, ...] = ()

    def files(self) -> tuple[TableHead, list[bytes]]:
        """The head, and the files of rows that it names."""
        lines, owed = paged(self.lines), paged(self.owed)
        owing = self.owing(tuple(page for page, _ in owed)) if owed else None
        pages = tuple(page for page, _ in lines)
        head = TableHead(self.pool, self.epoch, self.total, pages, owing, self.sources, self.refusals)
        return head, [data for _, data in (*lines, *owed)]

    def owing(self, pages: tuple[TablePage, ...]) -> Owing:
        oldest = min(row.epoch for row in self.owed)
        of = sum(row.units for row in self.owed if row.epoch == oldest)
        behind = sum(row.units for row in self.owed)
        behind -= sum(row.units * self.part // of for row in self.owed if row.epoch == oldest)
        return Owing(oldest, self.part, of, behind, pages)

    def root(self) -> bytes:
        return self.files()[0].root()

    @property
    def behind(self) -> int:
        """Units that are certified and cannot be paid yet."""
        return self.owing(()).behind if self.owed else 0


Earned = Mapping[int, Mapping[Address, int]]
"""Epoch -> node -> units that were certified."""
Claims = Mapping[Address, int]


def table_after(
    pool: int,
    epoch: int,
    before: EarningsTable | None,
    earned: Earned,
    most: int,
    claimed: Claims,
    settled: Claims,
    sources: Iterable[bytes] = (),
    refusals: Iterable[RefusedWork] = (),
) -> EarningsTable | None:
    """The table that follows `before` (None for the first one) through an epoch; None where no line can grow.

    most: units by which all lines together may grow; claimed: what the chain has as paid to each node; settled: the
    same of those that claimed nothing since the moment by which everybody reckons: their lines are dropped.
    """
    # lines(M) = W[f] + floor((W[f+1] - W[f]) * (M - T[f]) / (T[f+1] - T[f])) for T[f] <= M < T[f+1]: W are the lines of
    # all that is certified through each epoch, T their sums, M what all lines may say; here M - T[f] is `left`.
    paid, stood, debts, part = _undone(before)
    # A node without a line had its last one claimed: its next one goes on from there, and not from nothing.
    lost = {address_bytes(node): units for node, units in claimed.items()}
    for at, units in earned.items():
        if any(units.values()):
            debts[at] = {address_bytes(node): more for node, more in units.items() if more}
    left = most + part
    while debts and left >= (of := sum(debts[min(debts)].values())):
        for node, more in debts.pop(min(debts)).items():
            paid[node] = paid.get(node, lost.get(node, 0)) + more
        left -= of
    lines = dict(paid)
    oldest = debts[min(debts)] if debts else {}
    for node, more in oldest.items():
        # Rounded down: all lines together must never say more than the pool can pay.
        lines[node] = lines.get(node, lost.get(node, 0)) + more * left // sum(oldest.values())
    grown = sum(units - stood.get(node, lost.get(node, 0)) for node, units in lines.items())
    if grown <= 0:
        return None
    while len(debts) > OWED_EPOCHS:
        *_, one, newest = sorted(debts)
        debts[newest] = Counter(debts.pop(one)) + Counter(debts[newest])
    done = {address_bytes(node): units for node, units in settled.items()}
    owing = {node for units in debts.values() for node in units}
    gone = {node: units for node, units in done.items() if node not in owing}
    kept = [EarningsLine(node, lines[node]) for node in sorted(lines) if lines[node] > gone.get(node, 0)]
    owed = sorted((Owed(node, at, more) for at, units in debts.items() for node, more in units.items()), key=_key)
    total = (before.total if before else 0) + grown
    given = (tuple(sorted(sources))[:MAX_SOURCES], tuple(refusals)[:MAX_REFUSALS])
    return EarningsTable(pool, epoch, total, tuple(kept), tuple(owed), left if owed else 0, *given)


def _key(row: PageRow) -> tuple[object, ...]:
    return row.key


def _undone(
    before: EarningsTable | None,
) -> tuple[dict[bytes, int], dict[bytes, int], dict[int, dict[bytes, int]], int]:
    """Of a table: its lines without what they have of the epoch that is paid in part, its lines, what it owes by epoch,
    and how much of that is paid."""
    if before is None:
        return {}, {}, {}, 0
    stood = {line.node: line.units for line in before.lines}
    paid, debts, part = dict(stood), dict[int, dict[bytes, int]](), 0
    for row in before.owed:
        debts.setdefault(row.epoch, {})[row.node] = row.units
    oldest = debts[min(debts)] if debts else {}
    for node, units in oldest.items():
        share = units * before.part // sum(oldest.values())
        paid[node] = paid.get(node, share) - share
        part += share
    return paid, stood, debts, part


# from strangers


def encode_head(head: TableHead) -> bytes:
    return msgspec.msgpack.encode(head)


def decode_head(data: bytes, pool: int) -> TableHead:
    """Parse a stranger's table; raises ProtocolError, also where it is another pool's or not in order."""
    head = decode_msgpack(data, TableHead, limit=MAX_HEAD_BYTES, error=ProtocolError, what=_WHAT)
    if head.pool != pool:
        raise ProtocolError(_WHAT, f"it is pool {head.pool}'s")
    for pages in (head.pages, head.debts):
        check_pages(pages, _WHAT)
    if head.owing and (not head.owing.pages or head.owing.part >= head.owing.of):
        raise ProtocolError(_WHAT, "it owes nothing, or what it has paid")
    return head


def checked_head(data: bytes, pool: int, root: bytes, total: int) -> TableHead:
    """The table of this Merkle root; raises ProtocolError."""
    head = decode_head(data, pool)
    if head.root() != root or head.total != total:
        raise ProtocolError("wrong table of earnings", "its files do not hash to the root, or it has another total")
    return head


def whole(head: TableHead, lines: Sequence[EarningsLine], owed: Sequence[Owed]) -> EarningsTable:
    """The table of a head with all its rows; raises ProtocolError where they do not go together."""
    for rows in (lines, owed):
        check_order(rows)
    part = head.owing.part if head.owing else 0
    found = EarningsTable(
        head.pool, head.epoch, head.total, tuple(lines), tuple(owed), part, head.sources, head.refusals
    )
    if head.owing is not None:
        epochs = {row.epoch for row in owed}
        if len(epochs) > OWED_EPOCHS or max(epochs) > head.epoch or found.owing(head.owing.pages) != head.owing:
            raise ProtocolError(_WHAT, "what it owes does not add up")
    if sum(line.units for line in lines) > head.total or sum(row.units for row in owed) >= 2**63:
        raise ProtocolError(_WHAT, "its lines come to more than its total")
    return found
