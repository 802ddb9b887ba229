"""Several RPC endpoints as one: sticks to the one that works, moves on when it fails or refuses.

Knows HTTP, limits of time and size, and chain ids; what an answer may be says `answers.py`, and what a refusal means
says `refusals.py`. Blocking: call it from threads. It tries every endpoint once per request, those that rest last, and
waits out a quota once where that takes a moment; more patience is for the callers. Imports no web3, so that a command
may ask the chain before it pays the second that this takes.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx
import structlog

from contracts.asking import came_along
from node.chain.answers import BadAnswer, parse_answer, parse_answers
from node.chain.errors import RpcUnreachable, WrongChain, scrubbed, shown, translate
from node.chain.http import EnvironmentUnusable, client_for
from node.chain.refusals import (
    CALLERS,
    MAYBE_HEARD,
    OF_THE_QUESTION,
    SEND,
    STATUSES,
    EndpointRefused,
    Marks,
    RefusalKind,
)
from node.deadline import within

if TYPE_CHECKING:
    from web3.types import RPCResponse

# The logs of a full chunk of blocks stay below it; an endpoint is a stranger, and may send without end.
MAX_RESPONSE = 32 * 1024 * 1024
PACKED = "gzip"
HEADERS = {"content-type": "application/json", "accept-encoding": PACKED}
ONLY: ContextVar[int | None] = ContextVar("only", default=None)
"""The one endpoint, by its place, that is asked for a second opinion; None where any may answer."""
log = structlog.get_logger()
T = TypeVar("T")


def encoded(method: str, params: Any) -> bytes:
    """The body of one request."""
    return _BEGINS % 1 + json.dumps({"method": method, "params": params}).encode()[1:]


_BEGINS = b'{"jsonrpc": "2.0", "id": %d, '
TOGETHER = "several questions at once"
"""As a method that an endpoint may not have."""


class EndpointFailed(Exception):
    """This endpoint did not answer properly; another may."""


class Endpoints:
    """JSON-RPC over HTTP. Raises Refused for what is the asker's business, and where all endpoints refuse the
    question; RpcUnreachable when none answers, WrongChain when all that answer belong to another chain. timeout:
    seconds without a byte; a request takes up to three times that at an endpoint; clock: monotonic.
    """

    def __init__(
        self, urls: Sequence[str], chain_id: int, timeout: float = 8.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._urls = tuple(urls)
        self._chain_id = chain_id
        self._timeout = timeout
        self._idle: list[SerialConnection] = []
        self._closed = False
        self._lock = threading.Lock()
        self._current = 0
        self._verified: dict[str, float] = {}
        """URL -> when it last told the right chain id (monotonic)."""
        self._looking: dict[str, threading.Lock] = {}
        self._marks = Marks()
        self._last: dict[str, float] = {}
        """URL -> until when the others are asked before it (monotonic)."""
        self._ended = threading.Event()
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

    @property
    def answered(self) -> str:
        """The endpoint that answered this thread's last request, as it is shown."""
        return getattr(self._thread, "answered", "")

    def first_for(self, method: str) -> str:
        """The endpoint that is asked first, as it is shown."""
        return shown(self._urls[self._order(method)[0]])

    def __len__(self) -> int:
        return len(self._urls)

    def shown(self, place: int) -> str:
        return shown(self._urls[place])

    def standing(self, place: int) -> tuple[bool, bool]:
        """Whether this one is in use, and whether the others are asked before it, as it lags."""
        return place == self._current, self._last.get(self._urls[place], 0.0) > time.monotonic()

    def each(self, method: str) -> list[int]:
        """The places of the endpoints that may be asked a method now, in their order; of all, where each rests."""
        places, now = self._order(method), time.monotonic()
        with self._lock:
            return [one for one in places if not self._marks.rests(self._urls[one], method, now)] or places

    @contextmanager
    def only(self, place: int) -> Iterator[None]:
        """Within it this one is asked and no other, whichever is in use."""
        token = ONLY.set(place)
        try:
            yield
        finally:
            ONLY.reset(token)

    def pass_over(self, method: str, place: int | None = None) -> str:
        """An endpoint, else the one that is asked first, is known not to do a method well: it rests for a while, and is
        no second opinion either. Returns it, as it is shown."""
        url = self._urls[self._order(method)[0] if place is None else place]
        with self._lock:
            self._marks.note(url, method, RefusalKind.UNSUPPORTED, time.monotonic())
        return shown(url)

    def put_last(self, place: int) -> str:
        """By what another one says it lags: that comes before it for a while. As a second opinion it is asked all the
        same: else whoever says so would be believed alone. Returns it, as it is shown."""
        with self._lock:
            # Seconds for which the others come before an endpoint that lags.
            self._last[self._urls[place]] = time.monotonic() + 600.0
        return shown(self._urls[place])

    def close(self) -> None:
        """A request that is in progress closes its own connection."""
        self._ended.set()
        with self._lock:  # those that end at the same moment each come here
            self._closed, idle, self._idle = True, self._idle, []
        for line in idle:
            line.close()

    def request(self, method: str, payload: bytes) -> "RPCResponse":
        """The answer to a whole request, which has a result. payload: of `encoded`."""
        # What is sent to change something is no question: it is never heard twice.
        if method != SEND and (told := came_along(self.together, (ONLY.get(), method, payload))) is not None:
            if isinstance(told, EndpointRefused):
                raise told
            return told
        self._thread.unanswered = False
        causes: dict[str, Exception] = {}

        def ask(url: str) -> "RPCResponse":
            return self._by_a_line(lambda line: line.post(url, payload, method))

        for place in self._order(method):
            if (answer := self._try(place, method, ask, causes)) is not None:
                return answer
        # Quotas are of seconds mostly: who has no other endpoint would fail at each of them.
        # Seconds of a rest that a request waits out at an endpoint that was asked too often, which are the two least
        # rests; and how often: another question's answer may end a rest.
        for _ in range(3):
            found = self._soonest(causes)
            if found is None or found[1] > 4.5 or self._ended.wait(found[1]):
                break
            if (answer := self._try(found[0], method, ask, causes)) is not None:
                return answer
        raise _worst(causes)

    def together(
        self, asked: Sequence[tuple[int | None, str, bytes]]
    ) -> "list[RPCResponse | EndpointRefused | None] | None":
        """The answers to several questions as one request to one endpoint; None where that takes one at a time, or they
        are for different ones. A question without its answer is asked by itself: then it is known what that says of the
        endpoint, and others are asked. asked: of each the one endpoint, if it is for one only, its method and body."""
        if len({only for only, _, _ in asked}) > 1:
            return None
        causes: dict[str, Exception] = {}
        self._thread.unanswered = False
        token = ONLY.set(asked[0][0])
        try:
            for place in self._order(""):
                url, now = self._urls[place], time.monotonic()
                with self._lock:
                    # What this one does not do well is asked of others.
                    rests = {one: self._marks.rests(url, one, now) for one in (TOGETHER, *(each[1] for each in asked))}
                fit = [at for at, (_, method, _) in enumerate(asked) if not rests[method]]
                if rests[TOGETHER] or len(fit) < 2:
                    return None
                ask = _joined([asked[at] for at in fit], self._by_a_line)
                if (told := self._try(place, TOGETHER, ask, causes)) is not None:
                    mine = {at: one for at, one in zip(fit, told, strict=True) if not _says_of_endpoint(one)}
                    return [mine.get(at) for at in range(len(asked))]
                if isinstance(causes[url], EndpointRefused):
                    return None
        finally:
            ONLY.reset(token)
        raise _worst(causes)

    def _order(self, method: str) -> list[int]:
        """All endpoints: the one in use first, those that rest last, in the order in which they may be asked again."""
        if (only := ONLY.get()) is not None:
            return [only]
        with self._lock:
            places = [(self._current + offset) % len(self._urls) for offset in range(len(self._urls))]
            now = time.monotonic()
            return sorted(places, key=lambda place: self._precedence(self._urls[place], method, now))

    def _precedence(self, url: str, method: str, now: float) -> tuple[float, float]:
        """Which is asked first: seconds of rest, then seconds for which others come before it."""
        return self._marks.rests(url, method, now), max(self._last.get(url, 0.0) - now, 0.0)

    def _soonest(self, causes: Mapping[str, Exception]) -> tuple[int, float] | None:
        """The endpoint whose quota has room again soonest, and in how many seconds; None if none told of one."""
        now = time.monotonic()
        with self._lock:
            rests = [
                (self._marks.rests(url, "", now), place)
                for place, url in enumerate(self._urls)
                if isinstance(error := causes.get(url), EndpointRefused) and error.kind is RefusalKind.QUOTA
            ]
        pause, place = min(rests, default=(0.0, -1))
        return None if place < 0 else (place, pause)

    def _try(self, place: int, method: str, ask: Callable[[str], T], causes: dict[str, Exception]) -> T | None:
        """What one endpoint answers; None, and why in `causes`, where the next is to be asked. Raises Refused."""
        url, sent = self._urls[place], False
        try:
            self._verify(url)
            sent = True
            answer = ask(url)
        except EndpointRefused as refusal:
            if refusal.kind in CALLERS:
                self._stick(place, causes)
                raise
            causes[url] = refusal
            self._thread.unanswered |= sent and refusal.kind in MAYBE_HEARD
            with self._lock:
                self._marks.note(url, refusal.method, refusal.kind, time.monotonic())
            return None
        except WrongChain as error:
            causes[url] = error
            self._leave(place, causes)
            return None
        except EndpointFailed as failure:
            # It may have taken the request and lost only its answer: for a transaction that is not the same as a
            # refusal.
            self._thread.unanswered |= sent
            causes[url] = failure
            with self._lock:
                self._verified.pop(url, None)
            self._leave(place, causes)
            return None
        with self._lock:
            self._marks.answered(url, method)
        self._thread.answered = shown(url)
        self._stick(place, causes)
        return answer

    def _verify(self, url: str) -> None:
        """Check the chain id before the first request to an endpoint, again after each of its failures, and now and
        then."""
        if self._is_verified(url):
            return
        with self._alone(url):
            if self._is_verified(url):
                return
            asked = encoded("eth_chainId", [])
            answer = self._by_a_line(lambda line: line.post(url, asked, "eth_chainId"))
            found = int(answer.get("result", "0x0"), 16)
            # Before anything is believed or signed for: the same contract address may exist on another chain.
            if found != self._chain_id:
                with self._lock:
                    self._verified.pop(url, None)
                raise WrongChain(url, self._chain_id, found)
            with self._lock:
                self._verified[url] = self._clock()

    @contextmanager
    def _alone(self, url: str) -> Iterator[None]:
        """Of questions of one moment the first looks which chain it is, and the others wait for that; where it was in
        vain, they do not wait for each other."""
        looking = self._looking.setdefault(url, threading.Lock())
        first = looking.acquire(blocking=False)
        try:
            if not first:
                looking.acquire()
                looking.release()
            yield
        finally:
            if first:
                looking.release()

    def _is_verified(self, url: str) -> bool:
        # Seconds after which it is asked again which chain it is: whoever runs it may lead its name elsewhere.
        verify_every = 300.0
        return self._clock() - self._verified.get(url, -math.inf) < verify_every

    def _stick(self, place: int, causes: Mapping[str, Exception]) -> None:
        """Use this one from now on, unless the one before lacks nothing but this method or this block."""
        before = causes.get(self._urls[self._current])
        if ONLY.get() is not None:
            return
        if place == self._current or (isinstance(before, EndpointRefused) and before.kind in OF_THE_QUESTION):
            return
        with self._lock:
            rests = self._marks.rests(self._urls[self._current], "", time.monotonic())
            if before is None and not rests:
                return
            self._current = place
        _tell_of_change(self._urls[place], causes)

    def _leave(self, place: int, causes: Mapping[str, Exception]) -> None:
        """One that failed as a witness is in use no more: nobody else was asked in its place, who would be."""
        if ONLY.get() is None or place != self._current or len(self._urls) < 2:
            return
        with self._lock:
            self._current = (place + 1) % len(self._urls)
        _tell_of_change(self.url, causes)

    def _by_a_line(self, post: Callable[["SerialConnection"], T]) -> T:
        """By one that nobody else uses."""
        with self._lock:
            # The one used last: its connection is the likeliest to be open still.
            line = self._idle.pop() if self._idle else None
        line = line or SerialConnection(self._timeout)
        try:
            return post(line)
        finally:
            with self._lock:
                self._idle.append(line)
            if self._closed:
                self.close()


class SerialConnection:
    """A connection that serves one request at a time: httpx tells which one a request goes by only when it connects."""

    def __init__(self, timeout: float) -> None:
        # A host that is gone shows at the connect; one that computes may take longer to answer.
        self._patience = httpx.Timeout(timeout, connect=min(timeout, 4.0))
        self._clients: dict[tuple[str, str], httpx.Client] = {}
        """By scheme and host: the environment may want a proxy for one and none for another."""
        # Times `timeout` that an answer may take in all: the timeout itself begins anew with each byte. Fewer than the
        # client waits for a read: else an endpoint that trickles would never be left for the next one.
        whole_answer = 3
        self._longest = whole_answer * timeout
        self._ends = math.inf
        """When the request in progress must be over (monotonic)."""
        self._layers = 0
        """Of encryption."""
        self._sock: socket.socket | None = None

    def close(self) -> None:
        for client in list(self._clients.values()):
            client.close()

    def _client(self, url: str) -> httpx.Client:
        """Raises EnvironmentUnusable."""
        parts = urlsplit(url)
        place = (parts.scheme, parts.hostname or "")
        if place not in self._clients:
            limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
            self._clients[place] = client_for(url, timeout=self._patience, limits=limits)
        return self._clients[place]

    def ask(self, url: str, method: str, *params: Any) -> Any:
        """The result of one request. Raises EndpointFailed, and Refused for an answer that is an error."""
        return self.post(url, encoded(method, params), method).get("result")

    def post(self, url: str, payload: bytes, method: str) -> "RPCResponse":
        """The answer to a whole request, with a result. Raises EndpointFailed, and Refused."""
        status, body = self._post(url, payload)
        try:
            answer = parse_answer(method, body, status)
        except BadAnswer as error:
            if status in STATUSES:
                raise EndpointRefused(STATUSES[status], method, f"HTTP {status}", shown(url)) from error
            raise EndpointFailed(scrubbed(f"HTTP {status} {error}", url)) from error
        except EndpointRefused as refusal:
            raise _named(refusal, url, status) from None
        if status in STATUSES or status >= 500:
            raise EndpointRefused(STATUSES.get(status, RefusalKind.BROKEN), method, f"HTTP {status}", shown(url))
        return answer

    def post_all(self, url: str, payload: bytes, methods: Sequence[str]) -> "list[RPCResponse | EndpointRefused]":
        """The answers to several questions that are one request. Raises EndpointFailed, and Refused where it does not
        answer each."""
        status, body = self._post(url, payload)
        try:
            told = parse_answers(methods, body, status)
        except BadAnswer as error:
            words = scrubbed(f"HTTP {status} {error}", url)
            raise EndpointRefused(RefusalKind.UNSUPPORTED, TOGETHER, words, shown(url)) from error
        return [_named(one, url, status) if isinstance(one, EndpointRefused) else one for one in told]

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
                with self._client(url).stream(
                    "POST", url, content=payload, headers=HEADERS, extensions={"trace": traced}
                ) as response:
                    return response.status_code, _bounded(response, until)
            except EnvironmentUnusable as error:
                raise EndpointFailed(f"{error.what}: {error.why}: {error.remedy}") from error
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                late = "its answer does not end" if time.monotonic() > until else ""
                raise EndpointFailed(scrubbed(late or str(error) or type(error).__name__, url)) from error

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


def _joined(
    asked: Sequence[tuple[int | None, str, bytes]], by_a_line: Callable[[Callable[["SerialConnection"], Any]], Any]
) -> Callable[[str], "list[RPCResponse | EndpointRefused]"]:
    """Asks an endpoint several questions, numbered from 1 on."""
    methods = [method for _, method, _ in asked]
    bodies = (_BEGINS % at + body[len(_BEGINS % 1) :] for at, (_, _, body) in enumerate(asked, 1))
    payload = b"[" + b",".join(bodies) + b"]"
    return lambda url: by_a_line(lambda line: line.post_all(url, payload, methods))


def _says_of_endpoint(told: Any) -> bool:
    """Whether it is a refusal that is not the asker's business."""
    return isinstance(told, EndpointRefused) and told.kind not in CALLERS


def _named(refusal: EndpointRefused, url: str, status: int) -> EndpointRefused:
    """With who refuses."""
    words = scrubbed(refusal.words or f"HTTP {status}", url)
    return EndpointRefused(refusal.kind, refusal.method, words, shown(url), refusal.data, refusal.code)


def _worst(causes: Mapping[str, Exception]) -> Exception:
    """What to tell where no endpoint gave an answer: the last words about the question itself, which the asker may
    put otherwise; else that all are of another chain, or cannot be used."""
    of_the_question = [e for e in causes.values() if isinstance(e, EndpointRefused) and e.kind in OF_THE_QUESTION]
    if of_the_question:
        return of_the_question[-1]
    wrong = [error for error in causes.values() if isinstance(error, WrongChain)]
    if wrong and len(wrong) == len(causes):
        return wrong[-1]
    refused = all(isinstance(error, EndpointRefused) for error in causes.values())
    return RpcUnreachable({url: _told(error) for url, error in causes.items()}, refused=refused and bool(causes))


def _tell_of_change(url: str, causes: Mapping[str, Exception]) -> None:
    told = {shown(one): str(cause) for one, cause in causes.items()}
    log.warning("chain.endpoint_changed", url=shown(url), causes=told)


def _told(cause: Exception) -> str:
    if isinstance(cause, EndpointRefused):
        return f"{cause.kind} ({cause})"
    return cause.why if isinstance(cause, WrongChain) else str(cause)


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
        try:
            answer = self._endpoints.request("eth_call", encoded("eth_call", [transaction, "latest"]))
        except EndpointRefused as refusal:
            raise translate(refusal, self._action) from refusal
        return bytes.fromhex(answer.get("result", "").removeprefix("0x"))


def rpc(http: httpx.Client, url: str, method: str, *params: Any) -> Any:
    """One bare JSON-RPC request to an endpoint of our own: an answer may take any time and room. Raises httpx.HTTPError
    or ValueError."""
    answer = http.post(url, content=encoded(method, params), headers={"content-type": "application/json"}).json()
    if "error" in answer:
        raise ValueError(f"{method}: {answer['error']}")
    return answer["result"]
