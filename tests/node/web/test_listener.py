"""Sockets, sharing and bounds of what is served over HTTP; clients that are slow, many or hostile."""

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import structlog
import trio
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs

from node.web import listener as listener_module
from node.web.host import AddressUnusable, HttpHost, bind
from node.web.listener import HttpListener


def saying(text: str) -> Callable[[Request], Awaitable[Response]]:
    async def say(_: Request) -> Response:
        return PlainTextResponse(text)

    return say


@asynccontextmanager
async def serving(*routes: Route, idle: float = 5.0, stall: float = 60.0):
    listener = HttpListener(bind("127.0.0.1:0", "a test", "--test"), idle=idle, stall=stall)
    listener.mount(routes)
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        yield listener
        nursery.cancel_scope.cancel()


async def connect(listener: HttpListener) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", int(listener.place.rpartition(":")[2]))


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not true():
            await trio.sleep(0.01)


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", ":x", "203.0.113.1:1"])
def test_an_address_that_is_none_is_a_clear_error(address: str) -> None:
    with pytest.raises(AddressUnusable, match="a test cannot be served at") as caught:
        bind(address, "a test", "--test")
    assert "--test HOST:PORT" in caught.value.remedy


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(AddressUnusable, match="in use"):
            bind(f"127.0.0.1:{taken.getsockname()[1]}", "a test", "--test")


async def test_who_names_one_address_shares_it_and_the_first_route_answers() -> None:
    host = HttpHost()
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        free = bind("127.0.0.1:0", "a test", "--test")
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        first = host.at(address, "the page", "--page")
        first.mount([Route("/", saying("page"))])
        assert host.at(address, "the gateway", "--gateway") is first
        first.mount([Route("/", saying("gateway")), Route("/v1/{name}", saying("blob"))])
        async with httpx.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/")).text == "page"
            assert (await client.get("/v1/x")).text == "blob"
            assert (await client.post("/")).status_code == 405
        with pytest.raises(AddressUnusable, match="the gateway"):
            host.at(address, "the gateway", "--gateway", ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        nursery.cancel_scope.cancel()


async def test_one_connection_too_many_is_closed_unread_and_idle_ones_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 2)
    async with serving(Route("/", saying("hello")), idle=1.0) as listener:
        kept = [await connect(listener) for _ in range(2)]
        await until(lambda: listener.connections == 2)
        with trio.fail_after(60):
            refused = await connect(listener)
            assert await refused.receive_some(10) == b""
            await refused.aclose()
        assert (listener.connections, listener.refused) == (2, 1)
        await kept[0].send_all(b"GET / HTTP/1.1\r\nhost:")  # and never more
        await until(lambda: listener.connections == 0)
        for stream in kept:
            await stream.aclose()


async def test_who_does_not_read_is_let_go() -> None:
    async def flood(_: Request) -> Response:
        return PlainTextResponse("x" * (64 << 20))

    async with serving(Route("/", flood), idle=0.2, stall=0.2) as listener:
        stream = await connect(listener)
        await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: listener.connections == 1)
        await until(lambda: listener.connections == 0)
        await stream.aclose()


class Endless(Response):
    """A file without an end, sent as fast as it is taken, by a task that hypercorn shields while it writes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})


async def test_the_end_does_not_wait_for_who_does_not_read() -> None:
    async def endless(_: Request) -> Response:
        return Endless()

    with trio.fail_after(60):
        async with serving(Route("/", endless)) as listener:
            stream = await connect(listener)
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await stream.receive_some(10)
            await trio.sleep(0.2)  # until nothing more fits between the two
    await stream.aclose()


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"\x16\x03\x01\x02\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 70_000,
        b"\x00" * 9000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_request_end_their_own_connection_only(bytes_sent: bytes) -> None:
    async with serving(Route("/", saying("hello"))) as listener:
        stream = await connect(listener)
        await stream.send_all(bytes_sent)
        await stream.send_eof()
        with trio.fail_after(60):
            while await stream.receive_some(1000):
                continue
        await stream.aclose()
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://{listener.place}/")).text == "hello"


async def test_a_route_that_fails_answers_so_and_tells_the_log_where(monkeypatch: pytest.MonkeyPatch) -> None:
    # A logger of its own: once a test before has set up a daemon's logs, the module's is bound to them for good.
    monkeypatch.setattr("node.web.listener.log", structlog.get_logger())

    async def broken(_: Request) -> Response:
        raise ValueError("out of range")

    with capture_logs() as logs:
        async with serving(Route("/broken", broken)) as listener, httpx.AsyncClient() as client:
            answer = await client.get(f"http://{listener.place}/broken")
    assert (answer.status_code, answer.text) == (500, "internal error\n")
    told = next(line for line in logs if line["event"] == "http.route_failed")
    assert told["path"] == "/broken" and "out of range" in told["error"] and "in broken" in told["where"]


@pytest.mark.parametrize(
    "begins",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
        b"http2-settings: AAMAAABkAAQAAP__\r\n\r\n",
    ],
    ids=["prior knowledge", "h2c"],
)
async def test_http_2_is_spoken_by_nobody_s_wish(begins: bytes) -> None:
    """It brings many requests to one connection, past the count of connections."""
    async with serving(Route("/", saying("yes"))) as listener:
        stream = await connect(listener)
        async with stream:
            await stream.send_all(begins)
            with trio.fail_after(5):
                answer = await stream.receive_some(4096)
    assert answer == b"" if begins.startswith(b"PRI") else answer.startswith(b"HTTP/1.1 200")


async def test_connections_leave_most_of_the_files_that_may_be_open_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_module, "open_files", lambda: 16)
    async with serving(Route("/", saying("yes"))) as listener:
        held = [await connect(listener) for _ in range(4)]
        await until(lambda: listener.refused == 2)
        assert listener.connections == 2
        for stream in held:
            await stream.aclose()
