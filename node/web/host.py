"""The listeners of one node, one an address: page, metrics and gateway may share one or have their own."""

import socket
import ssl
from pathlib import Path

import trio

from node.errors import ConfigError
from node.web.listener import HttpListener

BACKLOG = 128


class AddressUnusable(ConfigError):
    """An address cannot be listened on. what: who wants it, as a person says it; flag: where it was given."""

    def __init__(self, what: str, address: str, why: str, flag: str) -> None:
        super().__init__(
            f"{what} cannot be served at {address[:120]}",
            why,
            f"give {flag} HOST:PORT with a free port, for example 127.0.0.1:9464; port 0 lets the system choose",
        )


class HttpHost:
    """Serves until cancelled whatever is opened on it."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._listeners: dict[str, HttpListener] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @property
    def places(self) -> list[str]:
        """HOST:PORT of each, in the order of opening."""
        return [listener.place for listener in self._listeners.values()]

    def at(self, address: str, what: str, flag: str, tls: ssl.SSLContext | None = None) -> HttpListener:
        """The listener at HOST:PORT, serving from now on; the one that is there, if this node has opened it before.

        what, flag: for errors. Raises AddressUnusable, also where one of two that share an address wants TLS and the
        other does not.
        """
        if self._nursery is None:
            raise RuntimeError("the host does not run")
        known = self._listeners.get(address)
        # Port 0 is another port each time, so two who ask for it do not share one.
        if known is None or address.endswith(":0"):
            known = self._listeners[address] = HttpListener(bind(address, what, flag), tls)
            self._nursery.start_soon(known.run)
        elif known.is_tls != (tls is not None):
            why = "something else is served there, and only one of the two wants TLS"
            raise AddressUnusable(what, address, why, flag)
        return known


def bind(address: str, what: str, flag: str) -> socket.socket:
    """A listening socket at HOST:PORT; no host is this machine only. Raises AddressUnusable, whose words `what` and
    `flag` are."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise AddressUnusable(what, address, "it is not of the form HOST:PORT", flag)
    # No host means this machine only: nobody opens a port to the world by leaving something out.
    host = host.strip("[]") or "127.0.0.1"
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        # Else the port of a daemon that has just ended counts as taken.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, int(port)))
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        raise AddressUnusable(what, address, error.strerror or str(error), flag) from None
    return server


def bind_path(path: Path) -> socket.socket:
    """A listening Unix socket of mode 0600, in a directory that nobody else may enter. Raises OSError."""
    server = socket.socket(socket.AF_UNIX)
    try:
        server.bind(str(path))
        # After the bind, which goes by the umask; the directory lets nobody in meanwhile.
        path.chmod(0o600)
        server.listen(BACKLOG)
    except OSError:
        server.close()
        raise
    return server
