"""/metrics (Prometheus text) and /livez; whoever reaches the port may read."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from node.metrics.prometheus import render

Status = Callable[[], dict[str, Any]]
WHAT, FLAG = "metrics", "--metrics-address"
"""What an error calls it, and where its address was given."""


def metrics_routes(told: Status) -> list[Route]:
    """told: what /status says."""

    async def metrics(_: Request) -> Response:
        return PlainTextResponse(render(told()), media_type="text/plain; version=0.0.4")

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    return [Route("/metrics", metrics), Route("/livez", livez)]
