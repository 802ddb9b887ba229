"""Server-sent events: one viewer's stream of what changes.

A viewer says which change it saw last (Last-Event-ID, or `after` in the query where its browser gave the stream up);
what it missed comes first. It is written to only when it has taken what was written before.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from node.web.page.assets import HEADERS
from node.web.page.feed import Feed

PULSE = 5.0
"""Seconds after which a viewer hears that nothing has changed: one that hears nothing has lost us."""
RETRY = 2000
"""Milliseconds before a browser tries again."""
# Each is a connection that stays; the listener's other 192 remain for those who come and go.
MAX_VIEWERS = 64


class Audience:
    """Who looks at the page, and the two things that are waited for: news, and a viewer. viewers: how many now."""

    def __init__(self) -> None:
        self.viewers = 0
        self._news = trio.Event()
        self._somebody = trio.Event()

    @property
    def is_full(self) -> bool:
        return self.viewers >= MAX_VIEWERS

    @contextmanager
    def viewer(self) -> Iterator[None]:
        """One more looks, as long as this lasts."""
        self.viewers += 1
        self._somebody.set()
        try:
            yield
        finally:
            self.viewers -= 1

    def tell(self) -> None:
        """There is news."""
        self._news.set()
        self._news = trio.Event()

    async def news(self) -> None:
        """Returns when there is some."""
        await self._news.wait()

    async def arrival(self) -> None:
        """Returns when somebody comes."""
        self._somebody = trio.Event()
        await self._somebody.wait()


class EventStream(Response):
    """feed: what is told; mark: names this start of the daemon, so that its numbers are not taken for another's."""

    def __init__(self, request: Request, feed: Feed, mark: str, audience: Audience) -> None:
        super().__init__(headers={**HEADERS, "cache-control": "no-store"}, media_type="text/event-stream")
        # The base class counts an empty body; a browser would end the stream after nothing.
        del self.headers["content-length"]
        self._feed = feed
        self._mark = mark
        self._audience = audience
        self._seen = _seen(request, mark)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        with self._audience.viewer():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_gone, receive, nursery.cancel_scope)
                await self._tell(send)

    async def _tell(self, send: Send) -> None:
        await self._write(send, f"retry: {RETRY}\n".encode())
        while True:
            if self._feed.version > self._seen:
                version = self._feed.version
                await self._write(send, self._events(version))
                self._seen = version
            with trio.move_on_after(PULSE) as quiet:
                await self._audience.news()
            if quiet.cancelled_caught:
                # Also how a viewer that is gone is noticed: writing to it fails.
                await self._write(send, event("pulse", msgspec.json.encode(round(time.time(), 1))))

    def _events(self, version: int) -> bytes:
        """What is new. Only the last line has the number: a stream that breaks within is told all of it again."""
        told = [event(name, data) for name, data in self._feed.since(self._seen)]
        mark = f"{self._mark}.{version}"
        return b"".join([*told, event("pulse", msgspec.json.encode(round(time.time(), 1)), mark)])

    async def _write(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


def event(name: str, data: bytes, mark: str = "") -> bytes:
    """One event; data: JSON, which has no line breaks."""
    return (f"id: {mark}\n" if mark else "").encode() + f"event: {name}\ndata: ".encode() + data + b"\n\n"


def _seen(request: Request, mark: str) -> int:
    """The newest change that a viewer has of this start; 0 for none."""
    said = request.headers.get("last-event-id") or request.query_params.get("after", "")
    # Cut first: what a viewer says it has seen may be of any length.
    start, _, number = said[:64].partition(".")
    return int(number) if start == mark and number.isascii() and number.isdecimal() else 0


async def _cancel_when_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass  # the rest of a request that needs no body
    scope.cancel()
