import os
import threading
from pathlib import Path

import pytest

from node.state.locks import UNKNOWN, FileLock, holder_of


def test_a_lock_says_who_holds_it_and_a_dead_file_says_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None and holder_of(path / "below a file") is None
    path.write_text("99999\n")
    assert holder_of(path) is None
    lock = FileLock(path)
    assert lock.acquire() and holder_of(path) == str(os.getpid())
    lock.release()
    assert holder_of(path) is None


@pytest.mark.parametrize("text", [b"", b"somebody\n", b"\xff\xfe"])
def test_a_lock_that_is_held_without_a_pid_is_not_free(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held, late = FileLock(path), FileLock(path)
    assert held.acquire()
    path.write_bytes(text)
    assert holder_of(path) == UNKNOWN
    assert not late.acquire() and late.holder == UNKNOWN
    held.release()


def test_looking_at_a_lock_refuses_it_to_nobody(tmp_path: Path) -> None:
    path, over = tmp_path / "lock", threading.Event()
    path.write_text("1\n")  # of a process that was killed

    def look() -> None:
        while not over.is_set():
            holder_of(path)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(300):
            lock = FileLock(path)
            assert lock.acquire()
            lock.release()
            path.write_text("1\n")
    finally:
        over.set()
        looking.join()
