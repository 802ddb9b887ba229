"""Whose requests reach the page: not those of another site's script, whichever way it names this machine."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from node.web.listener import OwnHosts, host_name


async def hello(_: Request) -> Response:
    return PlainTextResponse("hello")


APP = Starlette(
    routes=[
        Route("/", hello, methods=["GET"], middleware=[Middleware(OwnHosts, names=["swarm.example.org", "10.0.0.7"])])
    ]
)


async def status_of(**headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://unset") as client:
        return (await client.get("/", headers=named)).status_code


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8080", "LocalHost:1", "127.0.0.1:9", "[::1]:8080", "192.0.2.4", "swarm.example.org:8080"],
)
async def test_our_own_names_and_addresses_are_answered(host: str) -> None:
    assert await status_of(host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example.com",
        "rebound.example.com:8080",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "swarm.example.org.example.com",
        "",
        "[::1",
        "a b",
        "127.0.0.1@rebound.example.com",
        "user@localhost",
        "localhost/..",
    ],
)
async def test_a_name_that_somebody_else_pointed_at_us_is_not(host: str) -> None:
    assert await status_of(host=host) == 403


async def test_another_sites_script_is_refused_and_its_link_is_not() -> None:
    assert await status_of(host="localhost:1", origin="http://localhost:1", sec_fetch_site="same-origin") == 200
    assert await status_of(host="localhost:1", origin="http://localhost:2") == 403
    assert await status_of(host="localhost:1", origin="null") == 403
    assert await status_of(host="localhost:1", sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert await status_of(host="localhost:1", sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200


def test_a_host_is_read_without_its_port() -> None:
    assert [host_name(text) for text in ("Example.org:80", "[::1]:80", "x:y:z")] == ["example.org", "::1", "x"]
