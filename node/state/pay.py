"""Leaves of roots: this validator's, those of this node's work, and what posted tables have of it. Epochs are the
pool's. Blocking: through `Journal.do`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from node.state.kept import cached
from node.state.made import UNCLEAR
from node.state.rows import JournalRows
from protocol.earnings import Accepted
from protocol.identity import Address

COVERED = "covered"
"""The fact under which the first epoch is kept that is not forgotten."""
UNSIGNED = 0
"""The number of the root of a leaf that no root has yet."""
PAY = "pay"
"""The fact under which the state of the node's pay is kept, as PayRecord."""


class PayRecord(msgspec.Struct, frozen=True):
    """What is known of this node's pay. root: of the table that was looked at last; it covers first..through, and
    took what the node has earned since the pool began, payable or not, from `before` to `line`; clear: whether it is
    known which works it has; unclear: units that it and earlier tables have, and nobody can say of which works;
    unclear_before: the earlier ones alone; claimed: units; quorum, and the pool's times in seconds; waits_through,
    counts_at: the last epoch of the table that does not count yet, and when it will, unix seconds; filed: epochs that
    no table has and that were filed after the pool's end, redeems_at: when they are redeemed, redeemed: whether they
    were; over: whether nothing can be filed or redeemed any more."""

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
    clear: bool = True
    unclear: int = 0
    unclear_before: int = 0
    delay: int = 0
    waits_through: int = -1
    counts_at: int = 0
    filed: tuple[int, ...] = ()
    redeems_at: int = 0
    redeemed: bool = False
    over: bool = False

    def claimable_at(self, epoch: int) -> int:
        """From when on, by the chain's clock, what was earned in this epoch can be claimed."""
        if epoch <= self.waits_through:
            return self.counts_at
        if epoch in self.filed:
            return self.redeems_at
        return self.started_at + (epoch + 1) * self.epoch_seconds + self.window + self.delay


class Tabled(msgspec.Struct, frozen=True):
    """Where the works of one epoch are that tables cover, in units. line: as in FileRecord, the highest of them."""

    epoch: int
    units: int
    missed: int
    unclear: int
    line: int


class Sums(msgspec.Struct, frozen=True):
    """Where this node's works are, in units. made: nobody has decided yet; accepted: and no quorum has certified it;
    undecided: the last epoch with such works, -1 for none; certified: by epoch, and in no table; missed: of epochs
    whose table has it not; unclear: works of which nobody can say whether a table has them; unread: the same, until the
    newest table is read."""

    made: int
    accepted: int
    undecided: int
    certified: dict[int, int]
    missed: int
    unclear: int
    unread: int


class PayBook:
    """`Journal.pay`."""

    def __init__(self, journal: "JournalRows") -> None:
        self._journal, self._db = journal, journal.db

    def name(self, validator: Address, works: Sequence[Accepted]) -> list[Accepted]:
        """Works that this validator names in its next root; those that it has not named before. The first word on a
        work stands."""
        # What a table has covered is named no more: its leaf is forgotten, and would be taken for none.
        covered = self.covered()
        insert = "INSERT OR IGNORE INTO leaves VALUES (?, ?, ?, ?, ?, ?)"
        rows = [(one, (one.work, validator, one.epoch, one.node, one.units, UNSIGNED)) for one in works]
        return [one for one, row in rows if one.epoch >= covered and self._db.execute(insert, row).rowcount]

    def covered(self) -> int:
        """The first epoch of which leaves are kept."""
        return int.from_bytes(self._journal.recall(COVERED) or b"")

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
        found = Counter[int]()
        for epoch, _, units in self._certified(node, least, 0, 2**62):
            found[epoch] += units
        return dict(found)

    def certified_works(self, node: Address, least: int, first: int, last: int) -> dict[bytes, int]:
        """Work -> units of the node's works of these epochs that at least so many validators named alike."""
        return {work: units for _, work, units in self._certified(node, least, first, last)}

    def accepted_works(self, first: int, last: int) -> dict[bytes, int]:
        """Work -> units of this node's files of these epochs that it heard accepted."""
        query = "SELECT work, units FROM files WHERE state = 'accepted' AND epoch BETWEEN ? AND ?"
        return dict(self._db.execute(query, (first, last)).fetchall())

    def _certified(self, node: Address, least: int, first: int, last: int) -> list[tuple[int, bytes, int]]:
        query = (
            "SELECT epoch, work, units FROM leaves WHERE node = ? AND epoch BETWEEN ? AND ? "
            "GROUP BY epoch, work, units HAVING count(*) >= ?"
        )
        return self._db.execute(query, (node, first, last, least)).fetchall()

    def settle(self, node: Address, record: PayRecord, works: frozenset[bytes] | None) -> PayRecord:
        """Tables cover the record's epochs: note which of the node's works they have; returns the record as it is kept.
        works: those that they have, None for all that a quorum certified; unless `record.clear`, nobody can say."""
        span, line = (record.first, record.through), record.line if record.clear else UNCLEAR
        certified = self._certified(node, record.quorum, *span)
        has = frozenset(work for _, work, _ in certified) if works is None else works
        with self._journal.at_once():
            # A quorum's leaves are its acceptance, heard or not.
            accepted = "UPDATE files SET state = 'accepted' WHERE epoch = ? AND work = ? AND state = 'pending'"
            self._db.executemany(accepted, [row[:2] for row in certified])
            # All of the span first, then those that the table has: in one transaction nobody sees the former.
            self._db.execute("UPDATE files SET line = ? WHERE epoch BETWEEN ? AND ?", (min(line, 0), *span))
            if record.clear:
                tabled = "UPDATE files SET line = ? WHERE work = ? AND epoch BETWEEN ? AND ?"
                self._db.executemany(tabled, [(line, work, *span) for work in has])
            # What a block that was replaced had beyond is in no table any more.
            self._db.execute("UPDATE files SET line = NULL WHERE epoch > ?", (record.through,))
            # Epochs of which it is remembered what their table had, the newest: seven years of hours. Sums go over all
            # of them.
            self._db.execute("DELETE FROM tabled WHERE epoch >= ? OR epoch <= ?", (span[0], span[1] - 65_536))
            self._note_strays(certified, has, line)
            if not record.clear:
                explained = min(self._units_at(UNCLEAR, *span), record.line - record.before)
                record = msgspec.structs.replace(record, unclear=record.unclear_before + explained)
            self._journal.remember(PAY, msgspec.msgpack.encode(record))
        return record

    def _note_strays(self, certified: list[tuple[int, bytes, int]], has: frozenset[bytes], line: int) -> None:
        """What was certified and is no file of this node: a validator's verdicts, a trainer's policies."""
        own = "SELECT 1 FROM files WHERE epoch = ? AND work = ?"
        found: dict[int, tuple[int, int]] = {}
        for epoch, work, units in certified:
            if not self._db.execute(own, (epoch, work)).fetchone():
                of, tabled = found.get(epoch, (0, 0))
                found[epoch] = (of + units, tabled + units * (work in has))
        clear = line != UNCLEAR
        rows = [(epoch, of, tabled if clear else None, line) for epoch, (of, tabled) in found.items()]
        self._db.executemany("INSERT INTO tabled VALUES (?, ?, ?, ?)", rows)

    def _units_at(self, line: int, first: int, last: int) -> int:
        """Units of works that missed their table (0), or of which nobody can say (UNCLEAR)."""
        files = "SELECT coalesce(sum(units), 0) FROM files WHERE state != 'rejected' AND line = ?1"
        strays = "SELECT coalesce(sum(certified - coalesce(units, 0)), 0) FROM tabled WHERE (units IS NULL) = (?1 < 0)"
        both = [f"{query} AND epoch BETWEEN ?2 AND ?3" for query in (files, strays)]
        return sum(self._db.execute(query, (line, first, last)).fetchone()[0] for query in both)

    def tabled(self, most: int) -> list[Tabled]:
        """Where the works of this node's newest `most` epochs are that tables cover, oldest first."""
        query = (
            "WITH works (epoch, has, missed, unclear, line) AS ("
            "SELECT epoch, sum(units * (line > 0)), sum(units * (line = 0)), sum(units * (line < 0)), max(line) "
            "FROM files WHERE line IS NOT NULL AND state != 'rejected' GROUP BY epoch UNION ALL "
            "SELECT epoch, coalesce(units, 0), certified - coalesce(units, certified), certified * (units IS NULL), "
            "line FROM tabled) SELECT epoch, sum(has), sum(missed), sum(unclear), max(line) FROM works "
            "GROUP BY epoch ORDER BY epoch DESC LIMIT ?"
        )
        return [Tabled(*row) for row in reversed(self._db.execute(query, (most,)).fetchall())]

    def sums(self, node: Address, quorum: int, posted: int, line: int) -> Sums:
        """Where all works are. posted: the last epoch that is tabled on chain, -1 before the first; line: this node's
        newest that is known."""
        record = self.record()
        through, settled, unclear = (record.through, record.line, record.unclear) if record else (-1, 0, 0)
        rows = self._certified(node, quorum, 0, 2**62)
        works, certified = {work: units for epoch, work, units in rows if epoch > through}, Counter[int]()
        made = accepted = unread = 0
        undecided = -1
        query = "SELECT epoch, work, units, state FROM files WHERE line IS NULL"
        for epoch, work, units, state in self._db.execute(query):
            counts = works.pop(work, None)
            if epoch is None or state == "rejected":
                continue
            if epoch <= posted:
                unread += units
            elif counts is not None:
                certified[epoch] += counts
            else:
                undecided = max(undecided, epoch)
                made, accepted = made + units * (state == "pending"), accepted + units * (state == "accepted")
        for epoch, work, units in rows:
            if work in works:
                certified[epoch] += units
        unread += sum(certified.pop(epoch) for epoch in [one for one in certified if one <= posted])
        told = max(self._units_at(UNCLEAR, 0, through) - unclear, 0)
        return Sums(
            made,
            accepted,
            undecided,
            dict(sorted(certified.items())),
            self._units_at(0, 0, through),
            told,
            max(unread - max(line - settled, 0), 0),
        )

    def record(self) -> PayRecord | None:
        """What was known at the last look; None before the first, and where it cannot be read."""
        kept = self._journal.recall(PAY)
        read = partial(msgspec.msgpack.decode, kept or b"", type=PayRecord)
        return cached(f"the journal's {PAY}", read) if kept else None

    def forget_epochs(self, through: int) -> None:
        """What a posted table covers counts no more, and nobody certifies it any more."""
        with self._journal.at_once():
            self._journal.remember(COVERED, (through + 1).to_bytes(8))
            # What was said stays (`said`): it is what keeps a restarted node from signing twice.
            for table in ("leaves", "earned", "roots", "refused", "lines"):
                self._db.execute(f"DELETE FROM {table} WHERE epoch <= ?", (through,))  # noqa: S608 - constants
