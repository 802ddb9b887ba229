"""Connections to a server that a run names, their bounds, and what a server says, whatever protocol it speaks.

A run's owner chooses the address, and every member connects to it. So only addresses of the public internet are
dialled, compared after the name is resolved: a run must not reach what stands beside a member. LOCAL_SERVERS lifts that
for one's own machine.
"""

import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import SplitResult, urlsplit

from node.addresses import resolve
from node.environments.errors import Undecided

LOCAL_SERVERS = "INTELLECT_NODE_LOCAL_SERVERS"
PROGRAM = "INTELLECT_NODE_MCP_"
"""With a NAME behind it: the command that this member runs where a run says stdio:NAME."""
MAX_REPLY_BYTES = 1 << 20
PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


def split_url(url: str, schemes: tuple[str, ...]) -> SplitResult:
    """Raises ValueError for a URL that is not one of a server."""
    parts = urlsplit(url)
    if parts.scheme not in schemes or not parts.hostname or parts.username is not None or parts.fragment:
        raise ValueError(f"url = {url[:80]!r} is none: {' or '.join(schemes)}, a host, no password")
    if parts.port == 0:  # one beyond 65535 raises by itself
        raise ValueError(f"url = {url[:80]!r} names port 0")
    return parts


def dial(parts: SplitResult, seconds: float) -> socket.socket:
    """A connection to a server, encrypted for https. That of wss is encrypted by websockets, which takes no socket that
    is so already. Raises OSError."""
    host, port = str(parts.hostname), parts.port or PORTS[parts.scheme]
    try:
        place = resolve(host, port, private=os.environ.get(LOCAL_SERVERS) == "1")
    except OSError as error:
        raise OSError(f"{error}; {LOCAL_SERVERS}=1 permits networks of one's own") from None
    # The address that was compared, not the name: a second look-up may give another one (DNS rebinding).
    plain = socket.create_connection(place, timeout=seconds)
    if parts.scheme != "https":
        return plain
    try:
        # The certificate is for the name, although the connection is to an address.
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


@dataclass(frozen=True, slots=True)
class ServerReply:
    """shown: what the model is told; done: whether the rollout is over; reward: so far, None for none yet."""

    shown: str
    done: bool
    reward: float | None


FAILED = ServerReply("", True, None)
"""What was said made the server fail: the rollout is over and worth nothing."""


class Episode(Protocol):
    """One rollout at a server. All raise Undecided where it does not answer, or not in form, or not in time."""

    def begin(self, reset: dict[str, Any]) -> None: ...
    def say(self, answer: str) -> ServerReply: ...
    def close(self) -> None: ...


def silent(why: str) -> Undecided:
    return Undecided("a server does not answer as it should", why[:200], "see whether it is up and reached from here")
