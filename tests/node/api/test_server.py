"""The control API over its socket, and /metrics over TCP where that is asked for."""

import socket
from pathlib import Path

import httpx
import pytest
import trio

from node.api.server import ApiServer, checked_address
from node.errors import ConfigError

STATUS = {"training": {"step": 3, "latest": {"step": 3, "loss": 0.5}, "alarms": []}, "node": {"address": "0x"}}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


async def get(address: str, transport: httpx.AsyncBaseTransport | None = None) -> httpx.Response:
    async with httpx.AsyncClient(transport=transport, timeout=5) as client:
        return await client.get(address)


async def test_the_socket_serves_everything_and_the_port_only_metrics(tmp_path: Path) -> None:
    path, port = tmp_path / "s" / "api.sock", free_port()
    server = ApiServer(path, lambda: STATUS, f"127.0.0.1:{port}")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        uds = httpx.AsyncHTTPTransport(uds=str(path), verify=False)
        assert (await get("http://daemon/status", uds)).json() == STATUS
        with trio.fail_after(10):
            while True:
                try:
                    answer = await get(f"http://127.0.0.1:{port}/metrics")
                    break
                except httpx.ConnectError:
                    await trio.sleep(0.02)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "intellect_step_loss 0.5" in answer.text
        assert (await get(f"http://127.0.0.1:{port}/livez")).text == "ok\n"
        assert (await get(f"http://127.0.0.1:{port}/status")).status_code == 404
        nursery.cancel_scope.cancel()
    assert not path.exists()


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", ":x"])
def test_an_address_that_is_none_is_a_clear_error(address: str) -> None:
    with pytest.raises(ConfigError, match="metrics cannot be served"):
        checked_address(address)


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigError, match="metrics cannot be served"):
            checked_address(f"127.0.0.1:{taken.getsockname()[1]}")
