"""The process around a sandbox: one fork for each call, so that each begins in the same state, or for each session.

A session's fork waits for its next call where the guest asks for one. It cannot fork again: it is behind the walls.

Here only requests, forks, deadlines and pipes are known, not what is being called.
"""

import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from node.sandbox import wire
from node.sandbox.confined import libc

STDIN, STDOUT = 0, 1


def serve(ask: Callable[[wire.SandboxRequest], wire.GuestEnding | bytes]) -> None:
    """Take requests from standard input and answer on standard output, until the node is gone. ask: an ending, or a
    frame that holds one; OSError where no fork can be had."""
    wire.write(STDOUT, wire.encode(wire.READY))
    while True:
        try:
            request = wire.decode(wire.read(STDIN), wire.SandboxRequest)
        # The node is gone: a sandbox that lived on would be nobody's, with a stranger's code in it.
        except wire.Closed:
            return
        try:
            answer = ask(request)
        except OSError as error:
            # No fork is this machine's trouble, so Undecided. The server goes on: the next call may find room.
            answer = wire.GuestEnding("", error=f"this machine cannot fork: {error}")
        wire.write(STDOUT, answer if isinstance(answer, bytes) else wire.encode(answer))


class ForkingServer:
    """For a guest that asks for requests in the middle of its code: `next` returns in a fork that goes on with it.

    seconds: wall clock of a call; harden: what each fork does first.
    """

    def __init__(self, seconds: float, answer_limit: int, harden: Callable[[], None]) -> None:
        self._seconds, self._answer_limit, self._harden = seconds, answer_limit, harden
        self._answer_to, self._ask_from = STDOUT, STDIN
        self._sessions: dict[int, _Fork] = {}

    def next(self) -> wire.SandboxRequest:
        """Returns in a fresh fork for every request, and never in the process that called it."""
        taken: list[wire.SandboxRequest] = []
        try:
            serve(lambda request: self._ask(request, taken))
        except _InFork:
            return taken[0]
        # The node is gone. Below on this stack stands the guest's code, which must not go on without a request.
        os._exit(0)

    def answer(self, ending: wire.GuestEnding) -> NoReturn:
        """Say how it ended, and end: the call, or the loading if there was no call yet."""
        wire.write(self._answer_to, wire.encode(ending))
        os._exit(0)

    def go_on(self, ending: wire.GuestEnding) -> wire.SandboxRequest:
        """In a session's fork: say how its call ended, wait for the next."""
        wire.write(self._answer_to, wire.encode(ending))
        return wire.decode(wire.read(self._ask_from), wire.SandboxRequest)

    def _ask(self, request: wire.SandboxRequest, taken: list[wire.SandboxRequest]) -> bytes | wire.GuestEnding:
        # Taken out until its answer is here: a fork that fails or is too slow is asked no more.
        fork = self._sessions.pop(request.session, None)
        if not request.body:
            if fork is not None:
                fork.end()
            return wire.GuestEnding("", error="the session is over")
        # The machine that remembers is lost. A fresh one would answer as if no call had come before.
        if fork is None and request.goes_on:
            return wire.GuestEnding("", error="the session's process is gone")
        if fork is None:
            fork = self._fork(request, taken)
        else:
            try:
                wire.write(fork.ask, wire.encode(request), self._seconds)
            except (wire.Closed, TimeoutError):
                fork.end()
                return wire.GuestEnding("", error="the session's process is gone")
        return self._await(fork, request.session)

    def _fork(self, request: wire.SandboxRequest, taken: list[wire.SandboxRequest]) -> "_Fork":
        (hear, theirs), (asked, ask) = os.pipe(), os.pipe()
        # Asked before the fork: a child whose parent has died already would see another process's number.
        server = os.getpid()
        try:
            child = os.fork()
        except OSError:
            for descriptor in (hear, theirs, asked, ask):
                os.close(descriptor)
            raise
        if child == 0:
            libc.die_with(server)
            # A guest that could write there would answer later calls in the server's name.
            _leave_the_servers_pipes()
            # A guest that breaks out could answer for another session here. And a pipe that is held twice does not end.
            for other in (*self._sessions.values(), _Fork(0, ask, hear)):
                other.close()
            self._answer_to, self._ask_from = theirs, asked
            # Last: behind the walls nothing can be opened, not even the null device as above.
            self._harden()
            taken.append(request)
            raise _InFork
        os.close(theirs)
        os.close(asked)
        # A large request to a fork that does not read would block the server beyond any deadline.
        os.set_blocking(ask, False)
        return _Fork(child, ask, hear)

    def _await(self, fork: "_Fork", session: int) -> bytes | wire.GuestEnding:
        """The call's answer as a frame, or why there is none. The fork of a session that goes on is kept."""
        try:
            frame = gather(fork.hear, self._seconds, self._answer_limit, framed=session > 0)
        except TimeoutError:
            fork.end()
            return wire.GuestEnding("", error=f"it took more than {self._seconds:g} s")
        except SystemExit:
            fork.end()
            raise
        # A fork that is killed while it answers leaves half a frame.
        whole = len(frame) == 4 + int.from_bytes(frame[:4], "little")
        if session and whole:
            self._sessions[session] = fork
            return frame
        # The fork of a single call closes its pipe by ending, so its wait status says how. Others may be at work.
        status = fork.end(kill=session > 0 or len(frame) > self._answer_limit)
        return frame if whole else wire.GuestEnding("", error=f"its process ended: {killed(status)}")


@dataclass(frozen=True, slots=True)
class _Fork:
    """A process that makes calls. ask, hear: pipes to and from it."""

    pid: int
    ask: int
    hear: int

    def close(self) -> None:
        os.close(self.ask)
        os.close(self.hear)

    def end(self, *, kill: bool = True) -> int:
        """Its wait status. kill: it may still be at work."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        self.close()
        return os.waitpid(self.pid, 0)[1]


def gather(pipe: int, seconds: float, most: int, *, framed: bool = False) -> bytes:
    """Everything up to the end of the pipe, or a little over `most` bytes. framed: of one frame. Raises TimeoutError.

    Where the node is gone, this process ends.
    """
    until = time.monotonic() + seconds
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    # No events: poll tells of a hang-up all the same, and the next request stays unread.
    poll.register(STDIN, 0)
    data = bytearray()
    chunk = 1 << 20
    while len(data) <= most:
        ready = dict(poll.poll(max(until - time.monotonic(), 0) * 1000))
        if not ready:
            raise TimeoutError
        if STDIN in ready:
            raise SystemExit
        part = os.read(pipe, chunk)
        if not part:
            break
        data += part
        # Filled up with ff, a length that is not whole yet is one that no data reach.
        if framed and len(data) >= 4 + int.from_bytes(data[:4].ljust(4, b"\xff"), "little"):
            break
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
