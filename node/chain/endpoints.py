"""Several RPC endpoints as one: sticks to the one that works, moves on when it fails.

Knows HTTP, limits of time and size, and chain ids; what an answer may be says `answers.py`. Blocking: call it from
threads. It tries every endpoint once per request; waiting and trying later is for the callers. Imports no web3, so that
a command may ask the chain before it pays the second that this takes.
"""

import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import structlog

from node.chain.answers import BadAnswer, parse_answer
from node.chain.errors import RpcUnreachable, WrongChain, from_answer
from node.deadline import within

if TYPE_CHECKING:
    from web3.types import RPCResponse

# The logs of a full chunk of blocks stay below it; an endpoint is a stranger, and may send without end.
MAX_RESPONSE = 32 * 1024 * 1024
WHOLE_ANSWER = 3
"""Times `timeout` that an answer may take in all: the timeout itself begins anew with each byte.

Fewer than the client waits for a read: else an endpoint that trickles would never be left for the next one."""
PACKED = "gzip"
HEADERS = {"content-type": "application/json", "accept-encoding": PACKED}
REFUSALS = (401, 402, 403, 429)
"""Of whoever asks, not of what is asked: a key that is not valid any more, a bill, a quota. Another endpoint may
answer, whatever JSON stands in the body."""
log = structlog.get_logger()
T = TypeVar("T")


@cache
def certificates() -> ssl.SSLContext:
    """Whom to trust behind https://. Read once: that takes as long as dozens of requests."""
    return httpx.create_ssl_context()


def encoded(method: str, params: Any) -> bytes:
    """The body of one request."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


class EndpointFailed(Exception):
    """This endpoint did not answer properly; another may."""


class Endpoints:
    """JSON-RPC over HTTP. Raises RpcUnreachable when no endpoint answers, WrongChain when all that answer
    belong to another chain. timeout: seconds without a byte; a request takes up to WHOLE_ANSWER times that at an
    endpoint.
    """

    def __init__(self, urls: Sequence[str], chain_id: int, timeout: float = 8.0) -> None:
        self._urls = tuple(urls)
        self._chain_id = chain_id
        self._timeout = timeout
        self._idle: list[Line] = []
        self._closed = False
        self._lock = threading.Lock()
        self._current = 0
        self._verified: set[str] = set()
        self._thread = threading.local()

    @property
    def uncertain(self) -> bool:
        """Whether this thread's last request reached an endpoint that did not answer, before another did: if it
        was to change something, it may have been heard twice.
        """
        return bool(getattr(self._thread, "unanswered", False))

    @property
    def url(self) -> str:
        """The endpoint in use."""
        return self._urls[self._current]

    def close(self) -> None:
        """A request that is in progress closes its own connection."""
        with self._lock:  # those that end at the same moment each come here
            self._closed, idle, self._idle = True, self._idle, []
        for line in idle:
            line.close()

    def request(self, method: str, payload: bytes) -> "RPCResponse":
        """The answer to a whole request, which may be an error."""
        causes: dict[str, str] = {}
        wrong: WrongChain | None = None
        start = self._current
        self._thread.unanswered = False
        for offset in range(len(self._urls)):
            place = (start + offset) % len(self._urls)
            url = self._urls[place]
            try:
                self._verify(url)
            except EndpointFailed as failure:
                causes[url] = str(failure)
                continue
            except WrongChain as error:
                causes[url] = error.why
                wrong = error
                continue
            try:
                response = self._post(url, payload, method)
            except EndpointFailed as failure:
                # It may have taken the request and lost only its answer: for a transaction that is not the same as a
                # refusal.
                self._thread.unanswered = True
                causes[url] = str(failure)
                self._distrust(url)
                continue
            self._stick(place, causes)
            return response
        if wrong is not None and all("chain id" in cause for cause in causes.values()):
            raise wrong
        raise RpcUnreachable(causes)

    def _verify(self, url: str) -> None:
        """Check the chain id before the first request to an endpoint, and again after each of its failures."""
        if url in self._verified:
            return
        answer = self._post(url, encoded("eth_chainId", []), "eth_chainId")
        if "result" not in answer:
            raise EndpointFailed("it does not tell its chain id")
        found = int(answer["result"], 16)
        # Before anything is believed or signed for: the same contract address may exist on another chain.
        if found != self._chain_id:
            raise WrongChain(url, self._chain_id, found)
        with self._lock:
            self._verified.add(url)

    def _distrust(self, url: str) -> None:
        with self._lock:
            self._verified.discard(url)

    def _stick(self, place: int, causes: dict[str, str]) -> None:
        if place != self._current:
            log.warning("chain.endpoint_changed", url=self._urls[place], causes=causes)
            with self._lock:
                self._current = place

    def _post(self, url: str, payload: bytes, method: str) -> "RPCResponse":
        with self._line() as line:
            status, answer = line.post(url, payload, method)
        # With an error in its body a 500 is an answer: a revert, told by an endpoint of that habit.
        if status in REFUSALS or (status >= 500 and "error" not in answer):
            raise EndpointFailed(f"HTTP {status}")
        return answer

    @contextmanager
    def _line(self) -> Iterator["Line"]:
        """One that nobody else uses."""
        with self._lock:
            # The one used last: its connection is the likeliest to be open still.
            line = self._idle.pop() if self._idle else None
        line = line or Line(self._timeout)
        try:
            yield line
        finally:
            with self._lock:
                self._idle.append(line)
            if self._closed:
                self.close()


class Line:
    """A connection that serves one request at a time: httpx tells which one a request goes by only when it connects."""

    def __init__(self, timeout: float) -> None:
        # A host that is gone shows at the connect; one that computes may take longer to answer.
        patience = httpx.Timeout(timeout, connect=min(timeout, 4.0))
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        self._http = httpx.Client(timeout=patience, limits=limits, verify=certificates())
        self._longest = WHOLE_ANSWER * timeout
        self._ends = math.inf
        """When the request in progress must be over (monotonic)."""
        self._layers = 0
        """Of encryption."""
        self._sock: socket.socket | None = None
        self.close = self._http.close

    def ask(self, url: str, method: str, *params: Any) -> Any:
        """The result of one request. Raises EndpointFailed, and ValueError for an answer that is an error."""
        _, answer = self.post(url, encoded(method, params), method)
        if "error" in answer:
            raise ValueError(f"{method}: {answer['error']}")
        return answer.get("result")

    def post(self, url: str, payload: bytes, method: str) -> "tuple[int, RPCResponse]":
        """The status and the answer to a whole request, which may be an error. Raises EndpointFailed."""
        status, body = self._post(url, payload)
        try:
            return status, parse_answer(method, body)
        except BadAnswer as error:
            raise EndpointFailed(f"HTTP {status} {error}") from error

    def _post(self, url: str, payload: bytes) -> tuple[int, bytes]:
        until = time.monotonic() + self._longest
        with ExitStack() as answered:

            def traced(event: str, info: Mapping[str, Any]) -> None:
                if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                    self._layers = 0 if "tcp" in event else self._layers + 1
                    self._bound(info["return_value"])
                elif event.endswith("send_request_headers.started"):
                    self._ends = time.monotonic() + self._longest
                    # Through a proxy that is encrypted itself one read is many, each with a limit of its own.
                    if self._layers > 1 and self._sock:
                        answered.enter_context(within(self._sock, self._longest))

            try:
                with self._http.stream(
                    "POST", url, content=payload, headers=HEADERS, extensions={"trace": traced}
                ) as response:
                    return response.status_code, _bounded(response, until)
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                late = "its answer does not end" if time.monotonic() > until else ""
                raise EndpointFailed(late or str(error) or type(error).__name__) from error

    def _bound(self, stream: Any) -> None:
        """What httpx reads and writes by: each read gets what is left of the whole answer's time at most, also while
        the lines before the body come. A thread that watches each request took a third of its CPU."""
        self._sock, self._ends = stream.get_extra_info("socket"), math.inf
        stream.read, stream.write = self._limited(stream.read), self._limited(stream.write)

    def _limited(self, work: Callable[..., T]) -> Callable[..., T]:
        def limited(data: Any, timeout: float) -> T:
            left = self._ends - time.monotonic()
            if left <= 0:
                raise TimeoutError
            return work(data, min(timeout, left))

        return limited


def _bounded(response: httpx.Response, until: float) -> bytes:
    # What was asked for. Others make gigabytes out of one read of 64 KiB, before anybody can count them.
    if response.headers.get("content-encoding", "").lower() not in ("", "identity", PACKED):
        raise EndpointFailed("it packs its answer otherwise than it was asked to")
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_RESPONSE:
            raise EndpointFailed(f"its answer is bigger than {MAX_RESPONSE} bytes")
    # Also where it ended: a line that was cut reads as an end.
    if time.monotonic() > until:
        raise EndpointFailed("its answer does not end")
    return bytes(body)


class Asker:
    """What `Contracts` asks its views with where web3 would take a second to import. action: for errors, completes
    "cannot ..."."""

    def __init__(self, endpoints: Endpoints, action: str) -> None:
        self.eth = self
        self._endpoints = endpoints
        self._action = action

    def call(self, transaction: Any) -> bytes:
        """Raises ChainError."""
        answer = self._endpoints.request("eth_call", encoded("eth_call", [transaction, "latest"]))
        if "error" in answer:
            raise from_answer(answer["error"], self._action)
        return bytes.fromhex(answer.get("result", "").removeprefix("0x"))


def rpc(http: httpx.Client, url: str, method: str, *params: Any) -> Any:
    """One bare JSON-RPC request to an endpoint of our own: an answer may take any time and room. Raises httpx.HTTPError
    or ValueError."""
    answer = http.post(url, content=encoded(method, params), headers={"content-type": "application/json"}).json()
    if "error" in answer:
        raise ValueError(f"{method}: {answer['error']}")
    return answer["result"]
