"""Processes that must not outlive the one that forked them. Linux only. Standard library only."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int, farewell: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal to this process when `parent` is gone; ends it at once if it is gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(farewell))
    if os.getppid() != parent:
        os._exit(1)
