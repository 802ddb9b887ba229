"""GET /status (JSON), /metrics (Prometheus text), /livez, over a Unix socket of mode 0600.

Where asked for, /metrics and /livez over TCP too: for a Prometheus on another machine. Nothing else is served there.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypercorn.trio
import trio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from node.errors import ConfigError, StateError
from node.metrics.prometheus import render

Status = Callable[[], dict[str, Any]]


class ApiServer:
    """Serves `status()` until cancelled; the socket file is gone afterwards.

    metrics_address: HOST:PORT for /metrics over TCP, None for the socket only.
    """

    def __init__(self, path: Path, status: Status, metrics_address: str | None = None) -> None:
        self._path = path
        self._status = status
        self._metrics = MetricsServer(metrics_address, status) if metrics_address else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._prepare()
        config = _config(f"unix:{self._path}")
        config.umask = 0o177
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_serve, self._app(), config)
                if self._metrics:
                    nursery.start_soon(self._metrics.run)
                with trio.fail_after(10):
                    while not self._path.exists():  # noqa: ASYNC110 - hypercorn has no event for it
                        await trio.sleep(0.02)
                task_status.started()
        finally:
            self._path.unlink(missing_ok=True)

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

        return Starlette(routes=[Route("/status", status), *_metrics_routes(self._status)])


class MetricsServer:
    """Serves /metrics and /livez, of `status()`, at HOST:PORT until cancelled; whoever reaches the port may read.

    Raises ConfigError for an address that cannot be listened on.
    """

    def __init__(self, address: str, status: Status) -> None:
        self._address = checked_address(address)
        self._status = status

    async def run(self) -> None:
        await _serve(Starlette(routes=_metrics_routes(self._status)), _config(self._address))


def _metrics_routes(told: Status) -> list[Route]:
    async def metrics(_: Request) -> Response:
        return PlainTextResponse(render(told()), media_type="text/plain; version=0.0.4")

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return [Route("/metrics", metrics), Route("/livez", livez)]


def checked_address(address: str) -> str:
    """HOST:PORT, if it can be listened on now; raises ConfigError."""
    host, _, port = address.rpartition(":")
    try:
        if not host:
            raise ValueError("it names no host; 127.0.0.1 is for this machine only")
        if not 1 <= int(port) <= 65535:
            raise ValueError("a port is a number from 1 to 65535")
        with socket.create_server((host.strip("[]"), int(port)), family=_family(host)):
            return address
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"metrics cannot be served at {address}",
            str(error),
            "give --metrics-address HOST:PORT with a free port, for example 127.0.0.1:9464",
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _config(bind: str) -> Config:
    config = Config()
    config.bind = [bind]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = 0.5
    return config


async def _serve(app: Starlette, config: Config) -> None:
    await hypercorn.trio.serve(app, config, shutdown_trigger=trio.sleep_forever, mode="asgi")  # type: ignore[arg-type]


def _answers(path: Path) -> bool:
    """Whether a living process listens on a socket file (a killed daemon leaves a dead one)."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
