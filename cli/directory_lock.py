"""One demo, or one training, per directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.errors import CommandError
from node.state.locks import FileLock


@contextmanager
def directory_lock(directory: Path, what: str = "demo") -> Iterator[None]:
    """Holds DIR/.lock; raises CommandError when another `what` does. The file is gone afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / ".lock")
    if not lock.acquire():
        raise CommandError(
            f"another {what} runs in {directory}",
            f"its process {lock.holder} holds {lock.path}",
            "wait for it, stop it with Ctrl-C, or use another directory: --dir DIR",
        )
    try:
        yield
    finally:
        lock.release()
