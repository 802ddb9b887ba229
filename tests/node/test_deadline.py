"""A bound on the time of an answer is over with the answer."""

import socket
import threading

from node.deadline import within


def test_whoever_was_answered_in_time_has_no_thread_left_and_may_fork() -> None:
    connection, other = socket.socketpair()
    with connection, other:
        before = {*threading.enumerate()}
        with within(connection, 60):
            assert {*threading.enumerate()} - before, "the control: it has one meanwhile"
        assert not {*threading.enumerate()} - before
