"""The process around a sandbox: one fork for each call, so that each begins in the same state.

The state is a process in which the module stands ready. It forks when a request comes; the fork answers into a pipe of
its own and ends. Here only forks, deadlines and pipes are known, not what is being called.
"""

import os
import select
import signal
import time
from typing import NoReturn

from node.parent import die_with_parent
from node.sandbox import wire

STDIN, STDOUT = 0, 1
_CHUNK = 1 << 20


class CallServer:
    """Takes requests from standard input, answers on standard output. seconds: wall clock of a call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answer_to: int | None = None

    @property
    def in_call(self) -> bool:
        """Whether this process is the fork of a call."""
        return self._answer_to is not None

    def next(self) -> wire.Request:
        """Returns in a fresh fork for every request, and never in the process that called it."""
        wire.write(STDOUT, wire.encode(wire.READY))
        while True:
            try:
                request = wire.decode(wire.read(STDIN), wire.Request)
            except wire.Closed:
                os._exit(0)
            mine, theirs = os.pipe()
            server = os.getpid()
            try:
                child = os.fork()
            except OSError as error:
                os.close(mine), os.close(theirs)
                wire.write(STDOUT, wire.encode(wire.Ending("", error=f"this machine cannot fork: {error}")))
                continue
            if child == 0:
                die_with_parent(server)
                self._become_call(theirs)
                return request
            os.close(theirs)
            wire.write(STDOUT, self._await(child, mine))

    def answer(self, ending: wire.Ending) -> NoReturn:
        """Say how it ended, and end: the call, or the loading if there was no call yet."""
        wire.write(STDOUT if self._answer_to is None else self._answer_to, wire.encode(ending))
        os._exit(0)

    def _become_call(self, answer_to: int) -> None:
        """Nothing of the server's pipes is left to the fork."""
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, STDIN)
        os.dup2(null, STDOUT)
        os.close(null)
        self._answer_to = answer_to

    def _await(self, child: int, pipe: int) -> bytes:
        """The call's answer as a frame, or why there is none. Ends and reaps the fork."""
        try:
            frame = _whole(pipe, self._seconds)
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            frame = wire.encode(wire.Ending("", error=f"it took more than {self._seconds:g} s"))
        finally:
            os.close(pipe)
        _, status = os.waitpid(child, 0)
        if frame:
            return frame
        return wire.encode(wire.Ending("", error=f"its process ended: {_told(status)}"))


def _whole(pipe: int, seconds: float) -> bytes:
    """Everything up to the end; empty where it is no whole frame. Raises TimeoutError.

    Where the node is gone, this process ends, and the fork with it.
    """
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(STDIN, 0)
    data = bytearray()
    while True:
        ready = dict(poll.poll(max(until - time.monotonic(), 0) * 1000))
        if not ready:
            raise TimeoutError
        if STDIN in ready:
            os._exit(0)
        part = os.read(pipe, _CHUNK)
        if not part:
            return bytes(data) if len(data) == 4 + int.from_bytes(data[:4], "little") else b""
        data += part


def _told(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
