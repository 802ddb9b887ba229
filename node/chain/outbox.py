"""Transactions that were promised to the chain: written down before they are sent, until a block has them.

Knows SQLite rows only; blocking, a few milliseconds each. One process per key uses one outbox.
"""

import sqlite3
import threading
from pathlib import Path

import msgspec

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    hash TEXT PRIMARY KEY,
    sender TEXT NOT NULL,
    nonce INTEGER NOT NULL,
    raw BLOB NOT NULL,
    action TEXT NOT NULL
)
"""


class Pending(msgspec.Struct, frozen=True):
    """A signed transaction that no block was seen to have. hash: 0x hex; raw: what to send again."""

    hash: str
    sender: str
    nonce: int
    raw: bytes
    action: str


class Outbox:
    """path: the database file, None to keep it in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path or ":memory:", check_same_thread=False, timeout=10)
        if path is not None:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(_SCHEMA)
        self._db.commit()

    def record(self, pending: Pending) -> None:
        """Call before sending."""
        row = (pending.hash, pending.sender, pending.nonce, pending.raw, pending.action)
        with self._lock, self._db:
            self._db.execute("INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?)", row)

    def settle(self, sender: str, nonce: int) -> None:
        """A block has the nonce: forget every variant of its transaction."""
        with self._lock, self._db:
            self._db.execute("DELETE FROM outbox WHERE sender = ? AND nonce = ?", (sender, nonce))

    def pending(self, sender: str) -> list[Pending]:
        """Unfinished transactions of a sender, by nonce."""
        with self._lock:
            query = "SELECT hash, sender, nonce, raw, action FROM outbox WHERE sender = ? ORDER BY nonce, rowid"
            return [Pending(*row) for row in self._db.execute(query, (sender,))]

    def close(self) -> None:
        with self._lock:
            self._db.close()
