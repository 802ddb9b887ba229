"""Requests: one asks on a stream, the other answers, and the stream is kept for the next.

Knows what strangers may ask and how long each part may take; leaves the bytes to `wire`, who is connected to `links`.
"""

from collections import deque
from typing import Generic, Protocol, TypeVar

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.stream_muxer.exceptions import MuxedStreamError

from node.bounded_dict import BoundedDict
from node.network import yamux
from node.network.budget import Budgets, TokenBucket
from node.network.errors import PeerMisbehaved, PeerUnavailable
from node.network.interface import Handler, NetworkCounters, SentResponse
from node.network.links import Links
from protocol.identity import Address

log = structlog.get_logger(__name__)


class Keepable(Protocol):
    """What this module needs of a stream."""

    @property
    def closed(self) -> bool: ...


S = TypeVar("S", bound=Keepable)


class KeptStreams(Generic[S]):
    """The clock is an argument: seconds, monotonic."""

    def __init__(self) -> None:
        self._idle: BoundedDict[tuple[Address, str], deque[tuple[float, S]]] = BoundedDict(MAX_PLACES, refresh=True)

    def take(self, peer: Address, protocol: str, now: float) -> tuple[S | None, list[S]]:
        """(the stream used last, if one is fit for use; those that were given up: too old, or closed by the peer)."""
        idle = self._idle.get((peer, protocol))
        given_up: list[S] = []
        # The oldest are on the left: they are given up from there, while the freshest on the right is used first.
        # After which a stream is not used any more: well before the other side closes it (wire: KEEP_SECONDS).
        while idle and idle[0][0] < now - 10.0:
            given_up.append(idle.popleft()[1])
        while idle:
            stream = idle.pop()[1]
            if not stream.closed:
                return stream, given_up
            given_up.append(stream)
        return None, given_up

    def put(self, peer: Address, protocol: str, stream: S, now: float) -> list[S]:
        """Keep a stream for later; returns those that were given up for it."""
        place = (peer, protocol)
        idle = self._idle.get(place, deque[tuple[float, S]]())
        idle.append((now, stream))
        self._idle[place] = idle
        return [idle.popleft()[1]] if len(idle) > 8 else []  # idle streams of one peer and protocol


BULK = 128 * 1024
"""A request whose answer may be larger is for bulk, and goes by a lane if there is one."""
KEEP_SECONDS = 30.0
"""For a further request on a stream, after an answer."""
SENT_AT_ONCE = yamux.WINDOW_BYTES // 2
"""A request that fits the other side's window, whatever it reads."""
# Handlers that run at one time; more wait their turn, and the asker's own deadline runs meanwhile.
MAX_SERVED_AT_ONCE = 512
# What a peer may send before we have read it: no more than this is ever held for one answer.
MAX_WINDOW = 15 * 1024**2

# What strangers may ask: requests per second each, and response bytes per second together.
STRANGER_REQUESTS = (5.0, 50.0)
STRANGER_BYTES = (4.0 * 1024**2, 32.0 * 1024**2)


class Requests:
    """Those that this node asks, and those that it answers."""

    def __init__(self, links: Links, tally: NetworkCounters) -> None:
        self._links = links
        self._known = links.known
        self._tally = tally
        self._handlers: dict[str, tuple[Handler, int]] = {}
        self._kept = KeptStreams[_Kept]()
        self._serving = trio.CapacityLimiter(MAX_SERVED_AT_ONCE)
        self._stranger_requests = Budgets(*STRANGER_REQUESTS)
        self._stranger_bytes = TokenBucket(*STRANGER_BYTES)
        self._host: BasicHost | None = None

    def attach(self, host: BasicHost) -> None:
        """Be part of a host, before it runs."""
        self._host = host
        # Those that were served before there was a host.
        for protocol in self._handlers:
            self._listen(protocol, host)

    def serve(self, protocol: str, handler: Handler, *, max_request: int) -> None:
        self._handlers[protocol] = (handler, max_request)
        if self._host is not None:
            self._listen(protocol, self._host)

    def _listen(self, protocol: str, host: BasicHost) -> None:
        async def handler(stream: INetStream) -> None:
            await self._serve(protocol, stream)

        host.set_stream_handler(TProtocol(protocol), handler)

    # -- asking ------------------------------------------------------------------------------------

    async def ask(self, peer: Address, protocol: str, data: bytes, limit: int) -> tuple[int, bytes]:
        """The status and the body of a peer's answer. Raises PeerUnavailable, PeerMisbehaved."""
        kept, given_up = self._kept.take(peer, _kind(protocol, limit), trio.current_time())
        for each in given_up:
            await _finish(each.stream, clean=True)
        try:
            if kept is not None:
                try:
                    return await self._ask_on(kept, peer, protocol, data, limit)
                except (RequestEnded, MuxedStreamError):
                    # The peer may have closed it for idleness at this very moment: asked again, once, on a new stream.
                    log.debug("network.kept_stream_gone", peer=peer)  # nothing of an answer had come
            opened = _Kept(await self._links.open_stream(peer, protocol, bulk=limit > BULK))
            return await self._ask_on(opened, peer, protocol, data, limit)
        except RequestWireError as error:
            # It announced more than we take, which an honest peer never does; anything else may be a bad line.
            if error.announced >= 0:
                raise PeerMisbehaved(peer, str(error)) from error
            raise PeerUnavailable(peer, str(error)) from error
        except MuxedStreamError as error:
            raise PeerUnavailable(peer, "the stream was cut") from error

    async def _ask_on(self, on: "_Kept", peer: Address, protocol: str, data: bytes, limit: int) -> tuple[int, bytes]:
        """One request on an open stream, which is kept if all of it was taken, and answered whole."""
        clean = kept = False
        try:
            # To the size of the largest answer: with the first window of 256 KiB a transfer would wait a round trip for
            # each.
            await on.muxed.widen(min(limit + RESPONSE_HEADER, MAX_WINDOW))
            answer, taken = await _converse(on.muxed, data, limit)
            # After a refusal the other side closes; and what it has not read of a request would be taken for the next
            # one's beginning.
            clean, kept = True, taken and answer[0] == OK
            return answer
        finally:
            # A stream through a relay is not kept once there is a direct way: all later requests would go the long one.
            if kept and not on.closed and self._links.is_best(on.stream, bulk=limit > BULK):
                for each in self._kept.put(peer, _kind(protocol, limit), on, trio.current_time()):
                    await _finish(each.stream, clean=True)
            else:
                await _finish(on.stream, clean)

    # -- answering ---------------------------------------------------------------------------------

    async def _serve(self, protocol: str, stream: INetStream) -> None:
        """Serve one incoming stream. Every error ends here; the guard around us resets the stream."""
        asker = self._known.address_of(stream.muxed_conn.peer_id.to_bytes())
        if asker is None:
            await stream.reset()
            return
        # Who opens a stream and says nothing must not hold it for long.
        muxed, patience = yamux.stream_below(stream), 15.0
        while await self._answer_one(asker, *self._handlers[protocol], muxed, patience):
            patience = KEEP_SECONDS
        await stream.close()

    async def _answer_one(
        self,
        asker: Address,
        handler: Handler,
        max_request: int,
        stream: yamux.YamuxStream,
        patience: float,
        *,
        serve_seconds: float = 120.0,
    ) -> bool:
        """Whether another request may come on this stream."""
        stranger = not self._known.is_member(asker)
        # Before the request is read: its bytes would be memory that a stranger fills.
        if stranger and not self._stranger_may_ask(asker):
            # For the handler and for the answer together: 4 MiB at 300 kbit/s take as long.
            with trio.fail_after(serve_seconds):
                await write_response(stream, BUSY, b"")
            return False
        try:
            with trio.fail_after(patience):
                request, keep = await read_request(stream, max_request)
        except RequestEnded:
            return False
        except trio.TooSlowError:
            if patience == KEEP_SECONDS:
                return False  # nobody asked again
            raise
        except RequestWireError as error:
            if error.announced < 0:
                raise
            with trio.fail_after(serve_seconds):
                await write_response(stream, TOO_LARGE, b"")
            return False
        self._tally.add(requests_in=1, bytes_in=len(request))
        with trio.fail_after(serve_seconds):
            # Only the handler holds a place: a peer that reads its answer slowly must not keep others out.
            async with self._serving:
                answer = await handler(asker, request)
            await self._send(stream, stranger, answer if isinstance(answer, SentResponse) else SentResponse(answer))
        return keep and not stranger  # who has no contact asks little, and each time anew

    async def _send(self, stream: yamux.YamuxStream, stranger: bool, answer: SentResponse) -> None:
        delivered = False
        try:
            if stranger:
                # Charged whatever its size, into debt if need be: an answer that is cut short is worth nothing to an
                # honest stranger.
                self._stranger_bytes.charge(len(answer.body))
            self._tally.add(bytes_out=len(answer.body))
            await write_response(stream, OK, answer.body, bulk=answer.bulk)
            delivered = True
        finally:
            # In `finally`: whoever counts what is on its way must hear of a failure too, or the count never falls.
            answer.sent(delivered)

    def _stranger_may_ask(self, asker: Address) -> bool:
        now = trio.current_time()
        # One byte asks whether the budget is in debt; the answer is charged when its size is known.
        return self._stranger_requests.take(asker, 1, now) and self._stranger_bytes.take(1, now)


def _kind(protocol: str, limit: int) -> str:
    """Streams for bulk are kept by themselves: they lead elsewhere."""
    return f"{protocol} bulk" if limit > BULK else protocol


class _Kept:
    """A stream of ours, and what is below the library's wrapper."""

    def __init__(self, stream: INetStream) -> None:
        self.stream = stream
        self.muxed = yamux.stream_below(stream)

    @property
    def closed(self) -> bool:
        return self.muxed.recv_closed or self.muxed.send_closed


async def _converse(stream: yamux.YamuxStream, data: bytes, limit: int) -> tuple[tuple[int, bytes], bool]:
    """Send and receive at once: a peer may answer, and stop reading, before it has read all of the request. The answer,
    and whether all of the request was sent before it."""
    sent = False

    async def send() -> None:
        nonlocal sent
        try:
            await write_request(stream, data, keep=True)
            sent = True
        except Exception as error:  # the answer, or its absence, says more
            log.debug("network.request_cut", error=repr(error))

    # It cannot block, so that no second task is needed: most requests are a few hundred bytes.
    if len(data) <= SENT_AT_ONCE:
        await send()
        return await read_response(stream, limit), sent
    failure: Exception | None = None
    answer = (FAILED, b"")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        try:
            answer = await read_response(stream, limit)
        except (RequestWireError, MuxedStreamError) as error:
            failure = error
        taken = sent
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer, taken


async def _finish(stream: INetStream, clean: bool, *, close_seconds: float = 3.0) -> None:
    # Shielded: a request that ran out of time is cancelled already, and an unclosed stream would stay in the session's
    # table.
    with trio.CancelScope(shield=True, deadline=trio.current_time() + close_seconds):
        try:
            await (stream.close() if clean else stream.reset())
        except Exception as error:
            log.debug("network.stream_close_failed", error=repr(error))


MAX_PLACES = 1024


# Requests and responses on one stream, one after the other, with bounds before allocation.
# request:  u32be length, its highest bit set if the stream is kept for a further request | body
# response: u8 status | u32be length | body
# Knows bytes and limits; knows nothing of who asks or what it means.
# most of what a new stream costs is negotiation; who asks the old way finds the stream closed after the answer
KEEP = 1 << 31

OK = 0
BUSY = 1
TOO_LARGE = 2
FAILED = 3
REASONS = {BUSY: "it is busy, or we asked too much", TOO_LARGE: "the request is larger than it accepts"}
RESPONSE_HEADER = 5


class RequestStream(Protocol):
    """What this module needs of a stream."""

    async def read_exactly(self, n: int) -> bytes: ...
    async def write(self, data: bytes | memoryview, *, head: bytes = b"", bulk: bool = False) -> None: ...


class RequestWireError(Exception):
    """The other side closed early, or announced more than the limit. `announced` is that length, or -1."""

    def __init__(self, message: str, announced: int = -1) -> None:
        super().__init__(message)
        self.announced = announced


class RequestEnded(RequestWireError):
    """The other side closed, and nothing of what we wait for had come."""


async def _read(stream: RequestStream, count: int) -> bytes:
    data = await stream.read_exactly(count) if count else b""
    if len(data) < count:
        raise RequestWireError(f"the stream ended after {len(data)} of {count} bytes")
    return data


async def _begin(stream: RequestStream, count: int) -> bytes:
    """The first `count` bytes of something. Raises Ended if there is nothing."""
    data = await stream.read_exactly(count)
    if not data:
        raise RequestEnded("the stream ended")
    return data + await _read(stream, count - len(data))


async def _read_body(stream: RequestStream, length: int, limit: int) -> bytes:
    if length > limit:
        raise RequestWireError(f"{length} bytes announced, at most {limit} allowed", length)
    return await _read(stream, length)


async def write_request(stream: RequestStream, body: bytes, *, keep: bool = False) -> None:
    """keep: further requests may come on this stream, so that it is not closed after the answer."""
    await stream.write(body, head=(len(body) | (KEEP if keep else 0)).to_bytes(4))


async def read_request(stream: RequestStream, limit: int) -> tuple[bytes, bool]:
    """(body, keep). Raises Ended if the stream ended before it, WireError for one that is cut or too long."""
    head = int.from_bytes(await _begin(stream, 4))
    return await _read_body(stream, head & ~KEEP, limit), bool(head & KEEP)


async def write_response(stream: RequestStream, status: int, body: bytes, *, bulk: bool = False) -> None:
    """bulk: what else is to be said over the connection goes first."""
    await stream.write(body, head=bytes([status]) + len(body).to_bytes(4), bulk=bulk)


async def read_response(stream: RequestStream, limit: int) -> tuple[int, bytes]:
    """(status, body). Raises as `read_request` does."""
    head = await _begin(stream, RESPONSE_HEADER)
    return head[0], await _read_body(stream, int.from_bytes(head[1:]), limit)
