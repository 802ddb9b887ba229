"""What validators named in their roots of everybody, for the table of earnings. Blocking: through `Journal.do`."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from node.state.rows import JournalRows
from protocol.earnings import Leaf
from protocol.identity import Address, address_from_bytes


class OwnLine(NamedTuple):
    """What a validator's root names of this node. proof: from the line to the root; raw: the envelope of the signed
    root."""

    epoch: int
    validator: Address
    number: int
    units: int
    proof: tuple[bytes, ...]
    raw: bytes


class EarnedBook:
    """`Journal.earned`."""

    def __init__(self, journal: "JournalRows") -> None:
        self._journal, self._db = journal, journal.db

    def note_leaves(
        self, epoch: int, validator: Address, number: int, root: bytes, raw: bytes, leaves: Sequence[Leaf]
    ) -> None:
        """All leaves of a validator's root. Of a work that it named twice the first counts."""
        rows = [(epoch, one.work, validator, address_from_bytes(one.node), one.units) for one in leaves]
        with self._journal.at_once():
            self._db.executemany("INSERT OR IGNORE INTO earned VALUES (?, ?, ?, ?, ?)", rows)
            self.note_root(epoch, validator, number, root, raw, whole=True)

    def note_root(self, epoch: int, validator: Address, number: int, root: bytes, raw: bytes, *, whole: bool) -> None:
        """A signed root. whole: all its leaves are known, not only this node's."""
        insert = (
            "INSERT INTO roots VALUES (?, ?, ?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET whole = max(whole, excluded.whole), raw = excluded.raw"
        )
        self._db.execute(insert, (epoch, validator, number, root, raw, int(whole)))

    def note_line(
        self, epoch: int, validator: Address, number: int, units: int, proof: Sequence[bytes], raw: bytes
    ) -> None:
        """This node's line under a validator's signed root, with its way up: what it files if no table comes. The first
        root of a number counts."""
        row = (epoch, validator, number, units, b"".join(proof), raw)
        self._db.execute("INSERT OR IGNORE INTO lines VALUES (?, ?, ?, ?, ?, ?)", row)

    def lines(self, first: int, last: int) -> list[OwnLine]:
        """This node's, by epoch, validator and number."""
        query = (
            "SELECT epoch, validator, number, units, proof, raw FROM lines WHERE epoch BETWEEN ? AND ? "
            "ORDER BY epoch, validator, number"
        )
        return [
            OwnLine(epoch, validator, number, units, tuple(way[i : i + 32] for i in range(0, len(way), 32)), raw)
            for epoch, validator, number, units, way, raw in self._db.execute(query, (first, last))
        ]

    def roots_of(self, validator: Address) -> dict[int, list[bytes]]:
        """Epoch -> envelopes of a validator's roots, of epochs that are not covered."""
        found: dict[int, list[bytes]] = {}
        query = "SELECT epoch, raw FROM roots WHERE validator = ? ORDER BY epoch, number"
        for epoch, raw in self._db.execute(query, (validator,)):
            found.setdefault(epoch, []).append(raw)
        return found

    def newest_number(self, validator: Address, epoch: int) -> int:
        """Of a validator's roots of an epoch; 0 before the first."""
        query = "SELECT coalesce(max(number), 0) FROM roots WHERE validator = ? AND epoch = ?"
        return self._db.execute(query, (validator, epoch)).fetchone()[0]

    def roots(self, first: int, last: int, whole: bool = False) -> list[tuple[int, Address, int, bytes, bytes]]:
        """(epoch, validator, number, root, envelope) of those that were read, whole or at least for this node."""
        query = "SELECT epoch, validator, number, root, raw FROM roots WHERE epoch BETWEEN ? AND ? AND whole >= ?"
        return self._db.execute(query, (first, last, int(whole))).fetchall()

    def read(self, epoch: int) -> tuple[object, ...]:
        """What is known of an epoch: as long as this stands, so does what counts in it."""
        roots = self._db.execute(
            "SELECT validator, number FROM roots WHERE epoch = ? AND whole ORDER BY validator, number", (epoch,)
        ).fetchall()
        refused = self._db.execute("SELECT count(*) FROM refused WHERE epoch = ?", (epoch,)).fetchone()[0]
        return (refused, *roots)

    def counted(self, epoch: int, bench: Iterable[Address], quorum: int) -> list[tuple[Address, bytes, int]]:
        """(node, work, units) of those that a quorum of the bench named alike, and none refused."""
        counted = list(bench)
        alike = (
            f"SELECT node, work, units FROM earned WHERE epoch = ? AND validator IN ({', '.join('?' * len(counted))}) "  # noqa: S608 - places
            "AND work NOT IN (SELECT work FROM refused) GROUP BY node, work, units HAVING count(*) >= ?"
        )
        return self._db.execute(alike, (epoch, *counted, quorum)).fetchall()

    def named_by(self, epoch: int, validators: Iterable[Address]) -> dict[Address, set[bytes]]:
        """The works that each of these named."""
        query = "SELECT work FROM earned WHERE epoch = ? AND validator = ?"
        return {one: {work for (work,) in self._db.execute(query, (epoch, one))} for one in validators}

    def refuse(self, work: bytes, epoch: int, proof: bytes) -> bool:
        """A quorum refused a work, with the proof; whether that is news."""
        return self._db.execute("INSERT OR IGNORE INTO refused VALUES (?, ?, ?)", (work, epoch, proof)).rowcount > 0

    def is_refused(self, work: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM refused WHERE work = ?", (work,)).fetchone() is not None

    def refusals(self, first: int, last: int) -> list[bytes]:
        """Proofs against works that somebody named."""
        query = (
            "SELECT proof FROM refused WHERE epoch BETWEEN ? AND ? AND work IN (SELECT work FROM earned) ORDER BY work"
        )
        return [row[0] for row in self._db.execute(query, (first, last))]
