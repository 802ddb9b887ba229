"""What the books of a journal are kept in: one database, its transactions, its facts."""

import sqlite3
from contextlib import AbstractContextManager
from typing import Protocol


class JournalRows(Protocol):
    """What a book is kept in."""

    db: sqlite3.Connection

    def at_once(self) -> AbstractContextManager[None]: ...
    def remember(self, name: str, value: bytes) -> None: ...
    def recall(self, name: str) -> bytes | None: ...
