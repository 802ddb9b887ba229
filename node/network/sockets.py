"""TCP sockets that share the listening port with dials from it, which is what punching a hole takes.

Knows sockets; knows no peers. The port is shared within this process only: `hardening.port_is_taken`.
"""

import socket

import trio
from libp2p.io.trio import TrioTCPStream

BACKLOG = 128


def _shared(host: str) -> trio.socket.SocketType:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = trio.socket.socket(family, socket.SOCK_STREAM)
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
        await made.bind((host or "0.0.0.0", port))  # noqa: S104
        made.listen(BACKLOG)
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


def remote_address(self: TrioTCPStream) -> tuple[str, int] | None:
    """Host and port of the other end, of either family; None if it was gone before anybody asked."""
    if self._cached_remote_address is None:
        try:
            host, port, *_ = self.stream.socket.getpeername()
        except OSError:
            return None
        self._cached_remote_address = (str(host).partition("%")[0], int(port))
    return self._cached_remote_address
