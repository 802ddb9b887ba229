"""Whether this process may fork: a fork has the calling thread only, and a lock that another one held stays locked.

Asks the system, not Python. Python counts a thread as ended while OpenSSL still frees what the thread had, under a
lock of the whole process: a child that is forked at that moment hangs at its first connection. And Python never counts
the threads that libraries keep for themselves. Imports the standard library only.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TASKS = Path("/proc/self/task")
"""Where Linux lists a process's threads."""
POOLS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""What numpy and pyarrow are told so that they begin no threads when they are imported."""


def running() -> int:
    """How many threads this process has: as the system says, or Python where the system does not."""
    try:
        return len(os.listdir(TASKS))
    # Python counts its own threads only: on such systems a library's threads go unseen, and nothing is forked there.
    except OSError:
        return threading.active_count()


def alone(patience: float = 1.0) -> bool:
    """Whether no thread but the caller's is left. Waits up to `patience` seconds for threads that Python has ended."""
    until = time.monotonic() + patience
    # One that Python still counts is at work: it does not end because we wait.
    while threading.active_count() == 1 and running() > 1 and time.monotonic() < until:
        time.sleep(0.001)
    return threading.active_count() == 1 and running() == 1


@contextmanager
def without_pools() -> Iterator[None]:
    """For imports of a program that forks afterwards: while it lasts, libraries that heed POOLS begin no threads."""
    before = {name: os.environ.get(name) for name in POOLS}
    os.environ.update(POOLS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
