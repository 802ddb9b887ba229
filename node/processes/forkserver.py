"""How a daemon starts its children: anew, as everywhere, or from a fork server.

Without a server (not on Linux, or while a dead one is being replaced) and for other programs than our modules,
children are started anew: slower, never not at all.
"""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog
import trio

from node.processes.launch import LaunchedServer, launch
from node.processes.opening import patiently
from node.processes.wire import MAX_PACKET, ChildEnded, ChildStarted, Packet, StartChild, decode, encode

log = structlog.get_logger()

KILLED = -9
SAID_BYTES = 64 * 1024
"""Of what a program prints, its end."""


class ChildProcess(Protocol):
    """The part of `trio.Process` that the daemon uses; it leads a session and a process group of its own."""

    @property
    def pid(self) -> int: ...
    @property
    def stdin(self) -> trio.abc.SendStream | None: ...
    @property
    def stdout(self) -> trio.abc.ReceiveStream | None: ...

    def poll(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        ...

    async def wait(self) -> int:
        """The same, once it has ended."""
        ...


class Starter(Protocol):
    """Starts programs. heard: whether their output comes to us; otherwise it goes where ours does."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> ChildProcess:
        """Raises OSError if it cannot be started."""
        ...

    async def said(self, command: Sequence[str]) -> bytes:
        """What it prints until it ends, with this process's environment; what it complains of is dropped. Raises
        OSError if it cannot be started."""
        ...


class Anew:
    """As the system does it."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> ChildProcess:
        return await trio.lowlevel.open_process(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if heard else None,
            stderr=None,
            env=dict(environment),
            # So that a terminal's Ctrl-C reaches the daemon only, and the group can be killed whole.
            start_new_session=True,
        )

    async def said(self, command: Sequence[str]) -> bytes:
        done = await trio.run_process(list(command), capture_stdout=True, capture_stderr=True, check=False)
        return done.stdout[-SAID_BYTES:]


class _Awaited:
    """An order without an answer. child: None if there is none."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: ForkedChild | None = None
        self.answered = trio.Event()

    def answer(self, child: "ForkedChild | None") -> None:
        self.child = child
        self.answered.set()


class ForkServer:
    """A `Starter` by way of a server that was launched, or of none; children can be ordered while `run` runs."""

    def __init__(self, server: LaunchedServer | None) -> None:
        self._server = server
        self._link: trio.socket.SocketType | None = None
        self._children: dict[int, ForkedChild] = {}
        self._awaited: _Awaited | None = None
        self._turn = trio.Lock()
        # Beginning with our pid: a guardian starts a daemon again with the same server, whose answers to the dead one
        # may still be in the socket.
        self._numbers = itertools.count(os.getpid() << 32)

    @property
    def pid(self) -> int | None:
        """Of the server, None where there is none."""
        return self._server.process.pid if self._server else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Hear of the children until cancelled; a server that dies is replaced. Leaves nothing running."""
        try:
            self._connect()
            task_status.started()
            while self._server and self._link:
                modules, environment = self._server.modules, self._server.environment
                await self._listen(self._link)
                # First: its children died with it, and whoever waits for one must hear that before another one comes.
                await self._bury()
                log.warning("forkserver.died")
                self._server = _launched(modules, environment)
                self._connect()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self._bury()

    async def start(self, command: Sequence[str], environment: Mapping[str, str], *, heard: bool) -> ChildProcess:
        """As `Starter.start`; where no more files may be open it waits."""
        order = self.order(command, environment)

        async def start() -> ChildProcess:
            child = await self._piped(order, heard) if order is not None else None
            return child or await Anew().start(command, environment, heard=heard)

        return await patiently(start)

    async def said(self, command: Sequence[str]) -> bytes:
        """As `Starter.said`."""
        return await patiently(lambda: self._said(command))

    async def _said(self, command: Sequence[str]) -> bytes:
        order = self.order(command, os.environ)
        if order is None:
            return await Anew().said(command)
        source, sink = os.pipe2(os.O_CLOEXEC)
        async with trio.lowlevel.FdStream(source) as stream:
            try:
                # All three are named: one that is not given stays the server's own, whose output is the daemon's.
                with open(os.devnull, "r+b") as nothing:  # noqa: ASYNC230 - never waits
                    child = await self.fork(order, [nothing.fileno(), sink, nothing.fileno()])
            finally:
                os.close(sink)
            return await Anew().said(command) if child is None else await _end_of(stream, child)

    def order(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str = "",
        farewell: int = signal.SIGKILL,
    ) -> StartChild | None:
        """For `python -m module arguments...` with our own interpreter; None for any other program, or one too long.
        directory, farewell: as in `StartChild`."""
        # Another interpreter has other modules: what the server has imported is none of its.
        if tuple(command[:2]) != (sys.executable, "-m") or len(command) < 3:
            return None
        words = (command[2], tuple(command[3:]), dict(environment), directory, int(farewell))
        order = StartChild(next(self._numbers), *words)
        # A packet is read in one piece: one that is cut would be no order at all.
        return order if len(encode(order)) <= MAX_PACKET else None

    async def fork(self, order: StartChild, descriptors: Sequence[int]) -> "ForkedChild | None":
        """A child with these as its stdin, stdout and stderr, as far as they go; None if the server is gone or has no
        room for it. The descriptors stay the caller's."""
        # One order at a time, so that an answer needs no search.
        async with self._turn:
            return await self._ordered(self._link, order, descriptors) if self._link is not None else None

    def _connect(self) -> None:
        self._link = trio.socket.from_stdlib_socket(self._server.socket) if self._server else None

    async def _piped(self, order: StartChild, heard: bool) -> "ForkedChild | None":
        """The child, with pipes for its stdin and, where it is heard, its stdout."""
        # O_CLOEXEC: else each child that is started anew would hold the others' pipes open, and none would ever see its
        # end.
        source, sink = os.pipe2(os.O_CLOEXEC)
        theirs, ours = [source], [sink]
        child = None
        try:
            if heard:
                heard_at, told_at = os.pipe2(os.O_CLOEXEC)
                theirs, ours = [source, told_at], [sink, heard_at]
            child = await self.fork(order, theirs)
        finally:
            # Where there is no child, ours have no reader or writer: cancelled, out of descriptors, or no server.
            for descriptor in theirs if child is not None else [*theirs, *ours]:
                os.close(descriptor)
        if child is None:
            return None
        child.stdin = trio.lowlevel.FdStream(sink)
        child.stdout = trio.lowlevel.FdStream(ours[1]) if heard else None
        return child

    async def _ordered(
        self, link: trio.socket.SocketType, order: StartChild, descriptors: Sequence[int]
    ) -> "ForkedChild | None":
        """The new child. Not cancelled half-way: nobody would own it."""
        # SCM_RIGHTS takes C ints.
        rights = b"".join(each.to_bytes(4, sys.byteorder) for each in descriptors)
        awaited = self._awaited = _Awaited(order.number)
        # For an answer: a server that was just launched has its imports to do first.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 120.0):
            try:
                await link.sendmsg([encode(order)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                await awaited.answered.wait()
            except OSError as error:
                log.warning("forkserver.unreachable", why=str(error))
        self._awaited = None
        if not awaited.answered.is_set() and self._server:
            os.kill(self._server.process.pid, signal.SIGKILL)  # it hangs: `run` replaces it
        return awaited.child  # not looked up by its pid: it may have ended already

    async def _listen(self, link: trio.socket.SocketType) -> None:
        """Until the server is gone."""
        while True:
            try:
                data = await link.recv(MAX_PACKET)
                if not data:
                    return
                self._note(decode(data))
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("forkserver.unreadable", why=str(error))
                return

    def _note(self, packet: Packet) -> None:
        # Of a child that nobody took there may be an end as well: its order was given up, and it is no error.
        if isinstance(packet, ChildEnded):
            child = self._children.pop(packet.pid, None)
            if child is not None:
                child.ended(packet.status)
        elif isinstance(packet, ChildStarted) and self._awaited is not None and self._awaited.number == packet.number:
            child = ForkedChild(packet.pid) if packet.pid else None
            if child is not None:
                self._children[packet.pid] = child
            self._awaited.answer(child)

    async def _bury(self) -> None:
        """The server is gone, or goes; the kernel ends its children with it."""
        server, self._server = self._server, None
        if self._link is not None:
            self._link.close()
            self._link = None
        if server is not None:
            os.kill(server.process.pid, signal.SIGKILL)  # nobody asked for its status: the number is still its own
            await trio.to_thread.run_sync(server.process.wait)
        for child in self._children.values():
            child.ended(KILLED)
        self._children.clear()
        if self._awaited is not None:
            self._awaited.answer(None)


async def _end_of(stream: trio.lowlevel.FdStream, child: ChildProcess) -> bytes:
    """What a child says until it ends; nothing of it outlives the question."""
    end = bytearray()
    try:
        # To the end, also of what is dropped: a child whose pipe is full would never end.
        async for piece in stream:
            end += piece
            del end[:-SAID_BYTES]
        await child.wait()
    finally:
        with trio.CancelScope(shield=True):
            await end_child(child)
    return bytes(end)


async def end_child(child: ChildProcess) -> None:
    """Leave nothing running: the group at once, the workers by themselves as soon as their parent is gone."""
    await close_stdin(child)
    kill_group(child.pid)
    await child.wait()


async def close_stdin(child: ChildProcess) -> None:
    if child.stdin is not None:
        await child.stdin.aclose()


def kill_group(pid: int) -> None:
    """A child and all that it started; of one that was forked just now, which leads no group yet, itself."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _launched(modules: Sequence[str], environment: Mapping[str, str] | None) -> LaunchedServer | None:
    """Another server, or none: where memory is short the old one was killed for it, and the daemon must not end too."""
    try:
        return launch(modules, environment)
    except OSError as error:
        log.warning("forkserver.not_launched", why=str(error))
        return None


class ForkedChild:
    """A child of the server, in the form of `trio.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stdin: trio.abc.SendStream | None = None
        self.stdout: trio.abc.ReceiveStream | None = None
        self._status: int | None = None
        self._gone = trio.Event()

    def ended(self, status: int) -> None:
        """The server says so."""
        self._status = status
        self._gone.set()

    def poll(self) -> int | None:
        return self._status

    async def wait(self) -> int:
        await self._gone.wait()
        return KILLED if self._status is None else self._status
