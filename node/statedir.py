"""The state directory and its lock: one daemon per directory, so one daemon per key."""

import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from node.errors import StateError

MIN_FREE_BYTES = 256 * 1024 * 1024


class StateDir:
    """Creates the directory, holds its lock until `close`. Other processes see the pid of the holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("blobs", "logs", "tmp"):
                (path / name).mkdir(exist_ok=True)
            self._lock = _open_lock(path / "lock")
        except OSError as error:
            raise StateError(
                f"cannot use the state directory {path}", error.strerror or str(error), _remedy(error)
            ) from error
        self._acquire()
        self._check_space()

    def _acquire(self) -> None:
        if not _try_lock(self._lock):
            self._lock.seek(0)
            holder = self._lock.read(16).strip() or "unknown"
            self._lock.close()
            raise StateError(
                f"the state directory {self.path} is in use",
                f"another daemon (pid {holder}) holds its lock",
                "stop that daemon, or give this one its own --state-dir (and so its own key)",
            )
        self._lock.truncate(0)
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

    def _check_space(self) -> None:
        disk = os.statvfs(self.path)
        free = disk.f_bavail * disk.f_frsize
        if free < MIN_FREE_BYTES:
            self.close()
            raise StateError(
                f"the disk of {self.path} is full",
                f"{free // 2**20} MiB are free, at least {MIN_FREE_BYTES // 2**20} are needed",
                "free some space, or use --state-dir on another disk",
            )

    def close(self) -> None:
        """Release the lock and remove its file."""
        if not self._lock.closed:
            (self.path / "lock").unlink(missing_ok=True)
            self._lock.close()


def _open_lock(path: Path) -> IO[str]:
    """The lock file, opened so that it is still the one at `path` (its last holder deletes it on leaving)."""
    while True:
        file = open(path, "a+")  # noqa: SIM115 - held for the daemon's life
        mine = _try_lock(file)
        if not mine or (path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino):
            return file
        file.close()


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remedy(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "free some space, or use --state-dir on another disk"
    return "choose another with --state-dir, or correct its permissions"
