"""The process around a sandbox: one fork for each call, so that each begins in the same state.

Here only requests, forks, deadlines and pipes are known, not what is being called.
"""

import os
import select
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from node.sandbox import wire
from node.sandbox.confined import libc

STDIN, STDOUT = 0, 1
_CHUNK = 1 << 20


class CallServer:
    """Takes requests from standard input, answers on standard output. seconds: wall clock of a call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def serve(self, ask: Callable[[wire.Request], wire.Ending | bytes]) -> None:
        """Until the node is gone. ask: an ending, or a frame that holds one; OSError where no fork can be had."""
        wire.write(STDOUT, wire.encode(wire.READY))
        while True:
            try:
                request = wire.decode(wire.read(STDIN), wire.Request)
            except wire.Closed:
                return
            try:
                answer = ask(request)
            except OSError as error:
                answer = wire.Ending("", error=f"this machine cannot fork: {error}")
            wire.write(STDOUT, answer if isinstance(answer, bytes) else wire.encode(answer))


class ForkingServer(CallServer):
    """For a guest that asks for requests in the middle of its code: `next` returns in a fork that goes on with it.

    harden: what each fork does first.
    """

    def __init__(self, seconds: float, answer_limit: int, harden: Callable[[], None]) -> None:
        super().__init__(seconds)
        self._answer_limit, self._harden = answer_limit, harden
        self._answer_to = STDOUT

    def next(self) -> wire.Request:
        """Returns in a fresh fork for every request, and never in the process that called it."""
        taken: list[wire.Request] = []
        try:
            self.serve(lambda request: self._fork(request, taken))
        except _InFork:
            return taken[0]
        os._exit(0)

    def answer(self, ending: wire.Ending) -> NoReturn:
        """Say how it ended, and end: the call, or the loading if there was no call yet."""
        wire.write(self._answer_to, wire.encode(ending))
        os._exit(0)

    def _fork(self, request: wire.Request, taken: list[wire.Request]) -> bytes | wire.Ending:
        mine, theirs = os.pipe()
        server = os.getpid()
        try:
            child = os.fork()
        except OSError:
            os.close(mine)
            os.close(theirs)
            raise
        if child == 0:
            libc.die_with(server)
            _leave_the_servers_pipes()
            self._answer_to = theirs
            self._harden()
            taken.append(request)
            raise _InFork
        os.close(theirs)
        return self._await(child, mine)

    def _await(self, child: int, pipe: int) -> bytes | wire.Ending:
        """The call's answer as a frame, or why there is none. Ends and reaps the fork."""
        try:
            frame = gather(pipe, self._seconds, self._answer_limit)
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return wire.Ending("", error=f"it took more than {self._seconds:g} s")
        finally:
            os.close(pipe)
        _, status = os.waitpid(child, 0)
        whole = len(frame) == 4 + int.from_bytes(frame[:4], "little")
        return frame if whole else wire.Ending("", error=f"its process ended: {killed(status)}")


def gather(pipe: int, seconds: float, most: int) -> bytes:
    """Everything up to the end of the pipe, or a little over `most` bytes. Raises TimeoutError.

    Where the node is gone, this process ends.
    """
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    poll.register(STDIN, 0)
    data = bytearray()
    while len(data) <= most:
        ready = dict(poll.poll(max(until - time.monotonic(), 0) * 1000))
        if not ready:
            raise TimeoutError
        if STDIN in ready:
            raise SystemExit
        part = os.read(pipe, _CHUNK)
        if not part:
            break
        data += part
    return bytes(data)


def killed(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


class _InFork(BaseException):
    """Leads the fork out of the server's loop."""


def _leave_the_servers_pipes() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, STDIN)
    os.dup2(null, STDOUT)
    os.close(null)
