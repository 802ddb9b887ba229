"""The journal of the pool that a node is in: promises are made to a pool, and a node may go from one to another.

What was promised to a pool is set aside when the node joins another one, and is there again when it comes back: a
node that forgot it could sign twice for one place.
"""

import hashlib
import os
from pathlib import Path

from node.state.journal import Journal

NAME = "journal.sqlite"
FACT = "pool"


def journal_of(directory: Path, journal: Journal, pool: str) -> Journal:
    """The journal for `pool` (chain, contract and number): `journal`, the open one of `directory`, unless it is another
    pool's, which is closed then. Blocking. Raises StateError, OSError."""
    kept, wanted = journal.recall(FACT), pool.encode()
    before = _aside(directory, wanted)
    if kept == wanted or (kept is None and not before.exists()):
        journal.remember(FACT, wanted)
        return journal
    journal.close()
    if kept is not None:
        _move(directory / NAME, _aside(directory, kept))
    if before.exists():  # over a new and empty one where a crash came between these two moves
        _move(before, directory / NAME)
    found = Journal(directory / NAME)
    found.remember(FACT, wanted)
    return found


def _aside(directory: Path, pool: bytes) -> Path:
    return directory / f"journal-{hashlib.sha256(pool).hexdigest()[:16]}.sqlite"


def _move(source: Path, target: Path) -> None:
    """A closed database, with the log that a reader may have kept from being merged."""
    for ending in ("-wal", "-shm", ""):
        part = source.with_name(source.name + ending)
        if part.exists():
            os.replace(part, target.with_name(target.name + ending))
