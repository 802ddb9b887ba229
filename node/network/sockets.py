"""TCP sockets: such as share the listening port with dials from it, which is what punching a hole takes, and such as
one task reads and one writes at a time, which need no locks.

Knows sockets; knows no peers. The port is shared within this process only: `hardening.port_is_taken`.
"""

import os
import select
import socket
import struct
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import msgspec
import trio
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream

# One window of yamux: what one stream may send unasked is read by one call.
READ_AHEAD = 256 * 1024
MAX_RUN = 1024 * 1024
"""Bytes that are written without letting others run."""


class Tcp(msgspec.Struct, frozen=True):
    """What the system says of a connection. rtt, varies, least_rtt: seconds, smoothed, its mean deviation and the
    shortest; segments: with data, that were sent, of which `sent_again` were so for a second time."""

    congestion: str
    rtt: float
    varies: float
    least_rtt: float
    segments: int
    sent_again: int


class Prompt(ABC):
    """A connection that takes what it can without waiting, so that most writes need no deadline and no turn."""

    @abstractmethod
    def begin_write(self, data: bytes | memoryview) -> memoryview:
        """What is left for `finish_write`. Raises what that does."""

    @abstractmethod
    async def finish_write(self, rest: memoryview) -> None: ...

    @abstractmethod
    def keep_short(self, size: int) -> None:
        """Take no more at once than leaves about so many bytes unsent below, where the system can tell."""


class LeanSocket(ReadWriteCloser, Prompt):
    """The library's stream without its locks, for one reader and one writer: each lock, and each call of trio's that
    need not wait, costs another turn of the event loop. Errors are the library's."""

    def __init__(self, inner: TrioTCPStream) -> None:
        self._inner = inner
        self._socket = inner.stream.socket
        self._dry = True
        self._run = 0
        self._room = select.poll()
        self._room.register(self._socket.fileno(), select.POLLOUT)

    async def read(self, n: int | None = None) -> bytes:
        """1 to n bytes; b"" at the end, or once it was closed here."""
        size = READ_AHEAD if n is None else n
        while (number := self._socket.fileno()) >= 0:
            try:
                # Only where the last read left nothing behind: to ask the system first is a turn of the event loop, to
                # try is not.
                if self._dry:
                    await trio.lowlevel.wait_readable(number)
                self._dry = True
                data = os.read(number, size)
            except (BlockingIOError, trio.ClosedResourceError):
                continue
            except OSError as error:
                raise _gone(error) from error
            # A full read means that there may be more.
            self._dry = len(data) < size
            return data
        return b""

    async def write(self, data: bytes) -> None:
        await self.finish_write(self.begin_write(data))

    def begin_write(self, data: bytes | memoryview) -> memoryview:
        """Now and then nothing is taken, to let others run; or while too much is unsent: a full socket would still
        fill up its last buffer, of 64 KiB, which is half a second at 1 Mbit/s."""
        rest = memoryview(data)
        return self._written(rest) if self._room.poll(0) else rest

    def _written(self, rest: memoryview) -> memoryview:
        if self._run < MAX_RUN:
            try:
                sent = os.write(self._socket.fileno(), rest)
            except BlockingIOError:
                return rest
            except OSError as error:
                raise _gone(error) from error
            self._run += sent
            rest = rest[sent:]
        return rest

    async def finish_write(self, rest: memoryview) -> None:
        try:
            while rest:
                await trio.lowlevel.wait_writable(self._socket.fileno())
                self._run = 0
                rest = self._written(rest)
        except (OSError, ValueError, trio.ClosedResourceError) as error:  # ValueError: the number of a closed one
            raise _gone(error) from error

    def keep_short(self, size: int) -> None:
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with suppress(OSError):  # it is closed already
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)

    def tcp(self) -> Tcp | None:
        """None where the system does not say, or the socket is closed."""
        if sys.platform != "linux":
            return None
        tcp_info_bytes = 224  # up to what Linux 4.19 and later say of data that was sent again
        try:
            told = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, tcp_info_bytes)
            name = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            return None
        if not isinstance(told, bytes) or not isinstance(name, bytes) or len(told) < tcp_info_bytes:
            return None
        # Places in struct tcp_info (linux/tcp.h), which only ever grows at its end.
        rtt, varies, again, least, segments = (struct.unpack_from("=I", told, at)[0] for at in (68, 72, 100, 148, 156))
        congestion = name.split(b"\0")[0].decode("ascii", "replace")
        return Tcp(congestion, rtt / 1e6, varies / 1e6, least / 1e6, segments, again)

    async def close(self) -> None:
        await self._inner.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._inner.get_remote_address()


def _gone(error: Exception) -> ConnectionClosedError:
    return ConnectionClosedError(f"the connection is gone: {error}", transport="tcp")


class Buffered(ReadWriteCloser, Prompt):
    """Reads ahead. The library asks for two bytes, then for a message, and so on."""

    def __init__(self, inner: ReadWriteCloser) -> None:
        self._inner = inner
        self._ahead = memoryview(b"")

    async def read(self, n: int | None = None) -> bytes:
        if not self._ahead:
            fresh = await self._inner.read(READ_AHEAD)
            if n is None or n >= len(fresh):
                return fresh
            self._ahead = memoryview(fresh)
        data = bytes(self._ahead[:n])
        self._ahead = self._ahead[len(data) :]
        return data

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)

    def begin_write(self, data: bytes | memoryview) -> memoryview:
        return self._inner.begin_write(data) if isinstance(self._inner, Prompt) else memoryview(data)

    async def finish_write(self, rest: memoryview) -> None:
        if isinstance(self._inner, Prompt):
            await self._inner.finish_write(rest)
        elif rest:
            await self._inner.write(bytes(rest))

    def keep_short(self, size: int) -> None:
        if isinstance(self._inner, Prompt):
            self._inner.keep_short(size)

    async def close(self) -> None:
        await self._inner.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._inner.get_remote_address()


def _shared(host: str) -> trio.socket.SocketType:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = trio.socket.socket(family, socket.SOCK_STREAM)
    # Else a restart within a minute finds its port still held by the connections that it closed.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:  # or :: takes the calls of 0.0.0.0 too, from addresses like ::ffff:1.2.3.4
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return made


async def open_listeners(host: str | None, port: int) -> list[trio.SocketListener]:
    """In the form that the library calls; no host: every IPv4 interface. Raises OSError."""
    made = _shared(host or "0.0.0.0")  # noqa: S104 - a peer is to be reached by peers
    try:
        await made.bind((host or "0.0.0.0", port))  # noqa: S104 - as above
        made.listen(128)  # after an outage all members may dial within one second
        return [trio.SocketListener(made)]
    except BaseException:
        made.close()
        raise


async def connect_from(own: tuple[str, int], host: str, port: int) -> trio.SocketStream:
    """A connection whose own end is a port that may be listened on. Raises OSError."""
    made = _shared(host)
    try:
        await made.bind(own)
        await made.connect((host, port))
        return trio.SocketStream(made)
    except BaseException:
        made.close()
        raise


def lean(stream: ReadWriteCloser) -> Buffered:
    """The same, read ahead, and without locks if it is a socket."""
    return Buffered(LeanSocket(stream) if isinstance(stream, TrioTCPStream) else stream)


def unbuffered(stream: Any) -> tuple[Any, memoryview]:
    """What a buffer reads from, and what it has read ahead: for who takes over from it, and reads much at once. Others
    as they are."""
    if not isinstance(stream, Buffered):
        return stream, memoryview(b"")
    ahead, stream._ahead = stream._ahead, memoryview(b"")
    return stream._inner, ahead


def prompt(conn: Any) -> Prompt:
    """Itself, or one that takes nothing at once. conn: whatever has an async `write`."""
    return conn if isinstance(conn, Prompt) else Buffered(conn)


def remote_address(self: TrioTCPStream) -> tuple[str, int] | None:
    """Host and port of the other end, of either family; None if it was gone before anybody asked."""
    if self._cached_remote_address is None:
        try:
            host, port, *_ = self.stream.socket.getpeername()
        except OSError:
            return None
        # Without the interface of a link-local address, which means nothing to others.
        self._cached_remote_address = (str(host).partition("%")[0], int(port))
    return self._cached_remote_address
