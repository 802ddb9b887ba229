"""What a node's owner asks for over the control socket: POST /tasks, POST /tasks/ID/cancel, GET /tasks.

Answers are JSON: what was asked for, or `what`, `why` and `remedy` with status 400.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.errors import NodeError
from protocol.errors import UNREADABLE, IntellectError
from protocol.tasks import TaskId, TaskSpec

MAX_REQUEST_BYTES = 64 * 1024


class TaskRefused(NodeError):
    """What was asked for cannot be done here and now."""


class TaskRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """spec: the task, its policy and step left open; policy: "newest", a step, or the beginning of a root; files: where
    each of its assets lies on this machine."""

    spec: TaskSpec
    policy: str = "newest"
    files: dict[str, str] = {}


class TaskRequestHandler(Protocol):
    """Who carries requests out."""

    async def offer(self, request: TaskRequest) -> TaskId: ...
    async def cancel(self, id: TaskId) -> None: ...
    def tasks(self) -> list[dict[str, Any]]: ...


def routes(owner: TaskRequestHandler) -> list[Route]:
    async def offer(request: Request) -> Response:
        body = await read_body(request)
        try:
            wanted = msgspec.json.decode(body, type=TaskRequest)
            missing = [asset.path for asset in wanted.spec.assets if asset.path not in wanted.files]
            if missing:
                raise TaskRefused("a file is missing", f"nobody said where {missing[0]} lies", "name it in files")
            id = await owner.offer(wanted)
        except UNREADABLE as error:
            return refusal("the task cannot be read", str(error), "use: intellect-node task")
        except (IntellectError, OSError) as error:
            return told(error)
        return JSONResponse({"task": id.hex()})

    async def cancel(request: Request) -> Response:
        try:
            await owner.cancel(bytes.fromhex(request.path_params["id"]))
        except (ValueError, IntellectError) as error:
            return told(error)
        return JSONResponse({"cancelled": True})

    async def show(_: Request) -> Response:
        return JSONResponse({"tasks": owner.tasks()})

    return [
        Route("/tasks", offer, methods=["POST"]),
        Route("/tasks", show, methods=["GET"]),
        Route("/tasks/{id}/cancel", cancel, methods=["POST"]),
    ]


async def read_body(request: Request) -> bytes:
    """At most one byte more than a request may have, which then is none."""
    body = b""
    # Closed by hand: a loop that breaks leaves an asynchronous generator open.
    async with aclosing(cast(AsyncGenerator[bytes, None], request.stream())) as parts:
        async for part in parts:
            body += part
            if len(body) > MAX_REQUEST_BYTES:
                break
    return body[: MAX_REQUEST_BYTES + 1]


def told(error: Exception) -> Response:
    if isinstance(error, IntellectError):
        return refusal(error.what, error.why, error.remedy)
    return refusal("the task cannot be done", str(error), "correct what was asked for")


def refusal(what: str, why: str, remedy: str) -> Response:
    return JSONResponse({"what": what, "why": why, "remedy": remedy}, status_code=400)
