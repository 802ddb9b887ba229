"""The newest policy answers whoever the node's owner lets ask, by the node's own engine and from what is left over.

`serve --state-dir` asks by the control socket: POST /answer with token ids. What it hears is one JSON object a line, a
token each, and at the end what came of it. Nothing is asked of a node whose owner does not.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Self

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from node.guest.rest import GuestRest
from node.inference.client import EngineProcess
from node.inference.wire import AnswerRequest, RequestProgress, SaidToken
from node.services.base import Service
from node.services.workplace import Workplace
from node.weights.policy_cache import HeldPolicy, PolicyCache
from protocol.errors import IntellectError

MAX_BODY = 8 << 20
MAX_TOKENS = 1 << 20
# What no message to an engine could carry is refused here.
OneToken = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Sender = trio.MemorySendChannel[dict[str, Any]]


class AnswerOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As in node.inference.wire.Answer."""

    prompt: list[OneToken]
    most: int = 1
    temperature: float = 1.0
    seed: int = 0
    number: int = 0
    output: list[OneToken] = []
    top: int = 0

    def fault(self) -> str:
        """What cannot be answered; empty where all can."""
        if not self.prompt or not 1 <= self.most <= MAX_TOKENS or len(self.prompt) + len(self.output) > MAX_TOKENS:
            return f"prompt, most or output have no tokens, or more than {MAX_TOKENS}"
        bounded = 0 <= self.temperature <= 2 and abs(self.seed) < 1 << 63 and 0 <= self.number < 1 << 16
        most_top = 20
        return "" if bounded and 0 <= self.top <= most_top else "temperature, seed, number or top is out of bounds"


class AnswerServer(Service):
    name = "answer-server"

    def __init__(self, engine: EngineProcess, policy_cache: PolicyCache, rest: GuestRest | None = None) -> None:
        self._engine = engine
        self._rest = rest or GuestRest()
        self._policy_cache = policy_cache
        self.under_way = 0
        self.count = 0

    @classmethod
    async def open(cls, place: Workplace) -> Self | None:
        return cls(place.engine, place.context.policy_cache, place.rest) if place.control is not None else None

    def routes(self) -> list[Route]:
        return [Route("/answer", self._answer, methods=["POST"])]

    async def _answer(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                return _refused(f"longer than {MAX_BODY} bytes", 413)
        try:
            asked = msgspec.json.decode(bytes(body), type=AnswerOrder)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _refused(str(error), 400)
        if fault := asked.fault():
            return _refused(fault, 400)
        if self._rest.why:
            return _refused(f"{self._rest.why}: no engine answers", 503)
        if (policy := self._policy_cache.newest) is None:
            return _refused("no policy is here yet", 503)
        most = 16  # answers under way: the engine's link has room for the node's own work beside them
        if self.under_way >= most:
            return _refused(f"{most} answers are under way", 429)
        return _Lines(partial(self._told, asked, policy))

    async def _told(self, asked: AnswerOrder, policy: HeldPolicy, send: Sender) -> None:
        self.under_way += 1
        try:
            await self._ask(asked, policy, send)
        finally:
            self.under_way -= 1

    async def _ask(self, asked: AnswerOrder, policy: HeldPolicy, send: Sender) -> None:
        heard: list[int] = []

        def told(said: RequestProgress | SaidToken) -> None:
            # A child that took another's place says all of it again; what was heard stands.
            if isinstance(said, SaidToken) and said.place == len(heard):
                try:
                    send.send_nowait({"token": said.token})
                except trio.WouldBlock:  # whoever asked does not read: the rest comes with the end
                    return
                heard.append(said.token)

        order = AnswerRequest(
            policy_root=policy.root, **{name: getattr(asked, name) for name in AnswerOrder.__struct_fields__}
        )
        found, why = None, ""
        with self._rest.work():
            try:
                # For one answer, whatever else the engine is at.
                found = await self._engine.ask(order, timeout=900.0, policy=policy.load(), on_progress=told)
            except IntellectError as error:
                why = f"{error.what}: {error.why}"
        if found is None:
            await send.send({"error": why or f"cut short: {self._rest.why}"})
            return
        self.count += 1
        rest = {"output": found.output, "logprobs": found.logprobs, "top": found.top}
        await send.send({"done": True, "step": policy.step, **rest})


class _Lines(Response):
    """What is sent while it is made, and given up when the client goes. make: puts it into a channel."""

    def __init__(self, make: Callable[[Sender], Awaitable[None]]) -> None:
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/x-ndjson")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        into, lines = trio.open_memory_channel[dict[str, Any]](4096)  # that whoever asks may leave unread
        async with trio.open_nursery() as nursery:

            async def make() -> None:
                async with into:
                    await self._make(into)

            async def gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(make)
            nursery.start_soon(gone)
            async for line in lines:
                body = msgspec.json.encode(line) + b"\n"
                await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()


def _refused(why: str, status: int) -> Response:
    return JSONResponse({"error": why}, status)
