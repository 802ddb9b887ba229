"""Freed memory stays with an engine's process: the C library would hand it back after every layer and fetch it again.

The pages of a layer's intermediate results are zeroed by the operating system each time; on small models that is a
third of a prefill. What is computed does not change.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_BYTES = 256 * 1024**2
"""At most so much that is free stays."""
_LARGEST = 32 * 1024**2
"""What malloc may take from there; larger blocks come from the operating system and go back, as ever."""


def keep_freed_memory() -> bool:
    """Whether the C library can be told so: glibc's can, others only stay slower."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
