"""Certificates: this validator's, those of this node's work, and what posted tables have of it. Epochs are the pool's.
Blocking: through `Journal.do`."""

from collections import Counter

import msgspec

from node.state.made import UNCLEAR
from node.state.rows import Rows
from protocol.identity import Address
from protocol.statements import Accepted

MOST_TABLED = 1_024
"""Epochs of which it is remembered what their table had, the newest."""
PAY = "pay"
"""The fact under which the state of the node's pay is kept, as PayRecord."""


class PayRecord(msgspec.Struct, frozen=True):
    """What is known of this node's pay. root: of the table that was looked at last; it covers first..through, and
    took what the node has earned since the pool began, payable or not, from `before` to `line`; claimed: units; quorum,
    and the pool's times in seconds."""

    root: bytes
    first: int
    through: int
    before: int
    line: int
    claimed: int
    quorum: int
    started_at: int
    epoch_seconds: int
    window: int

    def claimable_at(self, epoch: int) -> int:
        """From when on, by the chain's clock, a table may have what was earned in this epoch."""
        return self.started_at + (epoch + 1) * self.epoch_seconds + self.window


class Tabled(msgspec.Struct, frozen=True):
    """What a posted table has of one epoch of this node's works. certified: units by then; units: of them in the table,
    None where nobody can say; line: as in FileRecord."""

    epoch: int
    certified: int
    units: int | None
    line: int


class PayBook:
    """`Journal.pay`."""

    def __init__(self, journal: "Rows") -> None:
        self._journal, self._db = journal, journal.db

    def certify(self, validator: Address, statement: Accepted, signature: bytes) -> bytes | None:
        """Keep a validator's certificate; returns the signature that is kept, None where the validator has certified
        the work otherwise before."""
        row = (statement.work, validator, statement.epoch, statement.node, statement.units, signature)
        # The first certificate of a work stands: a validator must not sign for it in two ways.
        self._db.execute("INSERT OR IGNORE INTO certificates VALUES (?, ?, ?, ?, ?, ?)", row)
        kept = self.certificate(validator, statement.pool, statement.work)
        return kept[1] if kept and kept[0] == statement else None

    def certificate(self, validator: Address, pool: int, work: bytes) -> tuple[Accepted, bytes] | None:
        """What a validator certified of a work, with its signature."""
        query = "SELECT node, epoch, units, signature FROM certificates WHERE work = ? AND validator = ?"
        row = self._db.execute(query, (work, validator)).fetchone()
        return (Accepted(pool, row[0], row[1], work, row[2]), row[3]) if row else None

    def take_certificates(self, rows: list[tuple[Address, Accepted, bytes]], most: int) -> None:
        """Keep others' certificates; of each validator `most`: it crowds out its own, those of the oldest epochs."""
        said = [(a.work, validator, a.epoch, a.node, a.units, signature) for validator, a, signature in rows]
        beyond = (
            "DELETE FROM certificates WHERE validator = ? AND work IN "
            "(SELECT work FROM certificates WHERE validator = ? ORDER BY epoch DESC LIMIT -1 OFFSET ?)"
        )
        with self._journal.at_once():
            self._db.executemany("INSERT OR IGNORE INTO certificates VALUES (?, ?, ?, ?, ?, ?)", said)
            # Bounded per validator: a dishonest one can fill its own share of the table and no other's.
            for validator in {row[0] for row in rows}:
                count = "SELECT count(*) FROM certificates WHERE validator = ?"
                if self._db.execute(count, (validator,)).fetchone()[0] > most:
                    self._db.execute(beyond, (validator, validator, most))

    def certificates_by(self, validator: Address, pool: int, most: int) -> list[tuple[Accepted, bytes]]:
        """The newest that a validator signed, with its signatures."""
        query = (
            "SELECT node, epoch, work, units, signature FROM certificates WHERE validator = ? "
            "ORDER BY epoch DESC LIMIT ?"
        )
        rows = self._db.execute(query, (validator, most)).fetchall()
        return [(Accepted(pool, *row[:4]), row[4]) for row in rows]

    def certificates(self, node: Address, epoch: int) -> dict[tuple[bytes, int], list[tuple[Address, bytes]]]:
        """(work, units) -> who certified it for the node, with the signatures."""
        query = (
            "SELECT work, units, validator, signature FROM certificates WHERE node = ? AND epoch = ? ORDER BY validator"
        )
        found: dict[tuple[bytes, int], list[tuple[Address, bytes]]] = {}
        for work, units, validator, signature in self._db.execute(query, (node, epoch)):
            found.setdefault((work, units), []).append((validator, signature))
        return found

    def certified_units(self, node: Address, least: int) -> dict[int, int]:
        """epoch -> units of the node's works that at least so many validators certified alike."""
        works = "SELECT epoch, units FROM certificates WHERE node = ? GROUP BY epoch, work, units HAVING count(*) >= ?"
        query = f"SELECT epoch, sum(units) FROM ({works}) GROUP BY epoch"  # noqa: S608 - constants
        return dict(self._db.execute(query, (node, least)).fetchall())

    def settle(self, node: Address, record: PayRecord, works: frozenset[bytes] | None, clear: bool) -> None:
        """A posted table covers the record's epochs: note what it has of the node's certified works, and what missed
        it. works: those that it has, None for all; not clear: nobody can say which."""
        query = (
            "SELECT epoch, work, units FROM certificates WHERE node = ? AND epoch BETWEEN ? AND ? "
            "GROUP BY epoch, work, units HAVING count(*) >= ?"
        )
        span = (record.first, record.through)
        certified, units = Counter[int](), Counter[int]()
        has: list[tuple[int, int, bytes]] = []
        line = record.line if clear else UNCLEAR
        for epoch, work, more in self._db.execute(query, (node, *span, record.quorum)).fetchall():
            certified[epoch] += more
            if works is None or work in works:
                units[epoch] += more
                has.append((line, epoch, work))
        rows = [(epoch, certified[epoch], units[epoch] if clear else None, line) for epoch in certified]
        with self._journal.at_once():
            # First all of the span as missed, then those that the table has: in one transaction nobody sees the former.
            self._db.execute("UPDATE files SET line = 0 WHERE epoch BETWEEN ? AND ?", span)
            self._db.executemany("UPDATE files SET line = ? WHERE epoch = ? AND work = ?", has)
            self._db.executemany("INSERT OR REPLACE INTO tabled VALUES (?, ?, ?, ?)", rows)
            self._db.execute("DELETE FROM tabled WHERE epoch <= ?", (record.through - MOST_TABLED,))
            self._journal.remember(PAY, msgspec.msgpack.encode(record))

    def tabled(self, most: int) -> list[Tabled]:
        """What posted tables have of this node's newest `most` epochs, oldest first."""
        query = "SELECT epoch, certified, units, line FROM tabled ORDER BY epoch DESC LIMIT ?"
        return [Tabled(*row) for row in reversed(self._db.execute(query, (most,)).fetchall())]

    def missed_units(self) -> int:
        """Units of this node's accepted or certified works that their table has not."""
        query = "SELECT coalesce(sum(units), 0) FROM files WHERE state = 'accepted' AND line = 0"
        files = self._db.execute(query).fetchone()[0]
        left_out = "SELECT coalesce(sum(certified - units), 0) FROM tabled"
        return max(int(files), int(self._db.execute(left_out).fetchone()[0]))

    def own_epochs(self, node: Address, first: int) -> list[int]:
        """Epochs from `first` on of which this node has files or certificates."""
        query = (
            "SELECT DISTINCT epoch FROM files WHERE epoch >= ?1 AND state != 'rejected' "
            "UNION SELECT DISTINCT epoch FROM certificates WHERE node = ?2 AND epoch >= ?1 ORDER BY 1"
        )
        return [row[0] for row in self._db.execute(query, (first, node))]

    def forget_epochs(self, through: int) -> None:
        """What a posted table covers counts no more, and nobody certifies it any more."""
        with self._journal.at_once():
            # What was said stays (`said`): it is what keeps a restarted node from signing twice.
            for table in ("certificates", "earned", "sources", "refused"):
                self._db.execute(f"DELETE FROM {table} WHERE epoch <= ?", (through,))  # noqa: S608 - constants
