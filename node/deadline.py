"""A bound on the time that an answer takes in all: a time-out of reads begins anew with each byte."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def within(connection: socket.socket, seconds: float) -> Iterator[float]:
    """The time (monotonic) at which the connection is cut: a server may send a byte now and then for ever. Whoever
    reads then reads an end."""
    timer = threading.Timer(seconds, _cut, (connection,))
    # A timer that waits must not keep a process alive that wants to end.
    timer.daemon = True
    timer.start()
    try:
        yield time.monotonic() + seconds
    finally:
        timer.cancel()
        # Gone when this ends: a process that forks next may have no other thread.
        timer.join()


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):  # it is over already
        # This wakes a thread that waits in recv. Closing would not, and would free the descriptor while it is in use.
        # Not the method of an encrypted socket: that forgets the encryption, under a thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
