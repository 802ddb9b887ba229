"""One process with the imports of every participant, of which a demo's programs are forked: seconds and memory are
paid once instead of five times. Knows processes; nothing of nodes. Linux only; elsewhere all are started anew.
"""

import itertools
import os
import select
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
import trio

from cli.demo.supervise import Process, Program, Spawn, start_anew
from node.processes.launch import ENGINE, LEARNER, Server, launch
from node.processes.wire import MAX_PACKET, Ended, Packet, Start, Started, decode, encode

MODULES = ("cli.main", "cli.join", "cli.joinview", "node.daemon", *ENGINE, *LEARNER)
READY_SECONDS = 120.0
ANSWER_SECONDS = 10.0
KILLED = -int(signal.SIGKILL)


@asynccontextmanager
async def open_zygote(environment: Mapping[str, str]) -> AsyncIterator[Spawn]:
    """How to start programs while it lasts. Its imports run beside whatever comes next; the first to be started waits
    for them. What still runs at the end gets SIGTERM."""
    server = launch(MODULES, environment)
    if server is None:
        yield start_anew
        return
    zygote = Zygote(server)
    try:
        yield zygote.spawn
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(zygote.close)


class Zygote:
    """Our end of the server. Not for several threads."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._ended: dict[int, int] = {}
        self._gone = False
        self._ready = False

    def spawn(self, program: Program) -> Process:
        """Fork a program of ours; start it anew if it is another's, or the server is gone or without room."""
        if self._gone or tuple(program.command[:2]) != (sys.executable, "-m"):
            return start_anew(program)
        return self._forked(program) or start_anew(program)

    def status_of(self, pid: int) -> int:
        """How a child that is known to have ended did so; killed, as far as we know, if nobody can say any more."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while pid not in self._ended and not self._gone:
            self._hear(deadline)
        return self._ended.pop(pid, KILLED)

    def close(self) -> None:
        self._gone = True
        self._server.socket.close()
        self._server.process.wait()

    def _forked(self, program: Program) -> "Forked | None":
        number = next(self._numbers)
        words = tuple(program.command[2:])
        order = Start(
            number, words[0], words[1:], dict(program.environment), str(program.directory), int(signal.SIGTERM)
        )
        program.log.parent.mkdir(parents=True, exist_ok=True)
        with open(os.devnull, "rb") as nothing, program.log.open("ab") as log:
            try:
                places = [nothing.fileno(), log.fileno(), log.fileno()]
                socket.send_fds(self._server.socket, [encode(order)], places)
            except OSError:
                self._gone = True
                return None
            pid = self._answer(number)
        return Forked(pid, self) if pid else None

    def _answer(self, number: int) -> int:
        """The pid of what was ordered, 0 if there is none."""
        deadline = time.monotonic() + (ANSWER_SECONDS if self._ready else READY_SECONDS)
        while not self._gone:
            packet = self._hear(deadline)
            self._ready = True
            if isinstance(packet, Started) and packet.number == number:
                return packet.pid
        return 0

    def _hear(self, deadline: float) -> Packet | None:
        """The next packet; None if the server is gone, or hangs, which is the same."""
        self._server.socket.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            packet = decode(self._server.socket.recv(MAX_PACKET))
        except (OSError, msgspec.MsgspecError):
            self._gone = True
            return None
        if isinstance(packet, Ended):
            self._ended[packet.pid] = packet.status
        return packet


class Forked:
    """A forked program, in the form of `subprocess.Popen`."""

    def __init__(self, pid: int, zygote: Zygote) -> None:
        self.pid = pid
        self._zygote = zygote
        self._handle: int | None = _handle_of(pid)
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self) -> int:
        while (status := self._look(None)) is None:
            continue
        return status

    def terminate(self) -> None:
        if self._handle is not None:
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)

    def _look(self, seconds: float | None) -> int | None:
        """Its exit status, waiting at most so long for it; None: without end."""
        if self._status is None and (self._handle is None or select.select([self._handle], [], [], seconds)[0]):
            self._status = self._zygote.status_of(self.pid)
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None
        return self._status


def _handle_of(pid: int) -> int | None:
    """A descriptor that stands for the process and no later one of its number; None if it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
