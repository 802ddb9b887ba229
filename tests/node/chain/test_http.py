"""Proxies and certificates of the environment: for other machines, and never for this one."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from node.chain.endpoints import Endpoints, encoded
from node.chain.errors import RpcUnreachable
from node.chain.http import EnvironmentUnusable, certificates, client_for, is_here


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Answers for all places; what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            body = b'{"jsonrpc":"2.0","id":1,"result":"0x1"}'
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.server_address[1]}")
    yield asked
    server.shutdown()
    server.server_close()


def ask(url: str) -> Any:
    endpoints = Endpoints([url], 1, timeout=2.0)
    try:
        return endpoints.request("eth_chainId", encoded("eth_chainId", [])).get("result")
    finally:
        endpoints.close()


def test_another_machine_is_asked_through_the_proxy_and_this_one_is_not(proxy: list[str], bad_endpoint: Any) -> None:
    assert ask("http://rpc.invalid/") == "0x1" and proxy, "the control"
    proxy.clear()
    assert ask(bad_endpoint(200, b'{"jsonrpc":"2.0","id":1,"result":"0x1"}')) == "0x1"
    assert proxy == []


def test_a_place_that_wants_no_proxy_gets_none(proxy: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "rpc.invalid")
    with pytest.raises(RpcUnreachable):
        ask("http://rpc.invalid/")
    assert proxy == []


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("a.localhost", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True)]
    + [("10.0.0.1", False), ("rpc.example", False), ("localhost.example", False), ("", False)],
)
def test_this_machine_is_known_by_all_its_names(host: str, here: bool) -> None:
    assert is_here(host) is here


@pytest.mark.parametrize("proxy", ["gopher://127.0.0.1:1", "socks5h://127.0.0.1:1"])
def test_a_proxy_that_cannot_be_used_is_told_and_does_not_end_the_program(
    monkeypatch: pytest.MonkeyPatch, proxy: str, bad_endpoint: Any
) -> None:
    """A SOCKS proxy where its package is there is used, and does not answer here."""
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("NO_PROXY", "")
    with pytest.raises(RpcUnreachable):
        ask("http://rpc.invalid/")
    assert ask(bad_endpoint(200, b'{"jsonrpc":"2.0","id":1,"result":"0x1"}')) == "0x1"


def test_certificates_that_cannot_be_read_are_named_and_only_where_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    certificates.cache_clear()
    try:
        for file in (junk, tmp_path / "none.pem"):
            monkeypatch.setenv("SSL_CERT_FILE", str(file))
            client_for("http://rpc.example/").close()
            with pytest.raises(EnvironmentUnusable, match=f"SSL_CERT_FILE={file}"):
                client_for("https://rpc.example/")
    finally:
        certificates.cache_clear()
