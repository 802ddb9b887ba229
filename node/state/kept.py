"""What this node wrote itself and reads again. If it cannot be read, the disk has changed it: nobody else is to blame,
and nobody else can mend it.

`kept` is for what cannot be had again, `cached` for what can: a cache that is damaged is set aside, told of once, and
made anew.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from node.errors import StateError
from protocol.errors import UNREADABLE, IntellectError

log = structlog.get_logger()
T = TypeVar("T")
DAMAGED = (*UNREADABLE, IntellectError, ValueError, KeyError, TypeError)
"""What decoders of this node's own bytes raise for others. Not OSError: a file that cannot be opened is none of it."""


def kept(where: str | Path, decode: Callable[[], T], remedy: str = "") -> T:
    """What `decode` reads. where: a file, or what of it; remedy: what to do where it cannot. Raises StateError."""
    try:
        return decode()
    except DAMAGED as error:
        raise StateError(
            f"{where} is damaged",
            f"it is not what this node wrote there, so this disk has changed it ({_reason(error)})",
            remedy or "look at the disk (dmesg, smartctl), then put the file back from a copy",
        ) from error


def cached(where: str | Path, decode: Callable[[], T]) -> T | None:
    """The same of what can be had again: None where it cannot be read. A file is put aside, beside its place."""
    try:
        return decode()
    except DAMAGED as error:
        log.warning("state.set_aside", file=str(where), why=_reason(error))
        if isinstance(where, Path) and where.is_file():
            os.replace(where, where.with_name(f"{where.name}.damaged"))
        return None


def _reason(error: Exception) -> str:
    return (error.why if isinstance(error, IntellectError) else f"{type(error).__name__}: {error}")[:200]
