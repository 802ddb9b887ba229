"""HOST:PORT as people write it, and the socket that listens there."""

import socket
from pathlib import Path

from node.web.errors import AddressUnusable

BACKLOG = 128


def bind(address: str, what: str, flag: str) -> socket.socket:
    """A listening socket at HOST:PORT; no host is this machine only. Raises AddressUnusable, whose words `what` and
    `flag` are."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise AddressUnusable(what, address, "it is not of the form HOST:PORT", flag)
    host = host.strip("[]") or "127.0.0.1"
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
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
        path.chmod(0o600)
        server.listen(BACKLOG)
    except OSError:
        server.close()
        raise
    return server


def place_of(bound: socket.socket) -> str:
    """HOST:PORT as bound, or a Unix socket's path."""
    name = bound.getsockname()
    if isinstance(name, str):
        return name
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
