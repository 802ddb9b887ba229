"""What trained which step: each group once. Blocking: through `Journal.do`."""

from node.state.rows import JournalRows


class UsedGroups:
    """`Journal.used`."""

    def __init__(self, journal: "JournalRows") -> None:
        self._journal, self._db = journal, journal.db

    def consume(self, roots: list[bytes], step: int) -> None:
        """These files train `step`; a file is used once."""
        with self._journal.at_once():
            # Not OR IGNORE: a group that trained a step before raises here and trains no second one.
            self._db.executemany("INSERT INTO consumed VALUES (?, ?)", [(root, step) for root in roots])

    def forget_consumed(self, first_step: int) -> list[bytes]:
        """Free the files of batches that were never written, since the node died between the two, or that were taken
        back; which they are."""
        return [
            row[0] for row in self._db.execute("DELETE FROM consumed WHERE step >= ? RETURNING root", (first_step,))
        ]

    def invalidate(self, root: bytes, why: str) -> bool:
        """Record that a file which trained a step was rejected afterwards; whether it had and was not recorded yet.

        A step consumes a file or groups of it: names that begin with its root.
        """
        row = self._db.execute("SELECT min(step) FROM consumed WHERE substr(root, 1, 32) = ?", (root,)).fetchone()
        if row[0] is None:
            return False
        cursor = self._db.execute("INSERT OR IGNORE INTO invalidated VALUES (?, ?, ?)", (root, row[0], why))
        return cursor.rowcount > 0

    def invalidated(self) -> list[tuple[bytes, int, str]]:
        """(file root, step that it trained, why) of every file that was rejected too late."""
        return self._db.execute("SELECT root, step, why FROM invalidated ORDER BY step").fetchall()

    def consumed(self, first_step: int = 0) -> dict[bytes, int]:
        """file root -> step that used it, of that step and later ones."""
        rows = self._db.execute("SELECT root, step FROM consumed WHERE step >= ?", (first_step,))
        return dict(rows.fetchall())

    def trained_by(self, most: int) -> list[bytes]:
        """Roots of the files that trained the newest steps."""
        query = "SELECT substr(root, 1, 32) AS file FROM consumed GROUP BY file ORDER BY max(step) DESC LIMIT ?"
        return [row[0] for row in self._db.execute(query, (most,))]
