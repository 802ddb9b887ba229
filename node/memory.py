"""Gives memory that is free but ours back to the system, now and then. Knows the C library; nothing of nodes."""

import ctypes
import sys
from collections.abc import Callable

import trio

EVERY = 300.0
"""Seconds. Between files and steps the heap is the largest; what is used again comes back at a page fault for 4 KiB."""


async def give_back() -> None:
    """Every few minutes until cancelled.

    Files, images' pieces and the chain's answers pass through blocks of the heap, and what stays for long is cut from
    between them: the pages around it are free and remain ours, some 15 MB of a worker after half an hour.
    """
    trim = _trim()
    if trim is None:
        return
    while True:
        await trio.sleep(EVERY)
        await trio.to_thread.run_sync(trim, 0, abandon_on_cancel=True)


def _trim() -> Callable[[int], int] | None:
    """malloc_trim(3), which lets go the interpreter's lock; None where there is another C library than glibc."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
