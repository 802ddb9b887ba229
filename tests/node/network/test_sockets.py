import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream

from node.network.sockets import MAX_RUN, LeanSocket


@contextmanager
def pair() -> Iterator[tuple[LeanSocket, trio.SocketStream]]:
    ours, theirs = map(trio.socket.from_stdlib_socket, socket.socketpair())
    with ours, theirs:
        yield LeanSocket(TrioTCPStream(trio.SocketStream(ours))), trio.SocketStream(theirs)


async def test_what_no_buffer_holds_arrives_whole() -> None:
    sent, came = bytes(range(256)) * 8192, bytearray()
    with pair() as (ours, theirs):

        async def read() -> None:
            while len(came) < len(sent):
                came.extend(await theirs.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await ours.write(sent)
    assert bytes(came) == sent


async def test_a_writer_whose_peer_always_has_room_lets_others_run_now_and_then() -> None:
    piece, taken = bytes(1024), 0
    with pair() as (ours, theirs):
        while taken < 2 * MAX_RUN and not ours.begin_write(piece):
            taken += len(await theirs.receive_some())
    assert taken == MAX_RUN


async def test_who_waits_to_read_is_told_that_the_socket_was_closed_here() -> None:
    with pair() as (ours, _), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.close)
            assert await ours.read() == b""
        assert await ours.read() == b""


async def test_who_reads_or_writes_is_told_that_the_other_end_is_gone() -> None:
    with pair() as (ours, theirs):
        await theirs.aclose()
        assert await ours.read() == b""
        with pytest.raises(ConnectionClosedError):
            await ours.write(bytes(10))


async def test_nothing_is_written_to_a_closed_socket() -> None:
    with pair() as (ours, _):
        await ours.close()
        with pytest.raises(ConnectionClosedError):
            await ours.write(bytes(10))


async def test_nothing_is_left_to_write_to_a_socket_that_was_closed_meanwhile() -> None:
    with pair() as (ours, _):
        await ours.close()
        with pytest.raises(ConnectionClosedError):
            await ours.finish_write(memoryview(bytes(10)))
