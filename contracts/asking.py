"""Questions that do not wait for each other, asked at once: over a slow line each costs a round trip."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TASKS = Path("/proc/self/task")
PATIENCE = 5.0
"""Seconds for threads that have nothing more to do."""


def at_once(*questions: Callable[[], Any]) -> list[Any]:
    """The answers, in the order of the questions. Raises what the first of those raises that fail.

    In the main thread it returns when the system has ended the threads, too: the program may fork next.
    """
    threads: list[int] = []
    try:
        with ThreadPoolExecutor(len(questions), initializer=lambda: threads.append(threading.get_native_id())) as pool:
            return [asked.result() for asked in [pool.submit(question) for question in questions]]
    finally:
        if threading.current_thread() is threading.main_thread():
            _wait_for_the_end_of(threads)


def _wait_for_the_end_of(threads: list[int]) -> None:
    """Python counts a thread as ended while OpenSSL still frees what the thread had, under a lock of the whole process.
    A child that is forked at that moment has the lock held for good, and hangs at its first connection."""
    until = time.monotonic() + PATIENCE
    while any((TASKS / str(thread)).exists() for thread in threads) and time.monotonic() < until:
        time.sleep(0.001)
