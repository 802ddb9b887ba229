"""Leaves of roots: this validator's, those of this node's work, and what posted tables have of it. Epochs are the
pool's. Blocking: through `Journal.do`."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from node.state.made import UNCLEAR
from node.state.rows import Rows
from protocol.earnings import Accepted
from protocol.identity import Address

MOST_TABLED = 1_024
"""Epochs of which it is remembered what their table had, the newest."""
COVERED = "covered"
"""The fact: the first epoch of which leaves are kept."""
UNSIGNED = 0
"""The number of the root of a leaf that no root has yet."""
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

    def name(self, validator: Address, works: Sequence[Accepted]) -> list[Accepted]:
        """Works that this validator names in its next root; those that it has not named before. The first word on a
        work stands."""
        # What a table has covered is named no more: its leaf is forgotten, and would be taken for none.
        covered = int.from_bytes(self._journal.recall(COVERED) or b"")
        insert = "INSERT OR IGNORE INTO leaves VALUES (?, ?, ?, ?, ?, ?)"
        rows = [(one, (one.work, validator, one.epoch, one.node, one.units, UNSIGNED)) for one in works]
        return [one for one, row in rows if one.epoch >= covered and self._db.execute(insert, row).rowcount]

    def unnamed(self, validator: Address, most: int) -> list[tuple[bytes, bytes | None]]:
        """Own verdicts, the newest, on works that are no leaves, each with what was found on looking again."""
        query = (
            "SELECT one.raw, again.raw FROM said AS one LEFT JOIN said AS again ON again.kind = 'recheck' "
            "AND again.slot = one.slot WHERE one.kind = 'verdict' "
            "AND one.slot NOT IN (SELECT work FROM leaves WHERE validator = ?) ORDER BY one.rowid DESC LIMIT ?"
        )
        return self._db.execute(query, (validator, most)).fetchall()

    def unsigned(self, validator: Address, pool: int, before: int) -> dict[int, list[Accepted]]:
        """Epoch -> what no root of the validator names yet, of epochs before that one."""
        query = "SELECT node, epoch, work, units FROM leaves WHERE validator = ? AND epoch < ? AND number = ?"
        found: dict[int, list[Accepted]] = {}
        for node, epoch, work, units in self._db.execute(query, (validator, before, UNSIGNED)):
            found.setdefault(epoch, []).append(Accepted(pool, node, epoch, work, units))
        return found

    def signed(self, validator: Address, works: Sequence[Accepted], number: int) -> None:
        """A root of this number names them."""
        rows = [(number, one.work, validator) for one in works]
        self._db.executemany("UPDATE leaves SET number = ? WHERE work = ? AND validator = ?", rows)

    def leaf(self, validator: Address, pool: int, work: bytes) -> Accepted | None:
        """What a validator names of a work."""
        query = "SELECT node, epoch, units FROM leaves WHERE work = ? AND validator = ?"
        row = self._db.execute(query, (work, validator)).fetchone()
        return Accepted(pool, row[0], row[1], work, row[2]) if row else None

    def take_leaves(self, validator: Address, number: int, works: Sequence[Accepted], most: int) -> None:
        """What another's root names of this node; of each validator `most`: it crowds out its own, those of the oldest
        epochs."""
        rows = [(one.work, validator, one.epoch, one.node, one.units, number) for one in works]
        beyond = (
            "DELETE FROM leaves WHERE validator = ? AND work IN "
            "(SELECT work FROM leaves WHERE validator = ? ORDER BY epoch DESC LIMIT -1 OFFSET ?)"
        )
        with self._journal.at_once():
            self._db.executemany("INSERT OR IGNORE INTO leaves VALUES (?, ?, ?, ?, ?, ?)", rows)
            # Bounded per validator: a dishonest one can fill its own share of the table and no other's.
            count = "SELECT count(*) FROM leaves WHERE validator = ?"
            if self._db.execute(count, (validator,)).fetchone()[0] > most:
                self._db.execute(beyond, (validator, validator, most))

    def named(self, node: Address, roots: Iterable[tuple[int, Address, int]], least: int) -> dict[bytes, int]:
        """Work -> units of the node's works that so many validators named alike in these roots, each (epoch, validator,
        number)."""
        counted: Counter[tuple[bytes, int]] = Counter()
        query = "SELECT work, units FROM leaves WHERE node = ? AND epoch = ? AND validator = ? AND number = ?"
        for root in roots:
            counted.update(self._db.execute(query, (node, *root)).fetchall())
        return {work: units for (work, units), many in counted.items() if many >= least}

    def certified_units(self, node: Address, least: int) -> dict[int, int]:
        """epoch -> units of the node's works that at least so many validators named alike."""
        works = "SELECT epoch, units FROM leaves WHERE node = ? GROUP BY epoch, work, units HAVING count(*) >= ?"
        query = f"SELECT epoch, sum(units) FROM ({works}) GROUP BY epoch"  # noqa: S608 - constants
        return dict(self._db.execute(query, (node, least)).fetchall())

    def settle(self, node: Address, record: PayRecord, works: frozenset[bytes] | None, clear: bool) -> None:
        """A posted table covers the record's epochs: note what it has of the node's certified works, and what missed
        it. works: those that it has, None for all; not clear: nobody can say which."""
        query = (
            "SELECT epoch, work, units FROM leaves WHERE node = ? AND epoch BETWEEN ? AND ? "
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

    def forget_epochs(self, through: int) -> None:
        """What a posted table covers counts no more, and nobody certifies it any more."""
        with self._journal.at_once():
            self._journal.remember(COVERED, (through + 1).to_bytes(8))
            # What was said stays (`said`): it is what keeps a restarted node from signing twice.
            for table in ("leaves", "earned", "roots", "refused"):
                self._db.execute(f"DELETE FROM {table} WHERE epoch <= ?", (through,))  # noqa: S608 - constants
