"""The two ends of a circuit: reserve at a relay, call somebody through it, be called; a stream as a raw connection.

What a relay says is a claim: who called is settled by the handshake inside, and a call of a relay where nothing is
reserved is refused. Raises Refused.
"""

import time

import trio
from libp2p.abc import INetStream
from libp2p.connection_types import ConnectionType
from libp2p.io.abc import ReadWriteCloser
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError
from multiaddr import Multiaddr

from node.network.circuit import wire
from node.network.circuit.relay import ASK_SECONDS, WINDOW
from node.network.circuit.rules import RelayStatus
from node.network.sockets import lean
from node.network.yamux import YamuxSession, YamuxStream, stream_below


class RelayRefused(Exception):
    """The relay, or who was called through it, would not."""


def is_direct(of: object) -> bool:
    """Whether a connection, or the one under a stream, goes through no relay."""
    muxed = getattr(of, "muxed_conn", None)
    return isinstance(muxed, YamuxSession) and muxed.get_connection_type() != ConnectionType.RELAYED


async def reserve(stream: INetStream) -> float:
    """Ask for calls to be passed on; seconds for which the relay will. stream: of the hop protocol, new."""
    answer = await _ask(stream_below(stream), HopMessage(type=HopMessage.RESERVE))
    await stream.close()
    # A relay with a wrong clock may promise years: it is asked again within a day.
    return min(max(answer.reservation.expire - time.time(), 0.0), 24 * 3600.0)


async def call(stream: INetStream, target: ID) -> RawConnection:
    """A raw connection to `target` through the relay. stream: of the hop protocol, new."""
    message = HopMessage(type=HopMessage.CONNECT)
    message.peer.id = target.to_bytes()
    await _ask(stream_below(stream), message)
    return await _raw(stream, initiator=True)


async def _ask(stream: YamuxStream, message: HopMessage) -> HopMessage:
    try:
        with trio.fail_after(2 * ASK_SECONDS):
            await wire.write(stream, message)
            answer = await wire.read(stream, HopMessage)
    except (wire.Malformed, MuxedStreamError, trio.TooSlowError) as error:
        raise RelayRefused(f"the relay gives no answer: {error}") from error
    if answer.type != HopMessage.STATUS or answer.status != RelayStatus.OK:
        # A relay of another program may answer numbers that we have no name for.
        known = answer.status in tuple(RelayStatus)
        raise RelayRefused(f"the relay says {RelayStatus(answer.status).name if known else answer.status}")
    return answer


async def be_called(stream: INetStream) -> tuple[ID, RawConnection]:
    """Whom a relay says the call is of, and the connection. stream: of the stop protocol, new."""
    below = stream_below(stream)
    try:
        with trio.fail_after(ASK_SECONDS):
            asked = await wire.read(below, StopMessage)
            if asked.type != StopMessage.CONNECT or not asked.peer.id:
                raise RelayRefused("the relay does not say who calls")
            await wire.write(below, wire.stop_status(RelayStatus.OK))
    except wire.Malformed as error:
        raise RelayRefused(str(error)) from error
    return ID(asked.peer.id), await _raw(stream, initiator=False)


async def refuse_call(stream: INetStream) -> None:
    with trio.fail_after(ASK_SECONDS):
        await wire.write(stream_below(stream), wire.stop_status(RelayStatus.PERMISSION_DENIED))
        await stream.close()


async def _raw(stream: INetStream, *, initiator: bool) -> RawConnection:
    below = stream_below(stream)
    await below.widen(WINDOW)
    through = Multiaddr(f"/p2p/{stream.muxed_conn.peer_id}/p2p-circuit")
    return RawConnection(lean(Circuit(stream)), initiator, ConnectionType.RELAYED, [through])


class Circuit(ReadWriteCloser):
    """A stream to a relay as what is below a connection."""

    def __init__(self, stream: INetStream) -> None:
        self._stream = stream
        self._below = stream_below(stream)

    async def read(self, n: int | None = None) -> bytes:
        try:
            return await self._below.read(n)
        # Of a connection the library takes no bytes for the end; yamux raises instead.
        except MuxedStreamEOF:
            return b""

    async def write(self, data: bytes) -> None:
        await self._below.write(data, bulk=True)  # nobody sees here which of it is news

    async def close(self) -> None:
        await self._stream.reset()

    def get_remote_address(self) -> tuple[str, int] | None:
        return None
