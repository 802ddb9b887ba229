"""One demo per directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.errors import CommandError


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Holds DIR/.lock; raises CommandError when another demo does. The file is gone afterwards."""
    path = directory / ".lock"
    directory.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise CommandError(
                f"another demo runs in {directory}",
                f"its process {file.read(16).strip() or '(unknown)'} holds {path}",
                "wait for it, stop it with Ctrl-C, or use another directory: --dir DIR",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
