"""Yamux 1.0: many streams over one connection, by the specification and nothing else (hashicorp/yamux, spec.md).

The library's own costs five times as much per byte: it copies each frame four times, takes five locks and formats log
lines for it. Here a frame's body is a view into the decrypted message until its reader joins what it asked for; a
sender without window waits for an event; what a peer can make us keep, or do, is bounded.

Knows frames and streams; knows nothing of what they carry.
"""

import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType

import structlog
import trio
from libp2p.abc import IMuxedConn, IMuxedStream, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.peer.id import ID
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamClosed,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from multiaddr import Multiaddr

from node.network.budget import TokenBucket
from node.network.noise import NoiseSession
from node.network.outlet import STALL_SECONDS, Outlet
from node.network.sockets import Tcp, prompt
from node.network.turns import LinePace

log = structlog.get_logger(__name__)

HEADER = struct.Struct("!BBHII")
"""Version (0), type, flags, stream, length."""
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8

WINDOW_BYTES = 256 * 1024
"""A new stream's window, both ways, by the specification."""
BODY_BYTES = MAX_PLAINTEXT_LENGTH - HEADER.size
"""Of one frame, which so fills one Noise message."""
MAX_WRITE = 4 * BODY_BYTES
"""Of one stream, before another stream's frame has its turn; less where the line is slow (`turns.Pace`)."""
MAX_BUFFERED = 128 * 1024**2
"""Unread bytes per connection, over all its streams, before the connection is closed."""
MAX_INBOUND = 256
"""Streams that a peer may have open; more are reset."""
FRAME_BYTES = 1024
MAX_RUN = 32
"""Frames that are worked off without letting others run: 3 ms for full ones. A step of the event loop costs as much as
taking a whole frame."""


class _Broken(Exception):
    """The peer does not speak yamux."""


class _Unread:
    """What has come on a stream and was not read yet. size: bytes; window: how many more the peer may send.

    soon: has a listener called once for all that came together.
    """

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        self.size = 0
        self.window = self._full = WINDOW_BYTES
        self._pieces: deque[memoryview] = deque()
        self._soon = soon
        self._wanted = 1
        self._arrival = trio.Event()
        self._listener: Callable[[], None] | None = None

    def put(self, piece: memoryview) -> None:
        # A piece smaller than this part of its message is copied: an unread byte would keep the whole message.
        if len(piece) * 4 < memoryview(piece.obj).nbytes:
            # As a view, a byte for a stream that nobody reads would keep the 64 KiB message that it came in.
            piece = memoryview(bytes(piece))
        self._pieces.append(piece)
        self.size += len(piece)
        if self._listener is not None:
            self._soon(self._listener)
        elif self.size >= self._wanted:
            self._arrival.set()

    def cut(self, n: int) -> bytes:
        """The next n bytes, which are here."""
        pieces, missing = [], n
        while missing:
            piece = self._pieces.popleft()
            if len(piece) > missing:
                self._pieces.appendleft(piece[missing:])
                piece = piece[:missing]
            pieces.append(piece)
            missing -= len(piece)
        self.size -= n
        return pieces[0].tobytes() if len(pieces) == 1 else b"".join(pieces)

    def give_back(self) -> int:
        """How far the peer's window is opened again: not at all before half of it was used."""
        spent = self._full - self.window - self.size
        # A window update for each read would cost the peer a frame for every few KiB.
        if spent < self._full // 2:
            return 0
        self.window += spent
        return spent

    def widen(self, wanted: int) -> int:
        """How much is missing for `wanted` bytes to come without being read, from now on in the window."""
        extra = max(wanted - self.window - self.size, 0)
        if extra:
            self._full = max(self._full, wanted)
            self.window += extra
        return extra

    def clear(self) -> None:
        self.size = 0
        self._pieces.clear()

    async def wait_for(self, n: int) -> None:
        """Until n bytes are here, or the stream ends: not to be woken by every frame."""
        self._wanted, self._arrival = n, trio.Event()
        await self._arrival.wait()

    def listen(self, listener: Callable[[], None]) -> None:
        self._listener = listener
        listener()

    def over(self) -> None:
        """Nothing more comes."""
        self._arrival.set()
        if self._listener is not None:
            self._listener()


class YamuxStream(IMuxedStream):
    """One stream. Raises MuxedStreamEOF after the peer's last byte, MuxedStreamReset once either side has reset it."""

    def __init__(self, session: "YamuxSession", number: int) -> None:
        self.muxed_conn = self.session = session
        self.number = number
        self.send_window = WINDOW_BYTES
        self.unread = _Unread(session.tell_soon)
        self.send_closed = self.recv_closed = self.was_reset = False
        self._opened = trio.Event()

    # reading

    async def read(self, n: int | None = None) -> bytes:
        """1 to n bytes; all that is here where n is None or negative. Raises MuxedStreamEOF at the end."""
        unread = self.unread
        while not unread.size:
            self._raise_if_over()
            await unread.wait_for(1)
        return await self._taken(unread.size if n is None or n < 0 else min(n, unread.size))

    async def read_exactly(self, n: int) -> bytes:
        """n bytes, or fewer if the stream ends before; memory grows with what arrives."""
        parts: list[bytes] = []
        while n > 0:
            # Never waits for more than the peer may send: with a window smaller than n both sides would wait for ever.
            unasked = max(self.unread.window + self.unread.size, 1)  # none: a frame has begun that uses up the window
            part = await self._read_part(min(n, unasked))
            if not part:
                break
            parts.append(part)
            n -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _read_part(self, n: int) -> bytes:
        while self.unread.size < n and not self.recv_closed:
            await self.unread.wait_for(n)
        if self.was_reset:
            raise MuxedStreamReset("the stream was reset")
        return await self._taken(min(n, self.unread.size))

    def _raise_if_over(self) -> None:
        if self.was_reset:
            raise MuxedStreamReset("the stream was reset")
        if self.recv_closed:
            raise MuxedStreamEOF("the stream ended")

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called by the connection's reader when something has come, once for all that came together,
        or the stream is over; instead of a task that is woken, which costs a turn of the event loop. It takes what is
        there by `read_now`, is quick, and must not raise."""
        self.unread.listen(listener)

    def read_now(self) -> bytes:
        """All that is here, without waiting; b"" if that is nothing. Raises MuxedStreamEOF at the end."""
        if not self.unread.size:
            self._raise_if_over()
            return b""
        data, spent = self._cut(self.unread.size)
        if spent:
            self.session.answer(WINDOW, 0, self.number, spent)
        return data

    async def _taken(self, n: int) -> bytes:
        """The next n bytes, which are here; gives the window back once half of it was used."""
        data, spent = self._cut(n)
        if spent:
            await self.session.send_control(WINDOW, 0, self.number, spent)
        return data

    def _cut(self, n: int) -> tuple[bytes, int]:
        """The same without a word to the peer, and how far its window is to be opened."""
        data = self.unread.cut(n)
        # A stream that is over has left the session's count already (`forget_if_over`).
        if self.number in self.session.streams:
            self.session.buffered -= n
        return data, 0 if self.recv_closed else self.unread.give_back()

    async def widen(self, wanted: int) -> None:
        """Let the peer send `wanted` bytes without waiting for us to read."""
        if extra := self.unread.widen(wanted):
            await self.session.send_control(WINDOW, 0, self.number, extra)

    # writing

    async def write(self, data: bytes | memoryview, *, head: bytes = b"", bulk: bool = False) -> None:
        """`head`, then all of `data`, as fast as the peer opens its window; in frames of both where they meet, and
        several frames in one write. bulk: what others have to say goes first.

        Raises MuxedStreamError if the window stays shut too long.
        """
        rest = memoryview(data)
        while head or rest:
            if not self._may_write():
                await self._wait_for_window()
            size = min(len(head) + len(rest), self.send_window, self.session.pace.turn)
            # Taken before the first await: another writer of this stream must not spend the same window.
            self.send_window -= size
            taken = max(size - len(head), 0)
            await self.session.send_data(self.number, head[:size], rest[:taken], bulk=bulk)
            head, rest = head[size:], rest[taken:]

    def write_now(self, data: bytes) -> bool:
        """All of `data`, without waiting, as soon as the connection takes it; False, and nothing of it, where that is
        not possible, the stream is over, or `data` fills more than a frame. Not beside a `write` of the same stream."""
        if self.send_closed or len(data) > min(self.send_window, BODY_BYTES):
            return False
        if not self.session.send_data_now(self.number, data):
            return False
        self.send_window -= len(data)
        return True

    async def _wait_for_window(self) -> None:
        with trio.move_on_after(STALL_SECONDS):
            while not self._may_write():
                self._opened = trio.Event()
                await self._opened.wait()
            return
        raise MuxedStreamError(f"the peer's window was shut for {STALL_SECONDS:g} s")

    def _may_write(self) -> bool:
        if self.was_reset:
            raise MuxedStreamReset("the stream was reset")
        if self.send_closed:
            raise MuxedStreamClosed("the stream is closed for writing")
        return self.send_window > 0

    # ending

    async def close(self) -> None:
        """Say that nothing more comes; what the peer still sends can be read."""
        if self.send_closed:
            return
        # Said to ourselves before the frame is sent, so that a second close sends no second FIN.
        self.send_closed = True
        self.session.forget_if_over(self)
        await self.session.send_control(WINDOW, FIN, self.number, 0)

    async def reset(self) -> None:
        """End both ways at once; what is unread is dropped."""
        was_over = self.closed
        self.end()
        if not was_over:
            await self.session.send_control(WINDOW, RST, self.number, 0)

    def end(self) -> None:
        """It was reset, by us or the peer, or the connection is gone."""
        self.send_closed = self.recv_closed = self.was_reset = True
        self.session.forget_if_over(self)
        self.unread.clear()
        self._opened.set()
        self.unread.over()

    @property
    def closed(self) -> bool:
        return self.send_closed and self.recv_closed

    # what the session hears

    def arrived(self, piece: memoryview) -> None:
        """Part of a frame's body, whose bytes were taken from the window."""
        if not self.recv_closed:
            self.session.buffered += len(piece)
            self.unread.put(piece)

    def window_grew(self, increment: int) -> None:
        self.send_window += increment
        if self.send_window > 1 << 31:  # more than this nobody has to give; a peer that says so is broken
            raise _Broken("its window is larger than any memory")
        self._opened.set()

    def peer_closed(self) -> None:
        self.recv_closed = True
        self.session.forget_if_over(self)
        self.unread.over()

    # what the library asks of a stream

    def set_deadline(self, ttl: int) -> None:
        raise NotImplementedError("deadlines are trio's: use a cancel scope")

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.session.get_remote_address()

    async def __aenter__(self) -> "YamuxStream":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def stream_below(stream: INetStream) -> YamuxStream:
    """What is below the library's wrapper, whose locks and states cost more than our frames."""
    below = getattr(stream, "muxed_stream", None)
    if not isinstance(below, YamuxStream):
        raise AssertionError("the connection has another muxer than ours")
    return below


class YamuxSession(IMuxedConn):
    """All streams of one connection. `start` runs it; `heard_at`: when data last arrived, on trio's clock; `bulk`:
    bytes of pieces that were sent, and on_bulk: told of each. frames: of one connection that are read, per second and
    in a burst."""

    def __init__(
        self,
        conn: NoiseSession,
        peer_id: ID,
        on_close: Callable[[], Awaitable[None]] | None = None,
        *,
        frames: tuple[float, float] = (1000.0, 2000.0),
        on_bulk: Callable[[], object] = bool,
    ) -> None:
        self.secured_conn = conn
        self._on_bulk = on_bulk
        self._out = Outlet(prompt(conn), LinePace(BODY_BYTES, MAX_WRITE), self._end)
        self.pace = self._out.pace
        self.peer_id = peer_id
        self.on_close = on_close
        self.event_started = trio.Event()
        self.event_closed = trio.Event()
        self.streams: dict[int, YamuxStream] = {}
        self.buffered = self.bulk = 0
        self.heard_at = 0.0
        self._heard = trio.Event()
        self._initiator = bool(conn.is_initiator)
        # By yamux the side that dialled takes odd numbers, so that both may open a stream at the same moment.
        self._next = 1 if self._initiator else 2
        self._inbound = 0
        self._incoming, self._accepted = trio.open_memory_channel[YamuxStream](MAX_INBOUND)
        self._untold: dict[Callable[[], None], None] = {}
        # A new stream counts as ten frames. Data pays, one more frame for each FRAME_BYTES: what arrives for its
        # own frames, what we send for the window updates that answer it. Whoever sends more is read later, not cut off.
        self.frames = TokenBucket(*frames)

    # running

    async def start(self) -> None:
        """Serve until either side ends the connection."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._out.run)
                self.event_started.set()
                await _Reader(self).run()
                # The reader is the session: once it returns nobody would answer, so writers must not wait.
                await self._end()  # who writes meanwhile fails then
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await self._end()

    def heard(self) -> None:
        """Something has come."""
        self.heard_at = trio.current_time()
        self._heard.set()

    def tell_soon(self, listener: Callable[[], None]) -> None:
        """Call it when all was worked off that has come."""
        self._untold[listener] = None

    def tell(self) -> None:
        untold, self._untold = self._untold, {}
        for listener in untold:
            listener()

    async def _end(self) -> None:
        """Wake whoever waits, and close what is below; once."""
        if self._out.ended:
            await self.event_closed.wait()
            return
        self._out.end()
        self._heard.set()
        self._incoming.close()
        for stream in list(self.streams.values()):
            stream.end()
        try:
            await self.secured_conn.close()
        except Exception as error:
            log.debug("network.close_failed", error=repr(error))
        self.event_closed.set()
        if self.on_close is not None:
            await self.on_close()

    # frames out

    async def send_data(self, number: int, head: bytes, data: memoryview, *, bulk: bool = False) -> None:
        """`head` and `data` in as many frames as they take. Raises MuxedStreamReset if the connection is gone."""
        self.frames.charge(-(len(head) + len(data)) / FRAME_BYTES)
        if bulk:
            self.bulk += len(data)
            self._on_bulk()
        if not await self._out.write(b"".join(_frames(number, head, data)), bulk=bulk):
            raise MuxedStreamReset("the connection is gone")

    def send_data_now(self, number: int, data: bytes) -> bool:
        """The same without waiting; False, and nothing is sent, where somebody else is writing or nobody can."""
        if not self._out.write_now(HEADER.pack(0, DATA, 0, number, len(data)) + data):
            return False
        self.frames.charge(-len(data) / FRAME_BYTES)
        return True

    async def send_control(self, kind: int, flags: int, number: int, value: int) -> None:
        """A frame without a body, from whoever may wait for the connection to take it."""
        await self._out.write(HEADER.pack(0, kind, flags, number, value))

    async def ping(self) -> None:
        """Make the peer say something, and wait until it has said anything, or the connection is gone."""
        if self._heard.is_set():
            self._heard = trio.Event()
        await self.send_control(PING, SYN, 0, 0)
        await self._heard.wait()

    def answer(self, kind: int, flags: int, number: int, value: int) -> None:
        """The same from our reader, which never waits for a writer: two sides that both send bulk would each wait for
        the other to read. Raises _Broken for a peer that makes us answer and does not read the answers."""
        try:
            self._out.queue(HEADER.pack(0, kind, flags, number, value))
        except trio.WouldBlock:
            raise _Broken("it does not read our answers") from None

    def tcp(self) -> Tcp | None:
        """What the system says of the connection below; None where it does not."""
        return self.secured_conn.tcp()

    # streams

    async def open_stream(self) -> YamuxStream:
        """Raises MuxedStreamError if the connection is gone."""
        number, self._next = self._next, self._next + 2
        stream = self.streams[number] = YamuxStream(self, number)
        if await self._out.write(HEADER.pack(0, WINDOW, SYN, number, 0)):
            return stream
        self.streams.pop(number, None)
        raise MuxedStreamError("the connection is gone")

    async def accept_stream(self) -> YamuxStream:
        try:
            return await self._accepted.receive()
        except trio.EndOfChannel:
            raise MuxedConnUnavailable("the connection is closed") from None

    def peer_opens(self, number: int) -> YamuxStream | None:
        """The new stream, None if the peer has too many. Raises _Broken for a number that is not its to give."""
        if number in self.streams or number == 0 or (number % 2 == 1) == self._initiator:
            raise _Broken(f"it opens stream {number}")
        if self._inbound >= MAX_INBOUND:
            self.answer(WINDOW, RST, number, 0)
            return None
        stream = YamuxStream(self, number)
        try:
            self._incoming.send_nowait(stream)
        # The peer opened and reset more streams than anybody has accepted: reset them, the connection may be sound.
        except trio.WouldBlock:  # of streams that are over already
            self.answer(WINDOW, RST, number, 0)
            return None
        self.streams[number] = stream
        self._inbound += 1
        self.answer(WINDOW, ACK, number, 0)
        return stream

    def forget_if_over(self, stream: YamuxStream) -> None:
        """Nothing more comes on a stream that is over; what is unread stays with whoever holds it."""
        if not stream.closed or self.streams.pop(stream.number, None) is None:
            return
        # Unread bytes of a finished stream are its holder's memory from here on, not the peer's to be charged for.
        self.buffered -= stream.unread.size
        if (stream.number % 2 == 1) != self._initiator:
            self._inbound -= 1

    # frames in, by way of the reader

    def make_room(self, stream: YamuxStream | None, length: int) -> None:
        """Before a body arrives. Raises _Broken for more than its window, or than we keep."""
        self.frames.charge(-length / FRAME_BYTES)
        if stream is not None:
            stream.unread.window -= length
            if stream.unread.window < 0:
                raise _Broken("it sends more than the window allows")
        # Windows of 256 streams together may promise more than this; the sum over the connection is what is bounded.
        if self.buffered + length > MAX_BUFFERED:
            raise _Broken("it sends more than we keep")

    # what the library asks of a connection

    async def close(self) -> None:
        """Say goodbye and end."""
        if not self._out.ended:
            with trio.move_on_after(1.0):
                await self._out.write(HEADER.pack(0, GO_AWAY, 0, 0, 0))
        await self._end()

    @property
    def is_initiator(self) -> bool:
        return self._initiator

    @property
    def is_established(self) -> bool:
        return self.event_started.is_set() and not self._out.ended

    @property
    def is_closed(self) -> bool:
        return self.event_closed.is_set()

    def get_transport_addresses(self) -> list[Multiaddr]:
        return self.secured_conn.get_transport_addresses()

    def get_connection_type(self) -> ConnectionType:
        return self.secured_conn.get_connection_type()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.secured_conn.get_remote_address()


def _frames(number: int, head: bytes, data: memoryview) -> Iterator[bytes | memoryview]:
    while head or data:
        size = min(len(head) + len(data), BODY_BYTES)
        taken = max(size - len(head), 0)
        yield HEADER.pack(0, DATA, 0, number, size)
        yield head[:size]
        yield data[:taken]
        head, data = head[size:], data[taken:]


class _Reader:
    """Where we are in the peer's frames, which may begin and end anywhere in its messages."""

    def __init__(self, session: YamuxSession) -> None:
        self._session = session
        self._header = bytearray()
        self._body_of: YamuxStream | None = None
        self._missing = 0
        self._flags = 0
        self._run = 0

    async def run(self) -> None:
        """Until nothing more comes, or the peer does not speak yamux."""
        session = self._session
        try:
            while messages := await self._next_messages():
                session.heard()
                for message in messages:
                    await self._take(memoryview(message))
                session.tell()
        except trio.TooSlowError:
            log.debug("network.frame_stalled", peer=str(session.peer_id))
        except _Broken as error:
            log.debug("network.yamux_broken", peer=str(session.peer_id), why=str(error))
        except Exception as error:  # the library's connections raise many kinds when they close
            log.debug("network.connection_ended", peer=str(session.peer_id), error=repr(error))

    async def _next_messages(self) -> list[bytes]:
        connection = self._session.secured_conn
        if not self._missing and not self._header:
            return await connection.read_ready()
        with trio.fail_after(STALL_SECONDS):
            return await connection.read_ready()

    async def _take(self, data: memoryview) -> None:
        """The next message. Raises _Broken for what is no yamux."""
        new_stream = 10  # frames that a new stream counts as
        while data:
            if self._missing:
                data = self._body(data)
                continue
            header, data = self._cut_header(data)
            if header is None:
                return
            version, kind, flags, number, length = header
            if version != 0 or kind > GO_AWAY:
                raise _Broken(f"a frame of version {version}, type {kind}")
            tokens = new_stream if flags & SYN and kind < PING else 1
            self._session.frames.charge(tokens)
            self._run += tokens
            if self._run >= MAX_RUN:
                await self._pay()
            self._frame(kind, flags, number, length)

    async def _pay(self) -> None:
        """Wait for what was charged, and let others run: what was read ahead would be worked off without that."""
        self._run = 0
        self._session.tell()
        await trio.sleep(self._session.frames.delay(trio.current_time()))

    def _cut_header(self, data: memoryview) -> tuple[tuple[int, ...] | None, memoryview]:
        """The next header, if it is here whole, and what follows."""
        if not self._header and len(data) >= HEADER.size:
            return HEADER.unpack_from(data), data[HEADER.size :]
        size = HEADER.size - len(self._header)
        head, rest = data[:size], data[size:]
        self._header += head
        if len(head) < size:
            return None, rest
        head, self._header = memoryview(self._header), bytearray()
        return HEADER.unpack(head), rest

    def _body(self, data: memoryview) -> memoryview:
        piece = data[: self._missing]
        self._missing -= len(piece)
        if self._body_of is not None:
            self._body_of.arrived(piece)
            if not self._missing:
                self._flagged(self._body_of, self._flags)
        return data[len(piece) :]

    def _frame(self, kind: int, flags: int, number: int, length: int) -> None:
        session = self._session
        if kind == GO_AWAY:
            raise _Broken(f"goodbye, code {length}")
        if kind == PING:
            if flags & SYN:
                session.answer(PING, ACK, 0, length)
            return
        stream = session.peer_opens(number) if flags & SYN else session.streams.get(number)
        if kind == WINDOW:
            if stream is not None:
                stream.window_grew(length)
                self._flagged(stream, flags)
            return
        # A body for a stream that is gone is read and dropped: the peer may not have heard of the end yet.
        session.make_room(stream, length)
        self._body_of, self._missing, self._flags = stream, length, flags
        # An empty DATA frame has no body whose end would deliver its flags.
        if not length and stream is not None:
            self._flagged(stream, flags)

    def _flagged(self, stream: YamuxStream, flags: int) -> None:
        if flags & RST:
            stream.end()
        elif flags & FIN:
            stream.peer_closed()
