"""A lock file that says who holds it, frees itself when its holder dies, and is gone after a clean end."""

import fcntl
import os
from pathlib import Path
from typing import IO


class FileLock:
    """An exclusive lock on `path`, held by this process. Blocking calls of microseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None
        self.holder = ""
        """pid of the process that holds it, after a failed `acquire`"""

    def acquire(self) -> bool:
        """Whether the lock is ours now. OSError if the file cannot be opened."""
        while True:
            file = open(self.path, "a+", encoding="ascii")  # noqa: SIM115 - held until release
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                self.holder = file.read(16).strip() or "unknown"
                file.close()
                return False
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


def holder_of(path: Path) -> int | None:
    """pid of the process that holds the lock at `path`; None if nobody does (a killed process leaves a dead file)."""
    try:
        file = open(path, encoding="ascii")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read(16).strip()
            return int(text) if text.isdigit() else None
    return None
