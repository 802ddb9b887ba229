"""A lock file that says who holds it, frees itself when its holder dies, and is gone after a clean end."""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

UNKNOWN = "unknown"
"""A holder whose pid cannot be read: it has not written it yet, or the file is another user's."""


class FileLock:
    """An exclusive lock on `path`, held by this process. Blocking calls of microseconds; a lock that is held is refused
    soon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None
        self.holder = ""
        """pid of the process that holds it, or UNKNOWN, after a failed `acquire`"""

    def acquire(self) -> bool:
        """Whether the lock is ours now. OSError if the file cannot be opened."""
        looking = 0.05  # seconds in which whoever only looks (`holder_of`) has let go of it again
        until = time.monotonic() + looking
        while True:
            file = open(self.path, "a+", encoding="ascii", errors="replace")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                self.holder = _pid_in(file)
                file.close()
                if time.monotonic() > until:
                    return False
                time.sleep(looking / 10)
                continue
            if self._still_there(file):
                break
            file.close()  # its last holder deleted it between our open and our lock
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file
        return True

    def release(self) -> None:
        """Delete the file and free the lock; harmless if it is not held."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _still_there(self, file: IO[str]) -> bool:
        try:
            return os.fstat(file.fileno()).st_ino == self.path.stat().st_ino
        except FileNotFoundError:
            return False


def holder_of(path: Path) -> str | None:
    """pid of the process that holds the lock at `path`, or UNKNOWN; None if nobody does (a killed process leaves a dead
    file). Changes nothing."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            try:
                # Shared: two that look at once do not take each other for a holder.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return _pid_in(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return UNKNOWN  # who may not look cannot say that it is free
    return None


def _pid_in(file: IO[str]) -> str:
    text = file.read(16).strip()
    return text if text.isdecimal() else UNKNOWN
