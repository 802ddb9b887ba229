"""Rows in files of bounded length under one Merkle root: who needs its own row reads one file, and not all of them.

Rows stand by rising key, a node's address first. The roots of the files are the leaves of one tree on top, so a proof
leads from a row through both, and a contract that climbs it sees no files. Leaves and inner nodes hash under different
prefixes: neither can pass for the other.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from eth_hash.auto import keccak

from protocol.blobs import describe
from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError

PAGE_ROWS = 4_096
MAX_PAGES = 4_096
MAX_PAGE_BYTES = 512 * 1024
EMPTY_ROOT = bytes(32)

Word = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Name = Annotated[bytes, msgspec.Meta(min_length=20, max_length=20)]


class PageRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """node: 20 bytes."""

    node: Name
    what: ClassVar[str] = "rows"

    @property
    def key(self) -> tuple[Any, ...]:
        """By which rows are in order; no two are alike in it."""
        return (self.node,)

    def leaf(self) -> bytes:
        raise NotImplementedError


class TablePage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One file of rows. first: the node of its first row; root, size: as a blob; top: of the Merkle tree over its
    rows."""

    first: Name
    root: Word
    size: Annotated[int, msgspec.Meta(gt=0, le=MAX_PAGE_BYTES)]
    top: Word


Pages = Annotated[tuple[TablePage, ...], msgspec.Meta(max_length=MAX_PAGES)]
R = TypeVar("R", bound=PageRow)


def paged(rows: Sequence[PageRow]) -> list[tuple[TablePage, bytes]]:
    """The files of rows in order, each with its bytes."""
    found: list[tuple[TablePage, bytes]] = []
    for start in range(0, len(rows), PAGE_ROWS):
        part = rows[start : start + PAGE_ROWS]
        data = msgspec.msgpack.encode(part)
        top = merkle_root([row.leaf() for row in part])
        found.append((TablePage(part[0].node, describe(data).root, len(data), top), data))
    return found


def read_page(data: bytes, page: TablePage, kind: type[R]) -> tuple[R, ...]:
    """The rows of a file that a stranger handed over; raises ProtocolError, also where they are not those of the
    page."""
    what = f"malformed {kind.what}"
    rows = decode_msgpack(data, tuple[kind, ...], limit=MAX_PAGE_BYTES, error=ProtocolError, what=what)
    if not 0 < len(rows) <= PAGE_ROWS or rows[0].node != page.first:
        raise ProtocolError(what, "they are none, too many, or begin elsewhere")
    check_order(rows)
    if merkle_root([row.leaf() for row in rows]) != page.top:
        raise ProtocolError(f"wrong {kind.what}", "they do not hash to the root")
    return rows


def check_order(rows: Sequence[PageRow]) -> None:
    """Raises ProtocolError unless the keys rise strictly: one comparison finds what is doubled and what is not in
    order."""
    if any(one.key >= two.key for one, two in pairwise(rows)):
        raise ProtocolError(f"malformed {rows[0].what}", "they are doubled or not in order")


def check_pages(pages: Sequence[TablePage], what: str) -> None:
    """Raises ProtocolError unless they are in order. One node's rows may begin in several."""
    if any(one.first > two.first for one, two in pairwise(pages)):
        raise ProtocolError(what, "its files are not in order")


def pages_of(pages: Sequence[TablePage], node: bytes) -> range:
    """Numbers of the pages that may have rows of a node."""
    firsts = [page.first for page in pages]
    # Its rows may begin in the last page that begins before it.
    return range(max(bisect_left(firsts, node) - 1, 0), bisect_right(firsts, node))


# the tree


def _parent(left: bytes, right: bytes) -> bytes:
    # Sorted, so that a proof is its siblings and nothing else: a contract climbs without knowing left from right.
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


def verify(root: bytes, leaf: bytes, path: Iterable[bytes]) -> bool:
    """Whether `path` leads from the leaf to the root."""
    current = leaf
    for sibling in path:
        current = _parent(current, sibling)
    return current == root
