"""Transactions that were promised to the chain: written down before they are sent, with what became of them.

Knows SQLite rows only; blocking, a few milliseconds each. Rows belong to one deployment (`source`), so that a
local chain that starts anew is not sent the transactions of the last one.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from node.state.tables import SchemaForm, open_table, refused

_SCHEMA = """
CREATE TABLE IF NOT EXISTS transactions (
    hash TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    sender TEXT NOT NULL,
    nonce INTEGER NOT NULL,
    raw BLOB NOT NULL,
    action TEXT NOT NULL,
    intent TEXT NOT NULL,
    fate TEXT NOT NULL,
    block INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS transactions_of_sender ON transactions (source, sender, fate, nonce);
"""
FORM = SchemaForm("the outbox", 1, _SCHEMA, care="do not delete the file while transactions of its keys are unfinished")


class Fate(StrEnum):
    """pending: no block was seen to have it; untold: done, and whoever asked for it has not been told; mined: done;
    reverted: in a block, without effect; replaced: its number was used by another transaction; refused: no endpoint
    took it.
    """

    PENDING = "pending"
    UNTOLD = "untold"
    MINED = "mined"
    REVERTED = "reverted"
    REPLACED = "replaced"
    REFUSED = "refused"


class Pending(msgspec.Struct, frozen=True):
    """A signed transaction. hash: 0x hex; raw: what to send again; intent: equal for equal calls, whatever
    their number and fee; block: where it was mined, else 0.
    """

    hash: str
    sender: str
    nonce: int
    raw: bytes
    action: str
    intent: str = ""
    fate: Fate = Fate.PENDING
    block: int = 0


class Outbox:
    """path: the database file, None to keep it in memory only; source: which deployment the rows are of; tells: what is
    done stays UNTOLD until `tell`, as a person who was not told would ask for it again."""

    def __init__(self, path: Path | None = None, source: str = "", *, tells: bool = False) -> None:
        self._source = source
        self._done = Fate.UNTOLD if tells else Fate.MINED
        self._lock = threading.Lock()
        self._path = path or ":memory:"
        # Durable: a transaction that was sent and is not on the disk would be signed again after a power cut, under
        # another number.
        self._db = open_table(self._path, FORM)

    def record(self, pending: Pending) -> None:
        """Call before sending."""
        p = pending
        row = (p.hash, self._source, p.sender, p.nonce, p.raw, p.action, p.intent, p.fate.value, p.block)
        with self._lock, refused(self._path, FORM), self._at_once():
            self._db.execute("INSERT OR REPLACE INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def settle(self, sender: str, nonce: int, fate: Fate, *, winner: str | None = None, block: int = 0) -> None:
        """The number is used up: `winner` (a hash) has this fate, its other variants were replaced."""
        mine = "UPDATE transactions SET fate = ?, block = ? WHERE source = ? AND sender = ? AND nonce = ? AND fate = ?"
        waiting = (self._source, sender, nonce, Fate.PENDING.value)
        fate = self._done if fate is Fate.MINED else fate
        with self._lock, refused(self._path, FORM), self._at_once():
            if winner is not None:
                self._db.execute(f"{mine} AND hash = ?", (fate.value, block, *waiting, winner))
                # What still waits under this number now is the winner's other variants.
                fate = Fate.REPLACED
            self._db.execute(mine, (fate.value, 0, *waiting))
            keep = "SELECT rowid FROM transactions WHERE fate != ? ORDER BY rowid DESC LIMIT ?"
            forget = f"DELETE FROM transactions WHERE fate != ? AND rowid NOT IN ({keep})"  # noqa: S608 - constants
            # Finished rows that are kept for people to look at.
            self._db.execute(forget, (Fate.PENDING.value, Fate.PENDING.value, 2_000))

    def refuse(self, digest: str) -> None:
        """No endpoint took this variant."""
        with self._lock, refused(self._path, FORM), self._at_once():
            self._db.execute("UPDATE transactions SET fate = ? WHERE hash = ?", (Fate.REFUSED.value, digest))

    def pending(self, sender: str) -> list[Pending]:
        """Unfinished transactions of a sender: by number, then in the order in which they were signed."""
        return self._select("sender = ? AND fate = ? ORDER BY nonce, rowid", sender, Fate.PENDING.value)

    def untold(self, sender: str) -> list[Pending]:
        """What is done and nobody was told of: by number."""
        return self._select("sender = ? AND fate = ? ORDER BY nonce, rowid", sender, Fate.UNTOLD.value)

    def tell(self, digests: Iterable[str]) -> None:
        """Whoever asked for these knows that they are done."""
        rows = [(Fate.MINED.value, digest, Fate.UNTOLD.value) for digest in digests]
        with self._lock, refused(self._path, FORM), self._at_once():
            self._db.executemany("UPDATE transactions SET fate = ? WHERE hash = ? AND fate = ?", rows)

    def reopen(self, digest: str) -> None:
        """No block seems to have it any more."""
        with self._lock, refused(self._path, FORM), self._at_once():
            self._db.execute("UPDATE transactions SET fate = ? WHERE hash = ?", (Fate.PENDING.value, digest))

    def history(self, sender: str) -> list[Pending]:
        """Everything that is remembered of a sender, oldest first."""
        return self._select("sender = ? ORDER BY rowid", sender)

    def _select(self, where: str, *values: str) -> list[Pending]:
        query = f"SELECT hash, sender, nonce, raw, action, intent, fate, block FROM transactions WHERE source = ? AND {where}"  # noqa: S608,E501 - constants
        with self._lock, refused(self._path, FORM):
            rows = list(self._db.execute(query, (self._source, *values)))
        return [
            Pending(digest, sender, nonce, raw, action, intent, Fate(fate), block)
            for digest, sender, nonce, raw, action, intent, fate, block in rows
        ]

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """One transaction: all of it or nothing."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def close(self) -> None:
        with self._lock:
            self._db.close()
