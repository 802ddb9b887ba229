"""GET /status (JSON), /metrics (Prometheus text), /livez, over a Unix socket of mode 0600."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypercorn.trio
import trio
from hypercorn.config import Config
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from node.errors import StateError

Status = Callable[[], dict[str, Any]]


class ApiServer:
    """Serves `status()` until cancelled; the socket file is gone afterwards."""

    def __init__(self, path: Path, status: Status) -> None:
        self._path = path
        self._status = status

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._prepare()
        config = Config()
        config.bind = [f"unix:{self._path}"]
        config.umask = 0o177
        config.accesslog = None
        config.errorlog = None
        config.graceful_timeout = 0.5
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve, config)
                with trio.fail_after(10):
                    while not self._path.exists():  # noqa: ASYNC110 - hypercorn has no event for it
                        await trio.sleep(0.02)
                task_status.started()
        finally:
            self._path.unlink(missing_ok=True)

    async def _serve(self, config: Config) -> None:
        await hypercorn.trio.serve(self._app(), config, shutdown_trigger=trio.sleep_forever, mode="asgi")  # type: ignore[arg-type]

    def _prepare(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._path.parent.stat().st_uid != os.getuid():
                raise PermissionError(f"{self._path.parent} belongs to somebody else")
        except OSError as error:
            raise StateError(
                "cannot open the control socket", str(error), "set XDG_RUNTIME_DIR to a directory of yours"
            ) from error
        if self._path.exists() and not _answers(self._path):
            self._path.unlink()

    def _app(self) -> Starlette:
        async def status(_: Request) -> Response:
            return JSONResponse(self._status())

        async def metrics(_: Request) -> Response:
            return PlainTextResponse(_prometheus(self._status()))

        async def livez(_: Request) -> Response:
            return PlainTextResponse("ok\n")

        return Starlette(routes=[Route("/status", status), Route("/metrics", metrics), Route("/livez", livez)])


def _answers(path: Path) -> bool:
    """Whether a living process listens on a socket file (a killed daemon leaves a dead one)."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _prometheus(status: dict[str, Any]) -> str:
    registry = CollectorRegistry()
    for section in ("work", "training", "verdicts", "network_stats", "run"):
        for name, value in (status.get(section) or {}).items():
            if isinstance(value, (int, float)):
                Gauge(f"intellect_{section}_{name}", f"{section}.{name} of /status", registry=registry).set(value)
    return generate_latest(registry).decode()
