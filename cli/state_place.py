"""What can be wrong with a daemon's state directory that the daemon itself does not see."""

import shutil
from pathlib import Path

from cli.daemon_status import DaemonStatus

LEAST_FREE = 256 * 1024 * 1024
"""Bytes below which a daemon would not start again (`node.state.directory`)."""


def trouble_of(status: DaemonStatus) -> str | None:
    """In a sentence with its remedy; None where all is well."""
    if not status.node.state_dir:
        return None
    place = Path(status.node.state_dir)
    try:
        free = shutil.disk_usage(place).free
    except FileNotFoundError:
        return (
            f"the state directory {place} was moved or deleted under the daemon: stop it (kill {status.node.pid}), "
            "then join with --state-dir at its new place"
        )
    except OSError as error:
        return f"the state directory {place} cannot be looked at: {error.strerror}"
    if free < LEAST_FREE:
        return f"the disk of {place} is full: {free // 2**20} MiB are free; log lines are lost, then the journal fails"
    return None
