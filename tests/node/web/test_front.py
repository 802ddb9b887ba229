"""The control API over its socket, and /metrics over TCP where that is asked for."""

import json
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import trio

from node.config import NodeConfig
from node.errors import StateError
from node.status_schema import DaemonStatus, NodePart, TrainingPart
from node.web.front import ApiServer, Front
from node.web.host import AddressUnusable, bind
from node.web.listener import place_of

STATUS = DaemonStatus(node=NodePart(address="0x"), training=TrainingPart(step=3, latest={"step": 3, "loss": 0.5}))
FIGURES = msgspec.to_builtins(STATUS)


async def get(address: str, transport: httpx.AsyncBaseTransport | None = None) -> httpx.Response:
    async with httpx.AsyncClient(transport=transport, timeout=5) as client:
        return await client.get(address)


async def test_the_socket_is_its_owners_and_gone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "s" / "api.sock"
    async with trio.open_nursery() as nursery:
        await nursery.start(ApiServer(path, lambda: STATUS).run)
        assert path.stat().st_mode & 0o777 == 0o600
        uds = httpx.AsyncHTTPTransport(uds=str(path), verify=False)
        assert (await get("http://daemon/status", uds)).json() == json.loads(msgspec.json.encode(STATUS))
        nursery.cancel_scope.cancel()
    assert not path.exists()


async def test_a_socket_of_one_who_takes_no_callers_is_left_to_it_and_one_of_the_dead_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "s" / "api.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as hangs, ExitStack() as callers:
        hangs.bind(str(path))
        hangs.listen(0)
        with suppress(BlockingIOError):
            for _ in range(5):
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                caller.connect(str(path))
        with pytest.raises(StateError, match="cannot open the control socket"):
            await ApiServer(path, lambda: STATUS).run()
        assert path.exists()
    async with trio.open_nursery() as nursery:
        await nursery.start(ApiServer(path, lambda: STATUS).run)
        nursery.cancel_scope.cancel()


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Front]]:
    def make(**settings: Any) -> Front:
        return Front(
            NodeConfig(home=tmp_path, state_dir=tmp_path, **settings), lambda: STATUS, lambda: FIGURES, tmp_path
        )

    with tempfile.TemporaryDirectory() as runtime:  # short enough for sockets
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield make


async def test_the_port_serves_metrics_and_no_more(front: Callable[..., Front]) -> None:
    served = front(metrics_address="127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        place = served.web.places[0]
        answer = await get(f"http://{place}/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "intellect_step_loss 0.5" in answer.text
        assert (await get(f"http://{place}/livez")).text == "ok\n"
        assert (await get(f"http://{place}/status")).status_code == 404
        nursery.cancel_scope.cancel()


async def test_page_and_metrics_share_an_address_and_the_page_is_told_where_it_is(front: Callable[..., Front]) -> None:
    free = bind("127.0.0.1:0", "a test", "--test")
    place = place_of(free)
    free.close()
    served = front(page=place, metrics_address=place)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        assert (served.page, served.web.places) == (f"http://{place}/", [place])
        assert "<title>intellect-node</title>" in (await get(f"http://{place}/")).text
        assert "intellect_step_loss" in (await get(f"http://{place}/metrics")).text
        nursery.cancel_scope.cancel()


async def test_an_address_that_is_none_stops_the_node_before_it_joins(front: Callable[..., Front]) -> None:
    with pytest.RaisesGroup(AddressUnusable, flatten_subgroups=True):
        await front(metrics_address="nowhere").run()
