"""Whether another daemon holds the state directory."""

import fcntl
from pathlib import Path

from node.preflight.finding import Finding, failure, ok


def check_lock(directory: Path, *, joining: bool) -> Finding:
    """joining: this program is about to take the directory, so whoever holds it is in the way. Changes nothing."""
    holder = holder_of(directory)
    if holder is None:
        return ok("lock", f"no daemon runs in {directory}", pid=None)
    if not joining:
        return ok("lock", f"a daemon runs in {directory}, pid {holder}", pid=holder)
    remedy = "stop that daemon, or give this one its own --state-dir (and so its own key)"
    return failure("lock", f"another daemon (pid {holder}) works in {directory}", remedy, pid=holder)


def holder_of(directory: Path) -> str | None:
    """The pid that holds the lock, None if nobody does; a file that a killed daemon left is nobody's."""
    try:
        with open(directory / "lock", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return file.read(16).strip() or "unknown"
    except (OSError, UnicodeDecodeError):
        return None
    return None
