"""What quorums certified of everybody, for the table of earnings. Blocking: through `Journal.do`."""

from node.state.rows import Rows
from protocol.identity import Address


class EarnedBook:
    """`Journal.earned`."""

    def __init__(self, journal: "Rows") -> None:
        self._journal, self._db = journal, journal.db

    def note_earned(
        self, epoch: int, node: Address, works: list[tuple[bytes, int]], source: tuple[bytes, int], most: int
    ) -> bool:
        """(work, units) of a node that a quorum certified, from a blob of (root, size); whether any of it is news. Of a
        node and epoch at most `most` works and as many blobs as have brought something."""
        known = self.earned_works(epoch, node)
        fresh = [(epoch, one[0], node, one[1]) for one in works if one not in known][: max(most - len(known), 0)]
        if not fresh:
            return False
        with self._journal.at_once():
            self._db.executemany("INSERT OR IGNORE INTO earned VALUES (?, ?, ?, ?)", fresh)
            # This blob has all that earlier ones had, so they are no longer needed to prove the line.
            if known <= set(works):
                self._db.execute("DELETE FROM sources WHERE epoch = ? AND node = ?", (epoch, node))
            self._db.execute("INSERT OR IGNORE INTO sources VALUES (?, ?, ?, ?)", (epoch, node, *source))
        return True

    def earned_works(self, epoch: int, node: Address) -> set[tuple[bytes, int]]:
        """(work, units) of a node that a quorum certified, as far as this one was shown."""
        query = "SELECT work, units FROM earned WHERE epoch = ? AND node = ?"
        return set(self._db.execute(query, (epoch, node)).fetchall())

    def earned_between(self, first: int, last: int) -> list[tuple[int, Address, int]]:
        """(epoch, node, units) of what quorums certified and none refused; of a work that two quorums certified
        otherwise, the less."""
        works = (
            "SELECT epoch, node, min(units) AS units FROM earned WHERE epoch BETWEEN ? AND ? "
            "AND work NOT IN (SELECT work FROM refused) GROUP BY epoch, node, work"
        )
        query = f"SELECT epoch, node, sum(units) FROM ({works}) GROUP BY epoch, node"  # noqa: S608 - constants
        return self._db.execute(query, (first, last)).fetchall()

    def sources(self, first: int, last: int) -> list[tuple[int, Address, bytes, int]]:
        """(epoch, node, root, size) of the blobs that it stands in."""
        query = "SELECT epoch, node, root, size FROM sources WHERE epoch BETWEEN ? AND ?"
        return self._db.execute(query, (first, last)).fetchall()

    def refuse(self, work: bytes, epoch: int, proof: bytes) -> bool:
        """A quorum refused a work, with the proof; whether that is news."""
        return self._db.execute("INSERT OR IGNORE INTO refused VALUES (?, ?, ?)", (work, epoch, proof)).rowcount > 0

    def is_refused(self, work: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM refused WHERE work = ?", (work,)).fetchone() is not None

    def refusals(self, first: int, last: int) -> list[bytes]:
        """Proofs against works that somebody showed certificates of."""
        query = (
            "SELECT proof FROM refused WHERE epoch BETWEEN ? AND ? AND work IN (SELECT work FROM earned) ORDER BY work"
        )
        return [row[0] for row in self._db.execute(query, (first, last))]
