"""An RPC endpoint between a client and the real one, which says what a test wants it to say."""

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from node.chain.http import certificates


class Meddler:
    """An endpoint that hands everything on to the real one, unless the test says otherwise.

    before: method -> answer to give instead of asking; after: method -> answer to give although it was asked.
    An answer is a JSON-RPC object's rest, or None for no answer at all. Each is used `times` times. lags: methods that
    know nothing for so many seconds after the last transaction was taken. at: told of every method that is asked for,
    before and after the real endpoint is. rule: request -> what to answer instead of asking, None to go on; rewrite:
    the real endpoint's answer -> what is handed on; batches: whether several questions may be one request; posts: how
    many requests came.
    """

    def __init__(self, target: str) -> None:
        self.http = httpx.Client(base_url=target, verify=certificates())
        self.before: dict[str, dict[str, Any] | None] = {}
        self.after: dict[str, dict[str, Any] | None] = {}
        self.lags: dict[str, float] = {}
        self.times = 1_000_000
        self.sent = self.posts = 0
        self.batches = True
        self.url = ""
        self.at: Callable[[str, str], None] = lambda method, when: None
        self.rule: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda request: None
        self.rewrite: Callable[[dict[str, Any]], dict[str, Any]] = lambda answer: answer
        self._sent_at = -math.inf  # nothing was sent; the clock begins at boot, which may be a minute ago

    def all_answers(self, requests: Any) -> Any:
        """To one question or to several."""
        self.posts += 1
        if not isinstance(requests, list):
            return self.answer(requests)
        if not self.batches:
            return {
                "jsonrpc": "2.0",
                "id": None,
                "error": {"code": -32600, "message": "Batch requests are not allowed"},
            }
        with ThreadPoolExecutor(len(requests)) as pool:
            given = list(pool.map(self.answer, requests))
        return None if None in given else given

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        method = request["method"]
        self.at(method, "before")
        envelope = {"jsonrpc": "2.0", "id": request["id"]}
        if method in self.before and self.times > 0:
            self.times -= 1
            given = self.before[method]
            return None if given is None else envelope | given
        ruled = self.rule(request)
        if ruled is not None:
            return envelope | ruled
        if time.monotonic() - self._sent_at < self.lags.get(method, 0.0):
            return envelope | {"result": None}
        if method == "eth_sendRawTransaction":
            self.sent, self._sent_at = self.sent + 1, time.monotonic()
        real = self.http.post("", json=request).json()
        self.at(method, "after")
        if method in self.after and self.times > 0:
            self.times -= 1
            given = self.after[method]
            return None if given is None else envelope | given
        return self.rewrite(real)


@contextmanager
def meddling(target: str) -> Iterator[Meddler]:
    """A running one in front of `target`."""
    meddler = Meddler(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            given = meddler.all_answers(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = b"" if given is None else json.dumps(given).encode()
            try:
                self.send_response(502 if given is None else 200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except ConnectionError:  # who asked is gone, killed or impatient
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    meddler.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield meddler
    finally:
        server.shutdown()
        server.server_close()
        meddler.http.close()
