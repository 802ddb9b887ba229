"""The page's routes, and the loop that keeps what they show fresh.

    GET /             the document; beside it its style, scripts and icon
    GET /events       server-sent events: what the page shows, and then what changes

Read-only: nothing that a viewer sends changes anything, and no path that it sends reaches the file system.
"""

import gzip
import hashlib
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import trio
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from node.changes import every
from node.status_schema import DaemonStatus
from node.web.listener import OwnHosts
from node.web.page.feed import Feed
from node.web.page.model import COLUMNS, Model
from node.web.page.plain import number, words
from node.web.page.series import SeriesRecorder

# The page's own files, read once from the package, and the headers under which a browser may use them.
# Nothing of another site is ever loaded, no script or style stands in the document, and no text becomes markup:
# whatever members call themselves, it is only text.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
DOCUMENT = "index.html"


class PageAsset(msgspec.Struct, frozen=True):
    """One file. path: where it is served; body, packed: as it is, and gzipped."""

    path: str
    kind: str
    body: bytes
    packed: bytes
    tag: str

    def answer(self, request: Request) -> Response:
        """What a request for it gets: 304 where the browser has it."""
        headers = {**HEADERS, "etag": self.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self.packed, media_type=self.kind, headers={**headers, "content-encoding": "gzip"})
        return Response(self.body, media_type=self.kind, headers=headers)


def load_assets() -> list[PageAsset]:
    """All of them. Blocking: reads files."""
    folder = resources.files("node.web.page") / "assets"
    return [_asset(entry.name, entry.read_bytes()) for entry in folder.iterdir() if _ending(entry.name) in _TYPES]


def version_of(assets: list[PageAsset]) -> str:
    """Changes whenever one of them does."""
    return hashlib.sha256("".join(sorted(asset.tag for asset in assets)).encode()).hexdigest()[:16]


def _asset(name: str, body: bytes) -> PageAsset:
    path = "/" if name == DOCUMENT else f"/{name}"
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    # Packed once, at the start: a viewer costs no compression.
    return PageAsset(path, _TYPES[_ending(name)], body, gzip.compress(body, 9, mtime=0), tag)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


EVALUATIONS = "spool/eval"
# The trainer writes it itself, but a page must not depend on how large.
MAX_BYTES = 1 << 20


class RolloutSamples:
    """directory: the node's state. Blocking: call from a thread."""

    def __init__(self, directory: Path) -> None:
        self._place = directory / EVALUATIONS
        self._read: dict[int, list[dict[str, Any]]] = {}

    def look(self) -> dict[str, Any] | None:
        """{"before": {"step", "answers"}, "after": the same or None}; None where there is no evaluation."""
        steps = sorted(
            int(path.stem.removeprefix("answers-"))
            for path in self._place.glob("answers-*.json")
            if path.stem.removeprefix("answers-").isdecimal()
        )
        if not steps:
            return None
        wanted = {steps[0], steps[-1]}
        self._read = {step: self._read.get(step) or self._answers(step) for step in wanted}
        told = [{"step": step, "answers": self._read[step]} for step in sorted(wanted)]
        return {"before": told[0], "after": told[1] if len(told) > 1 else None}

    def _answers(self, step: int) -> list[dict[str, Any]]:
        """Empty for a file that is damaged, or gone by now."""
        try:
            with (self._place / f"answers-{step:06d}.json").open("rb") as file:
                told = msgspec.json.decode(file.read(MAX_BYTES), type=list[dict[str, Any]])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return []
        longest = 600  # characters of a problem, and of an answer
        return [
            {
                "problem": words(one.get("prompt"), longest),
                "answer": words(one.get("answer"), longest),
                "reward": number(one.get("reward")),
                "length": number(one.get("length")),
                "target": number(one.get("target")),
                "finished": bool(one.get("finished")),
            }
            for one in told[:6]  # answers of an evaluation
        ]


WHAT, FLAG = "the page", "--page"
"""What an error calls it, and where its address was given."""
HISTORY = "page-history.sqlite"


class WebPage:
    """status: what /status says; directory: where the history lies; names: host names by which a browser may ask.

    Seconds: seen, unseen: between two looks at the status while somebody looks at the page, and while nobody does;
    kept: between two writes of the history, and between two looks at the sample answers; pulse: after which a viewer
    hears that nothing has changed.
    """

    def __init__(
        self,
        status: Callable[[], DaemonStatus],
        directory: Path,
        names: Collection[str] = (),
        *,
        seen: float = 1.0,
        unseen: float = 5.0,
        kept: float = 10.0,
        pulse: float = 5.0,
    ) -> None:
        self._seen, self._unseen, self._kept, self._pulse = seen, unseen, kept, pulse
        self._status = status
        self._guard = [Middleware(OwnHosts, names=names)]
        self._model = Model()
        self._recorder = SeriesRecorder(directory / HISTORY, self._model.curves)
        self._samples = RolloutSamples(directory)
        # A new one each start: the numbers of changes begin again, and a viewer's old one would hide what is new.
        self._mark = secrets.token_hex(8)
        self.audience = Audience()

    async def run(self, *, task_status: trio.TaskStatus[list[Route]] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep everything fresh until cancelled; started with the routes to serve."""
        assets = await trio.to_thread.run_sync(load_assets)
        self._model.feed.put("hello", {"start": self._mark, "assets": version_of(assets), "columns": COLUMNS})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._keep)
            nursery.start_soon(self._sample)
            task_status.started(page_routes(assets, self._watch, self._guard))

    async def _look(self) -> None:
        while True:
            before = self._model.feed.version
            await self._refresh(self._status(), time.time())
            if self._model.feed.version > before:
                self.audience.tell()
            if self.audience.viewers:
                await trio.sleep(self._seen)
            else:
                with trio.move_on_after(self._unseen):
                    await self.audience.arrival()

    async def _refresh(self, status: DaemonStatus, now: float) -> None:
        await trio.lowlevel.checkpoint()
        await self._recorder.belong_to((status.run and status.run.run_root) or "")
        for _ in self._model.absorb(status, now):
            await trio.lowlevel.checkpoint()
        self._model.feed.put("history", {"fault": self._recorder.fault})

    async def _sample(self) -> None:
        async def sample() -> None:
            self._model.feed.put("samples", await trio.to_thread.run_sync(self._samples.look))

        await every(self._kept, sample)

    async def _keep(self) -> None:
        try:
            await every(self._kept, self._recorder.keep, at_once=False)
        finally:
            with trio.CancelScope(shield=True):  # one short write: the last steps are those that count
                await self._recorder.keep()
                await self._recorder.close()

    def _watch(self, request: Request) -> Response:
        if self.audience.is_full:
            return PlainTextResponse("too many viewers\n", 503, headers={"retry-after": "10"})
        return EventStream(request, self._model.feed, self._mark, self.audience, self._pulse)


def page_routes(
    assets: Sequence[PageAsset], watch: Callable[[Request], Response], guard: Sequence[Middleware]
) -> list[Route]:
    """Of its files, and of what changes."""

    def route(path: str, answer: Callable[[Request], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            return answer(request)

        return Route(path, endpoint, methods=["GET"], middleware=guard)

    return [*(route(asset.path, asset.answer) for asset in assets), route("/events", watch)]


# Server-sent events: one viewer's stream of what changes.
# A viewer says which change it saw last (Last-Event-ID, or `after` in the query where its browser gave the stream
# up); what it missed comes first. It is written to only when it has taken what was written before.
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
        # A new one: who came before is no arrival.
        self._somebody = trio.Event()
        await self._somebody.wait()


class EventStream(Response):
    """feed: what is told; mark: names this start of the daemon, so that its numbers are not taken for another's;
    pulse: seconds after which a viewer hears that nothing has changed, for one that hears nothing has lost us."""

    def __init__(self, request: Request, feed: Feed, mark: str, audience: Audience, pulse: float) -> None:
        super().__init__(headers={**HEADERS, "cache-control": "no-store"}, media_type="text/event-stream")
        # The base class counts an empty body; a browser would end the stream after nothing.
        del self.headers["content-length"]
        self._feed = feed
        self._mark = mark
        self._audience = audience
        self._pulse = pulse
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

    async def _tell(self, send: Send, *, retry: int = 2000) -> None:
        await self._write(send, f"retry: {retry}\n".encode())  # milliseconds before a browser tries again
        while True:
            if self._feed.version > self._seen:
                version = self._feed.version
                await self._write(send, self._events(version))
                self._seen = version
            with trio.move_on_after(self._pulse) as quiet:
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
