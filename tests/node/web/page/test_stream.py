"""The page over a real listener: what is served and what is not, who is told what, and whom nobody waits for."""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from node.web.host import bind
from node.web.listener import HttpListener
from node.web.page import page
from node.web.page.page import load_assets
from tests.swarms import status, typed


class Swarm:
    """A status that moves when it is told to."""

    def __init__(self, members: int = 5) -> None:
        self.members, self.step = members, 20
        self._began = time.monotonic()

    def status(self) -> dict[str, Any]:
        return status(members=self.members, step=self.step, at=time.monotonic() - self._began)


@asynccontextmanager
async def serving(swarm: Swarm, folder: Path) -> AsyncIterator[str]:
    made = page.WebPage(lambda: typed(swarm.status()), folder, seen=0.02, pulse=0.2)
    listener = HttpListener(bind("127.0.0.1:0", "the page", "--page"))
    async with trio.open_nursery() as nursery:
        listener.mount(await nursery.start(made.run))
        await nursery.start(listener.run)
        yield f"http://{listener.place}"
        nursery.cancel_scope.cancel()


Following = Callable[[], Awaitable[tuple[str, Any, str]]]


@asynccontextmanager
async def watching(url: str, mark: str = "") -> AsyncIterator[Following]:
    """Yields what returns the next event: (name, data, id). HTTP/1.0, so that nothing is chunked."""
    last = f"last-event-id: {mark}\r\n" if mark else ""
    async with await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2])) as connection:
        await connection.send_all(f"GET /events HTTP/1.0\r\nhost: localhost\r\n{last}\r\n".encode())
        buffer = b""

        async def block(end: bytes) -> str:
            nonlocal buffer
            while end not in buffer:
                got = await connection.receive_some(1 << 16)
                assert got, buffer
                buffer += got
            found, _, buffer = buffer.partition(end)
            return found.decode()

        async def following() -> tuple[str, Any, str]:
            fields = dict(line.split(": ", 1) for line in (await block(b"\n\n")).split("\n"))
            return fields["event"], json.loads(fields["data"]), fields.get("id", "")

        head = await block(b"\r\n\r\n")
        assert " 200 " in head.partition("\r\n")[0] and "text/event-stream" in head
        yield following


async def until(following: Following, step: int) -> tuple[dict[str, Any], str]:
    """What is told up to the end of the batch in which this step's curve came."""
    told: dict[str, Any] = {}
    with trio.fail_after(60):
        while True:
            name, data, mark = await following()
            told[name] = data
            if mark and step in [row[0] for row in told.get("steps", {"rows": []})["rows"]]:
                return told, mark


async def test_the_documents_are_served_under_a_policy_that_lets_nothing_else_in(tmp_path: Path) -> None:
    async with serving(Swarm(), tmp_path) as url, httpx.AsyncClient(base_url=url) as client:
        for asset in load_assets():
            got = await client.get(asset.path)
            assert got.status_code == 200 and got.content == asset.body
            policy = got.headers["content-security-policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
            assert (await client.get(asset.path, headers={"if-none-match": asset.tag})).status_code == 304
            plain = await client.get(asset.path, headers={"accept-encoding": "identity"})
            assert plain.content == asset.body and "content-encoding" not in plain.headers
        for path in ("/../../etc/passwd", "/%2e%2e/node-key.json", "/page-history.sqlite", "/index.html", "/status"):
            assert (await client.get(path)).status_code == 404
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await client.request(method, "/events")).status_code == 405
        rebound = {"host": "rebound.example.com"}
        assert [(await client.get(path, headers=rebound)).status_code for path in ("/", "/events")] == [403, 403]


def test_the_assets_name_nothing_of_another_site_and_hold_no_inline_code() -> None:
    document = next(asset.body.decode() for asset in load_assets() if asset.path == "/")
    assert " style=" not in document and " on" + "load=" not in document and "<style" not in document
    for asset in load_assets():
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and "innerHTML" not in text, asset.path


async def test_a_viewer_hears_what_changes_and_after_a_break_only_what_it_missed(tmp_path: Path) -> None:
    swarm = Swarm()
    async with serving(swarm, tmp_path) as url:
        async with watching(url) as following:
            told, mark = await until(following, 20)
            assert told["run"]["step"] == 20 and len(told["members"]["rows"]) == 5 and "hello" in told
            swarm.step = 21
            told, mark = await until(following, 21)
            assert told["run"]["step"] == 21 and "hello" not in told and "money" not in told
            assert told["steps"]["whole"] is False and [row[0] for row in told["steps"]["rows"]] == [21]
        swarm.step = 22
        async with watching(url, mark) as following:
            told, _ = await until(following, 22)
            assert told["run"]["step"] == 22 and "hello" not in told
        for strange in ("0123456789abcdef.7", "x", ".", mark.partition(".")[0] + ".-1", "9" * 5000):
            async with watching(url, strange) as following:
                told, _ = await until(following, 22)
                assert "hello" in told and told["steps"]["whole"]


async def test_who_hears_nothing_new_hears_that(tmp_path: Path) -> None:
    async with serving(Swarm(), tmp_path) as url, watching(url) as following:
        await until(following, 20)
        with trio.fail_after(60):
            while True:
                name, _, mark = await following()
                if (name, mark) == ("pulse", ""):
                    break


async def test_one_viewer_too_many_is_told_to_come_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_VIEWERS", 2)
    async with serving(Swarm(), tmp_path) as url:
        async with watching(url) as one, watching(url) as two:
            await until(one, 20)
            await until(two, 20)
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"{url}/events")).status_code == 503
        with trio.fail_after(60):
            while not await welcome(url):
                await trio.sleep(0.02)


async def welcome(url: str) -> bool:
    async with httpx.AsyncClient() as client:
        return (await client.head(f"{url}/events")).status_code == 200


async def test_a_viewer_that_stops_reading_holds_up_nobody_and_gets_the_newest_then(tmp_path: Path) -> None:
    swarm = Swarm(members=1500)
    async with serving(swarm, tmp_path) as url:
        sleeper = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        await sleeper.send_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with watching(url) as following:
            for step in range(21, 40):
                swarm.step = step
                await until(following, step)
        read = bytearray()
        with trio.fail_after(60):
            while b'"step":39,"total"' not in read:
                read += await sleeper.receive_some(1 << 16)
        steps = [step for step in range(20, 40) if f'"step":{step},"total"'.encode() in read]
        assert len(steps) < 19, "what it slept through is not told one by one"
        await sleeper.aclose()
