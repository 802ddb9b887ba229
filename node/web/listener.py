"""One address: hypercorn behind bounds of our own, with the routes that were mounted there.

Connections are counted and the one too many is closed unread; one that says nothing for a while is closed; a
client that stops reading is let go; what one connection does wrong ends that connection only.
"""

import ipaddress
import socket
import ssl
import traceback
from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

import h11
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio import tcp_server
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from node.limits import open_files

log = structlog.get_logger(__name__)

# Of the files that a process may have open, peers and blobs want most.
MAX_CONNECTIONS = 256


class Http1(H11Protocol):
    """The library speaks HTTP/2 to whoever begins with it or asks for it, also where TLS has not agreed on it: many
    requests at once, of which no bound here knows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args[:9])  # without what TLS has agreed on

    async def _check_protocol(self, event: h11.Request) -> None:
        """A wish to go on in HTTP/2 is passed over, as RFC 9110 has it; its first words are no request."""
        if event.method == b"PRI":
            raise ConnectionError("HTTP/2 is not spoken here")


tcp_server.ProtocolWrapper = Http1  # type: ignore[assignment, misc]


class HttpListener:
    """bound: a listening socket; tls: None for plain HTTP. Routes may be mounted while it serves: the first that
    matches answers.

    idle: seconds that a connection may be open without a whole request, and stay open after one; stall: seconds that a
    client may take for what is written at once.
    """

    def __init__(
        self, bound: socket.socket, tls: ssl.SSLContext | None = None, *, idle: float = 5.0, stall: float = 60.0
    ) -> None:
        self._socket = bound
        self._tls = tls
        self._app = Starlette(exception_handlers={Exception: _failed})
        self._config = _config(idle)
        self._stall = stall
        self._context = WorkerContext(None)
        self._open: set[PatientStream] = set()
        self._most = min(MAX_CONNECTIONS, open_files() // 8)
        self.refused = 0

    @property
    def place(self) -> str:
        """HOST:PORT as bound."""
        return place_of(self._socket)

    @property
    def is_tls(self) -> bool:
        return self._tls is not None

    @property
    def connections(self) -> int:
        """How many are open now."""
        return len(self._open)

    def mount(self, routes: Sequence[BaseRoute]) -> None:
        """Serve these too, where no route mounted before matches."""
        self._app.router.routes.extend(routes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._socket))
        async with listener, trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._take, [listener])
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                # Cut, not closed in order, which would wait for clients that read slowly.
                for stream in self._open:
                    stream.cut()

    async def _take(self, raw: trio.SocketStream) -> None:
        if len(self._open) >= self._most:
            self.refused += 1
            # Unread and at once: an answer would cost what the bound is there to save.
            raw.socket.close()
            return
        stream = PatientStream(raw, self._stall)
        self._open.add(stream)
        try:
            await self._serve(stream)
        except Exception as error:  # whatever a stranger's bytes provoke ends here
            log.info("http.connection_failed", error=f"{type(error).__name__}: {error}"[:300])
        finally:
            self._open.discard(stream)
            stream.cut()

    async def _serve(self, stream: "PatientStream") -> None:
        spoken: PatientStream | trio.SSLStream[PatientStream] = stream
        if self._tls is not None:
            spoken = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        app = ASGIWrapper(self._app)  # type: ignore[arg-type]
        await tcp_server.TCPServer(app, self._config, self._context, ConnectionState({}), spoken)  # type: ignore[arg-type]


async def _failed(request: Request, error: Exception) -> Response:
    """A route of ours raised: whoever asked learns that it did, the log learns where."""
    where = "".join(traceback.format_exception(error, limit=-4))
    log.error("http.route_failed", path=request.url.path, error=repr(error)[:300], where=where[-2000:])
    return PlainTextResponse("internal error\n", status_code=500)


def _config(idle: float) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = None
    # A version number tells an attacker which defects to try.
    config.include_server_header = False
    config.keep_alive_timeout = idle
    # Within it a stranger costs a task and a buffer: slow mobile lines need a few seconds.
    config.ssl_handshake_timeout = 15
    # HTTP/2 brings many streams to one connection, past the count of connections.
    config.alpn_protocols = ["http/1.1"]
    return config


class PatientStream(trio.abc.HalfCloseableStream):
    """hypercorn shields its writes from cancellation, so the deadline must lie below it: a client that has stopped
    reading would else hold its connection, and the end of this process, for as long as it likes."""

    def __init__(self, stream: trio.SocketStream, stall: float) -> None:
        self._stream = stream
        self._stall = stall
        # hypercorn takes the peer's address from this attribute.
        self.socket = stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with trio.move_on_after(self._stall) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the client does not read")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def cut(self) -> None:
        """Close at once, whoever waits for it."""
        self.socket.close()


def place_of(bound: socket.socket) -> str:
    """HOST:PORT as bound, or a Unix socket's path."""
    name = bound.getsockname()
    if isinstance(name, str):
        return name
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Whose requests are taken: those of a page that was opened at an address of ours, never another site's script.
# A stranger's page in the owner's browser can send requests to this machine. Where it names us by a host name of its
# own (DNS rebinding), the Host header tells; where it names our address, the browser says so (Sec-Fetch-Site,
# Origin).
LOOPBACK = "localhost"


class OwnHosts:
    """Middleware. names: host names by which this address may be asked for, beside localhost and every IP address:
    rebinding needs a name. Every other request is refused."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in (LOOPBACK, *names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = self._fault(Headers(scope=scope))
        app = PlainTextResponse(f"{why}\n", 403) if why else self._app
        await app(scope, receive, send)

    def _fault(self, headers: Headers) -> str | None:
        host = headers.get("host", "")
        # Two Host headers: a proxy may look at one and the browser's script have chosen the other.
        if len(headers.getlist("host")) != 1 or not self._is_ours(host_name(host)):
            return "this host name is not one of this node's: name it in the setting page_hosts"
        # A link from another site may be followed; its scripts may not fetch.
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return "asked for by another site"
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host.lower():
            return "asked for by another site"
        return None

    def _is_ours(self, name: str) -> bool:
        return name in self._names or _is_address(name)


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # brackets of IPv6 that do not close, for example
        return None


def host_name(host: str) -> str:
    """A Host header without its port, in lower case; empty for what is none."""
    try:
        # These characters end a host name in some parsers and not in others.
        return (urlsplit(f"//{host}").hostname or "") if host and not set(host) & set("/?#@\\ ") else ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
