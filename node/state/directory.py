"""The state directory: its lock (one daemon per directory, so one daemon per key), and the journal of each pool."""

import errno
import hashlib
import os
from pathlib import Path

from node.errors import StateError
from node.state.journal import FORM, Journal
from node.state.locks import FileLock
from node.state.tables import check_head
from protocol.identity import Address

JOURNAL_NAME = "journal.sqlite"
FACT, OWNER = "pool", "key"
# The journal must be able to grow: a node that cannot write a promise down may not make it.
MIN_FREE_BYTES = 256 * 1024 * 1024
ELSEWHERE = "choose another with --state-dir, or correct its permissions"


class StateDir:
    """Creates the directory, holds its lock until `close`. Other processes see the pid of the holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("blobs", "logs", "tmp"):
                (path / name).mkdir(exist_ok=True)
            self._lock = FileLock(path / "lock")
            self._acquire()
        except OSError as error:
            raise StateError(
                f"cannot use the state directory {path}", error.strerror or str(error), _remedy(error)
            ) from error
        try:
            check_space(path)
        except StateError:
            self.close()
            raise

    def _acquire(self) -> None:
        if not self._lock.acquire():
            raise StateError(
                f"the state directory {self.path} is in use",
                f"another daemon (pid {self._lock.holder}) holds its lock",
                "stop that daemon, or give this one its own --state-dir (and so its own key)",
            )

    def close(self) -> None:
        """Release the lock and remove its file."""
        self._lock.release()


def check_place(path: Path) -> None:
    """Refuse what `StateDir` would, and a journal that is none, before anything is written. Raises StateError."""
    place = existing(path)
    # access() also knows of file systems that nobody may write, not even root.
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        why = f"{place} cannot be written" if place.is_dir() else f"{place} is no directory"
        raise StateError(f"cannot use the state directory {path}", why, ELSEWHERE)
    check_space(place)
    check_head(path / JOURNAL_NAME, FORM)


def existing(path: Path) -> Path:
    """The path, or the nearest one above it that is there: in it a directory that is to be made is made."""
    return next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())


def check_space(path: Path, option: str = "--state-dir") -> None:
    """Raises StateError where the disk has no room for what a daemon must write. option: names another place."""
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    if free < MIN_FREE_BYTES:
        raise StateError(
            f"the disk of {path} is full",
            f"{free // 2**20} MiB are free, at least {MIN_FREE_BYTES // 2**20} are needed",
            f"free some space, or use {option} on another disk",
        )


def _remedy(error: OSError) -> str:
    return "free some space, or use --state-dir on another disk" if error.errno == errno.ENOSPC else ELSEWHERE


def journal_of(directory: Path, journal: Journal, pool: str) -> Journal:
    """The journal for `pool` (chain, contract and number): `journal`, the open one of `directory`, unless it is another
    pool's, which is closed then. Blocking. Raises StateError, OSError.

    Promises are made to a pool. What was promised to one is set aside when the node joins another, and is there again
    when it comes back: a node that forgot it could sign twice for one place.
    """
    kept, wanted = journal.recall(FACT), pool.encode()
    before = _aside(directory, wanted)
    if kept == wanted or (kept is None and not before.exists()):
        journal.remember(FACT, wanted)
        return journal
    journal.close()
    if kept is not None:
        _move(directory / JOURNAL_NAME, _aside(directory, kept))
    if before.exists():  # over a new and empty one where a crash came between these two moves
        _move(before, directory / JOURNAL_NAME)
    found = Journal(directory / JOURNAL_NAME, journal.pen)
    found.remember(FACT, wanted)
    return found


def check_owner(journal: Journal, own: Address | None) -> None:
    """The first key with which a journal was opened is the one whose words are in it. own: None where no key is at
    hand. Blocking. Raises StateError for another's."""
    kept = (journal.recall(OWNER) or b"").decode(errors="replace")
    if own is not None and not kept:
        journal.remember(OWNER, own.encode())
    elif kept and kept != own:
        raise StateError(
            "the journal is another key's",
            f"it has what {kept} has signed, and the key beside it is {own or 'not there'}",
            "bring the whole directory (intellect-node state export where it is whole), or name a new one",
        )


def _aside(directory: Path, pool: bytes) -> Path:
    return directory / f"journal-{hashlib.sha256(pool).hexdigest()[:16]}.sqlite"


def _move(source: Path, target: Path) -> None:
    """A closed database, with the log that a reader may have kept from being merged."""
    # The database last: killed in between, the next start finds it in its place and moves the rest.
    for ending in ("-wal", "-shm", ""):
        part = source.with_name(source.name + ending)
        if part.exists():
            os.replace(part, target.with_name(target.name + ending))
