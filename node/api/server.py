"""The control socket: GET /status (JSON), /metrics (Prometheus text), /livez, over a Unix socket of mode 0600.

Services open what is theirs beside it (`mount`): who may open the socket may do what the node's owner may.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from node.api.metrics import Status, metrics_routes
from node.errors import StateError
from node.web.address import bind_path
from node.web.listener import Listener


class ApiServer:
    """Serves `status()` until cancelled; the socket file is gone afterwards."""

    def __init__(self, path: Path, status: Status) -> None:
        self._path = path
        self._status = status
        self._routes: list[BaseRoute] = [Route("/status", self._answer), *metrics_routes(status)]
        self._listener: Listener | None = None

    def mount(self, routes: Sequence[BaseRoute]) -> None:
        """Serve these too, at once or as soon as it runs."""
        self._routes.extend(routes)
        if self._listener is not None:
            self._listener.mount(routes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._listener = Listener(self._bind())
        self._listener.mount(self._routes)
        try:
            await self._listener.run(task_status=task_status)
        finally:
            self._path.unlink(missing_ok=True)

    async def _answer(self, _: Request) -> Response:
        return JSONResponse(self._status())

    def _bind(self) -> socket.socket:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._path.parent.stat().st_uid != os.getuid():
                raise PermissionError(f"{self._path.parent} belongs to somebody else")
            if self._path.exists() and not _answers(self._path):
                self._path.unlink()
            return bind_path(self._path)
        except OSError as error:
            raise StateError(
                "cannot open the control socket", str(error), "set XDG_RUNTIME_DIR to a directory of yours"
            ) from error


def _answers(path: Path) -> bool:
    """Whether a living process listens on a socket file (a killed daemon leaves a dead one)."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
