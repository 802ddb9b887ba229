"""What a node shows at its doors: the control socket, and over TCP whatever its settings ask for.

The control socket answers GET /status (JSON), /metrics (Prometheus text) and /livez over a Unix socket of mode 0600.
Services open what is theirs beside it (`mount`): who may open the socket may do what the node's owner may. All that is
served over TCP is served by one host (`web`); whoever reaches its port may read /metrics and /livez.
"""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from node.config import NodeConfig, api_socket_path, is_listened_on
from node.errors import StateError
from node.state.files import own_directory
from node.status_schema import DaemonStatus
from node.web.host import HttpHost, bind_path
from node.web.listener import HttpListener, host_name
from node.web.page import page

log = structlog.get_logger()

Status = Callable[[], DaemonStatus]
Figures = Callable[[], dict[str, Any]]
METRICS, METRICS_FLAG = "metrics", "--metrics-address"
"""What an error calls it, and where its address was given."""


class Front:
    """status: what /status says; figures: the same for /metrics, which needs no rows; directory: the state of this
    node."""

    def __init__(self, config: NodeConfig, status: Status, figures: Figures, directory: Path) -> None:
        self._config = config
        self._status = status
        self._figures = figures
        self._directory = directory
        self.web = HttpHost()
        self.control = ApiServer(api_socket_path(directory), status, figures)
        self.page: str | None = None
        """Its URL, where it is served."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Raises AddressUnusable and StateError before it reports started."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.control.run)
            await nursery.start(self.web.run)
            if self._config.page:
                await self._open_page(self._config.page, nursery)
            if self._config.metrics_address:
                self.web.at(self._config.metrics_address, METRICS, METRICS_FLAG).mount(metrics_routes(self._figures))
            task_status.started()

    async def _open_page(self, address: str, nursery: trio.Nursery) -> None:
        listener = self.web.at(address, page.WHAT, page.FLAG)
        names = (*self._config.page_hosts, host_name(address))
        listener.mount(await nursery.start(page.WebPage(self._status, self._directory, names).run))
        self.page = f"http://{listener.place}/"
        log.info("page.serving", address=self.page)


class ApiServer:
    """Serves `status()` until cancelled; the socket file is gone afterwards."""

    def __init__(self, path: Path, status: Status, figures: Figures | None = None) -> None:
        self._path = path
        self._status = status
        self.routes: list[BaseRoute] = [
            Route("/status", self._answer),
            *metrics_routes(figures or (lambda: msgspec.to_builtins(status()))),
        ]
        self._listener: HttpListener | None = None

    def mount(self, routes: Sequence[BaseRoute]) -> None:
        """Serve these too, at once or as soon as it runs."""
        self.routes.extend(routes)
        if self._listener is not None:
            self._listener.mount(routes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._listener = HttpListener(self._bind())
        self._listener.mount(self.routes)
        try:
            await self._listener.run(task_status=task_status)
        finally:
            self._path.unlink(missing_ok=True)

    async def _answer(self, _: Request) -> Response:
        return Response(msgspec.json.encode(self._status()), media_type="application/json")

    def _bind(self) -> socket.socket:
        try:
            own_directory(self._path.parent)
            # A killed daemon leaves its file; one that answers is another daemon's, and is not ours to remove.
            if self._path.exists() and not is_listened_on(self._path):
                self._path.unlink()
            return bind_path(self._path)
        except OSError as error:
            raise StateError(
                "cannot open the control socket", str(error), "set XDG_RUNTIME_DIR to a directory of yours"
            ) from error


def _rendered(figures: dict[str, Any]) -> str:
    """In a thread: the library is imported for whoever asks first, and mostly nobody does."""
    from node.metrics.prometheus import render

    return render(figures)


def metrics_routes(told: Figures) -> list[Route]:
    """told: what /status says."""

    async def metrics(_: Request) -> Response:
        text = await trio.to_thread.run_sync(_rendered, told())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return [Route("/metrics", metrics), Route("/livez", livez)]
