"""Our yamux, with itself and with the library's, over a connection in memory."""

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from libp2p.peer.id import ID
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.stream_muxer.exceptions import (
    MuxedConnUnavailable,
    MuxedStreamEOF,
    MuxedStreamError,
    MuxedStreamReset,
)
from libp2p.stream_muxer.yamux.yamux import Yamux

from node.network import yamux
from node.network.outlet import MAX_CONTROL_FRAMES
from node.network.yamux import ACK, DATA, FIN, HEADER, PING, RST, SYN, WINDOW, WINDOW_BYTES, YamuxSession

PEER = ID(b"somebody")
ANY = (1e9, 1e9)
"""Frames, as many as there are."""


class Line:
    """One end of a connection; `step`: how many bytes are read at once, at most."""

    def __init__(self, stream: Any, initiator: bool, step: int = 1 << 20) -> None:
        self.stream = stream
        self.is_initiator = initiator
        self.step = step
        self.held: trio.Event | None = None

    async def read(self, n: int | None = None) -> bytes:
        return await self.stream.receive_some(self.step if n is None else min(n, self.step))

    async def read_ready(self) -> list[bytes]:
        data = await self.read()
        return [data] if data else []

    async def write(self, data: bytes) -> None:
        if self.held is not None:
            await self.held.wait()
        await self.stream.send_all(data)

    async def close(self) -> None:
        await self.stream.aclose()


def line(step: int = 1 << 20) -> tuple[Line, Line]:
    left, right = trio.testing.memory_stream_pair()
    return Line(left, True, step), Line(right, False, step)


@asynccontextmanager
async def running(*sessions: Any) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(session.start)
            await session.event_started.wait()
        with trio.fail_after(100):
            yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pair(step: int = 1 << 20, **how: Any) -> AsyncIterator[tuple[YamuxSession, YamuxSession]]:
    ours, theirs = line(step)
    first, second = YamuxSession(ours, PEER, **how), YamuxSession(theirs, PEER, **how)  # type: ignore[arg-type]
    async with running(first, second):
        yield first, second


@asynccontextmanager
async def raw(**how: Any) -> AsyncIterator[tuple[YamuxSession, Any]]:
    """A session, and the bytes on the other end."""
    ours, theirs = line()
    session = YamuxSession(ours, PEER, **how)  # type: ignore[arg-type]
    async with running(session):
        yield session, theirs.stream


async def frame(stream: Any) -> tuple[int, ...]:
    data = b""
    while len(data) < HEADER.size:
        data += await stream.receive_some(HEADER.size - len(data))
    return HEADER.unpack(data)


async def echo(session: Any) -> None:
    """What comes on a stream goes back on it, once it is whole."""
    async with trio.open_nursery() as nursery:
        while True:
            stream = await session.accept_stream()

            async def back(stream: Any = stream) -> None:
                size = int.from_bytes(await whole(stream, 4))
                await stream.write(await whole(stream, size))
                await stream.close()

            nursery.start_soon(back)


async def whole(stream: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.read(size - len(data))
    return data


async def ask(session: Any, body: bytes) -> bytes:
    stream = await session.open_stream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.write, len(body).to_bytes(4) + body)
        answer = await whole(stream, len(body))
    with pytest.raises(MuxedStreamEOF):
        await stream.read(1)
    await stream.close()
    return answer


def ours_both(left: Line, right: Line) -> tuple[Any, Any]:
    return YamuxSession(left, PEER), YamuxSession(right, PEER)  # type: ignore[arg-type]


def ours_dials(left: Line, right: Line) -> tuple[Any, Any]:
    return YamuxSession(left, PEER), Yamux(right, PEER, is_initiator=False)  # type: ignore[arg-type]


def ours_listens(left: Line, right: Line) -> tuple[Any, Any]:
    return Yamux(left, PEER, is_initiator=True), YamuxSession(right, PEER)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "step"),
    [(ours_both, 7), (ours_both, 1 << 20), (ours_dials, 1000), (ours_listens, 1000), (ours_listens, 1 << 20)],
)  # the library gives up a frame that comes in more than a hundred parts
async def test_streams_carry_bulk_both_ways_at_once(make: Callable[..., tuple[Any, Any]], step: int) -> None:
    sizes = [1, 800, 2000] if step == 7 else [1, 70_000, 3 * WINDOW_BYTES + 1]
    first, second = make(*line(step))
    answers: list[tuple[bytes, bytes]] = []

    async def exchange(session: Any, size: int) -> None:
        body = bytes(range(256)) * (size // 256 + 1)
        answers.append((await ask(session, body[:size]), body[:size]))

    async with running(first, second), trio.open_nursery() as nursery:
        for session in (first, second):
            nursery.start_soon(echo, session)
        async with trio.open_nursery() as asking:
            for session in (first, second):
                for size in sizes:
                    asking.start_soon(exchange, session, size)
        nursery.cancel_scope.cancel()
    assert len(answers) == 2 * len(sizes) and all(got == sent for got, sent in answers)


async def test_nothing_is_remembered_of_streams_that_are_over() -> None:
    async with pair(frames=ANY) as (first, second), trio.open_nursery() as nursery:
        nursery.start_soon(echo, second)
        for _ in range(yamux.MAX_INBOUND + 1):
            await ask(first, b"hello")
        await trio.testing.wait_all_tasks_blocked()
        assert not first.streams and not second.streams and second._inbound == 0
        assert first.buffered == second.buffered == 0
        nursery.cancel_scope.cancel()


async def test_what_is_read_exactly_may_be_larger_than_the_window_and_ends_with_the_stream() -> None:
    async with pair() as (first, second), trio.open_nursery() as nursery:
        stream = await first.open_stream()
        other = await second.accept_stream()
        body = bytes(5 * WINDOW_BYTES)
        nursery.start_soon(other.write, body)
        assert await stream.read_exactly(len(body)) == body
        await other.write(b"rest", head=b"the ")
        await other.close()
        assert await stream.read_exactly(100) == b"the rest"


async def test_a_sender_waits_for_the_window_and_a_reset_wakes_it() -> None:
    async with pair() as (first, second), trio.open_nursery() as nursery:
        stream = await first.open_stream()
        other = await second.accept_stream()
        failed: list[type[Exception]] = []

        async def send() -> None:
            try:
                await stream.write(bytes(2 * WINDOW_BYTES))
            except MuxedStreamError as error:
                failed.append(type(error))

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        assert stream.send_window == 0 and other.unread.size == WINDOW_BYTES == second.buffered
        await other.reset()
        await trio.testing.wait_all_tasks_blocked()
        assert failed == [MuxedStreamReset] and second.buffered == 0
        with pytest.raises(MuxedStreamReset):
            await other.read(1)


async def test_a_window_that_stays_shut_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with pair() as (first, _):
        stream = await first.open_stream()
        with pytest.raises(MuxedStreamError, match="shut"):
            await stream.write(bytes(WINDOW_BYTES + 1))


async def test_a_cancelled_writer_leaves_no_half_frame() -> None:
    async with pair() as (first, second):
        stream = await first.open_stream()
        other = await second.accept_stream()
        line: Any = first.secured_conn
        line.held = trio.Event()
        scope = trio.CancelScope()

        async def send() -> None:
            with scope:
                await stream.write(b"whole")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            line.held.set()
        assert scope.cancelled_caught
        assert await other.read_exactly(5) == b"whole"


async def refused(session: YamuxSession, stream: Any, data: bytes) -> None:
    """The session ends for these bytes."""
    await stream.send_all(data)
    await session.event_closed.wait()
    with pytest.raises(MuxedConnUnavailable):
        while True:
            await session.accept_stream()


OPEN = HEADER.pack(0, WINDOW, SYN, 2, 0)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(HEADER.pack(1, DATA, 0, 2, 0), id="another version"),
        pytest.param(HEADER.pack(0, 9, 0, 2, 0), id="another type"),
        pytest.param(HEADER.pack(0, WINDOW, SYN, 1, 0), id="a number that is ours to give"),
        pytest.param(HEADER.pack(0, WINDOW, SYN, 0, 0), id="no number"),
        pytest.param(OPEN + OPEN, id="one number twice"),
        pytest.param(OPEN + HEADER.pack(0, DATA, 0, 2, WINDOW_BYTES + 1), id="more than the window"),
        pytest.param(OPEN + HEADER.pack(0, WINDOW, 0, 2, 2**32 - 1), id="a window larger than any"),
        pytest.param(HEADER.pack(0, DATA, 0, 4, 2**32 - 1), id="for nobody, and more than we keep"),
        pytest.param(HEADER.pack(0, 3, 0, 0, 0), id="goodbye"),
    ],
)
async def test_a_peer_that_breaks_the_rules_is_left(data: bytes) -> None:
    async with raw() as (session, stream):
        await refused(session, stream, data)


async def test_half_a_frame_ends_the_connection_after_a_while(autojump_clock: trio.testing.MockClock) -> None:
    async with raw() as (session, stream):
        await refused(session, stream, OPEN[:5])


async def test_a_peer_that_makes_us_answer_and_does_not_read_is_left() -> None:
    left, right = trio.testing.lockstep_stream_pair()
    session = YamuxSession(Line(left, True), PEER, frames=ANY)  # type: ignore[arg-type]
    async with running(session):
        await refused(session, right, HEADER.pack(0, PING, SYN, 0, 7) * (MAX_CONTROL_FRAMES + 2))


async def test_pings_are_answered_and_more_streams_than_allowed_are_reset() -> None:
    async with raw(frames=ANY) as (session, stream):
        await stream.send_all(HEADER.pack(0, PING, SYN, 0, 7))
        assert await frame(stream) == (0, PING, ACK, 0, 7)
        for count in range(1, yamux.MAX_INBOUND + 2):
            await stream.send_all(HEADER.pack(0, WINDOW, SYN, 2 * count, 0))
            expected = ACK if count <= yamux.MAX_INBOUND else RST
            assert await frame(stream) == (0, WINDOW, expected, 2 * count, 0)
        await stream.send_all(HEADER.pack(0, WINDOW, RST, 2, 0) + HEADER.pack(0, WINDOW, SYN, 9000, 0))
        (await session.accept_stream()).end()
        assert (await frame(stream))[3] == 9000


async def test_data_and_its_end_may_come_with_the_first_frame() -> None:
    async with raw() as (session, stream):
        await stream.send_all(HEADER.pack(0, DATA, SYN | FIN, 2, 3) + b"abc")
        opened = await session.accept_stream()
        assert await opened.read_exactly(9) == b"abc"
        await opened.close()
        assert {await frame(stream), await frame(stream)} == {(0, WINDOW, ACK, 2, 0), (0, WINDOW, FIN, 2, 0)}


def test_the_header_is_as_the_specification_has_it() -> None:
    assert HEADER.pack(0, WINDOW, SYN, 3, 256) == struct.pack(">BBHII", 0, 1, 1, 3, 256) and HEADER.size == 12


async def test_bulk_leaves_in_few_writes_whose_frames_each_fill_one_noise_message() -> None:
    async with pair() as (first, second):
        stream = await first.open_stream()
        other = await second.accept_stream()
        await other.widen(1 << 20)
        await trio.testing.wait_all_tasks_blocked()
        sent: list[bytes] = []

        async def write(data: bytes) -> None:
            sent.append(data)

        first.secured_conn.write = write  # type: ignore[method-assign]
        first.pace.turn = yamux.MAX_WRITE  # as on a fast line
        body = bytes(4 * yamux.BODY_BYTES)
        await stream.write(body, head=b"head")
    assert [len(each) for each in sent] == [4 * MAX_PLAINTEXT_LENGTH, HEADER.size + 4]
    starts = sent[0][::MAX_PLAINTEXT_LENGTH], sent[0][HEADER.size : HEADER.size + 4]
    assert starts == (bytes(4), b"head")
    assert HEADER.unpack(sent[0][-MAX_PLAINTEXT_LENGTH:][: HEADER.size]) == (0, DATA, 0, 1, yamux.BODY_BYTES)


async def test_an_unread_byte_does_not_keep_the_message_that_brought_it() -> None:
    async with raw() as (session, stream):
        await stream.send_all(OPEN)
        opened = await session.accept_stream()
        for _ in range(10):
            for_nobody = HEADER.pack(0, DATA, 0, 4, 5000) + bytes(5000)
            await stream.send_all(HEADER.pack(0, DATA, 0, 2, 1) + b"x" + for_nobody)
        await trio.testing.wait_all_tasks_blocked()
        assert opened.unread.size == 10 and sum(len(each.obj) for each in opened.unread._pieces) == 10


async def test_a_frame_that_uses_up_the_window_is_waited_for_by_who_reads_exactly() -> None:
    async with raw() as (session, stream):
        await stream.send_all(OPEN + HEADER.pack(0, DATA, 0, 2, WINDOW_BYTES))
        opened = await session.accept_stream()
        await trio.testing.wait_all_tasks_blocked()
        assert opened.unread.window == opened.unread.size == 0
        read: list[bytes] = []

        async def read_some() -> None:
            read.append(await opened.read_exactly(10))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_some)
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(bytes(range(10)) + bytes(WINDOW_BYTES - 10))
        assert read == [bytes(range(10))]


async def test_who_listens_is_told_once_of_what_came_together_and_of_the_end() -> None:
    async with raw() as (session, stream):
        await stream.send_all(OPEN)
        opened = await session.accept_stream()
        told: list[bytes | type[Exception]] = []

        def listener() -> None:
            try:
                told.append(opened.read_now())
            except (MuxedStreamEOF, MuxedStreamReset) as error:
                told.append(type(error))

        opened.listen(listener)
        one = HEADER.pack(0, DATA, 0, 2, 3) + b"abc"
        await stream.send_all(one + one)
        await trio.testing.wait_all_tasks_blocked()
        await stream.send_all(HEADER.pack(0, DATA, FIN, 2, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert told == [b"", b"abcabc", MuxedStreamEOF]


async def test_who_listens_gives_the_window_back_too() -> None:
    async with pair() as (first, second):
        stream = await first.open_stream()
        other = await second.accept_stream()
        came = 0

        def listener() -> None:
            nonlocal came
            if not other.recv_closed:
                came += len(other.read_now())

        other.listen(listener)
        with trio.fail_after(10):
            await stream.write(bytes(5 * WINDOW_BYTES))
        await trio.testing.wait_all_tasks_blocked()
        assert came == 5 * WINDOW_BYTES


async def test_what_is_written_now_goes_before_what_is_written_later_or_not_at_all() -> None:
    async with pair() as (first, second):
        stream = await first.open_stream()
        other = await second.accept_stream()
        line: Any = first.secured_conn
        line.held = trio.Event()
        assert stream.write_now(b"one ")  # the connection takes nothing: it is owed
        assert not stream.write_now(b"lost")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.write, b"two")
            await trio.testing.wait_all_tasks_blocked()
            line.held.set()
        assert await other.read_exactly(7) == b"one two"
        assert stream.send_window == WINDOW_BYTES - 7
        assert not stream.write_now(bytes(yamux.BODY_BYTES + 1))
        await stream.close()
        assert not stream.write_now(b"late")


async def test_what_is_owed_is_written_although_nobody_writes_again() -> None:
    async with pair() as (first, second):
        stream = await first.open_stream()
        other = await second.accept_stream()
        assert stream.write_now(b"alone")
        with trio.fail_after(5):
            assert await other.read_exactly(5) == b"alone"


async def test_nothing_is_written_now_over_a_connection_that_is_gone() -> None:
    async with pair() as (first, second):
        stream = await first.open_stream()
        await second.accept_stream()
        await second.close()
        await first.event_closed.wait()
        assert not stream.write_now(b"late")
