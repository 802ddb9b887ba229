"""The relay's side: answers reservations and calls, and carries the bytes of a call between its two ends.

What it carries is encrypted between the ends. Knows streams and the rules; knows no way to dial anybody.
"""

import time
from collections.abc import Awaitable, Callable

import structlog
import trio
from libp2p.abc import INetStream
from libp2p.connection_types import ConnectionType
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamError
from multiaddr import Multiaddr

from node.network.circuit import wire
from node.network.circuit.rules import RelayLimits, RelayRules, RelayStatus
from node.network.yamux import YamuxStream, stream_below
from protocol.identity import Address

log = structlog.get_logger(__name__)

ASK_SECONDS = 10.0
"""For a caller to say what it wants, and for whom it calls to answer."""
WINDOW = 1024**2
"""Bytes that may come from one side without waiting for us."""


class Relay:
    """address_of: the node behind a raw peer id, None if it is none; open_stop: a stream of the stop protocol to a peer
    that is connected, raises MuxedStreamError or StreamError else; contacts: where this relay can be dialled."""

    def __init__(
        self,
        rules: RelayRules,
        address_of: Callable[[bytes], Address | None],
        open_stop: Callable[[ID], Awaitable[INetStream]],
        contacts: Callable[[], tuple[str, ...]],
    ) -> None:
        self._rules = rules
        self._address_of = address_of
        self._open_stop = open_stop
        self._contacts = contacts

    async def answer(self, stream: INetStream) -> None:
        """Serve one incoming stream of the hop protocol until its circuit ends."""
        below, caller = stream_below(stream), self._address_of(stream.muxed_conn.peer_id.to_bytes())
        try:
            with trio.fail_after(ASK_SECONDS):
                asked = await wire.read(below, HopMessage)
        except wire.Malformed as error:
            log.debug("relay.malformed", peer=caller, why=str(error))
            await self._refuse(below, RelayStatus.MALFORMED_MESSAGE)
            return
        # A circuit through a circuit would be paid for by two relays, and its ends counted at neither.
        relayed = stream.muxed_conn.get_connection_type() == ConnectionType.RELAYED
        if caller is None or relayed:
            await self._refuse(below, RelayStatus.PERMISSION_DENIED)
        elif asked.type == HopMessage.RESERVE:
            await self._reserve(below, caller)
        elif asked.type == HopMessage.CONNECT:
            await self._connect(below, stream.muxed_conn.peer_id, caller, asked.peer.id)
        else:
            await self._refuse(below, RelayStatus.UNEXPECTED_MESSAGE)

    async def _refuse(self, stream: YamuxStream, status: RelayStatus) -> None:
        with trio.fail_after(ASK_SECONDS):
            await wire.write(stream, wire.hop_status(status))
            await stream.close()

    async def _reserve(self, stream: YamuxStream, member: Address) -> None:
        status = self._rules.reserve(member, trio.current_time())
        if status is not RelayStatus.OK:
            await self._refuse(stream, status)
            return
        answer = wire.limited(wire.hop_status(status), self._rules.limits)
        # Unix seconds, as the specification has it; all else here is measured on trio's clock.
        answer.reservation.expire = int(time.time() + self._rules.limits.lease)
        answer.reservation.addrs.extend(Multiaddr(contact).to_bytes() for contact in self._contacts())
        log.debug("relay.reserved", peer=member)
        with trio.fail_after(ASK_SECONDS):
            await wire.write(stream, answer)
            await stream.close()

    async def _connect(self, stream: YamuxStream, caller_id: ID, caller: Address, target: bytes) -> None:
        called = self._address_of(target)
        if called is None:
            await self._refuse(stream, RelayStatus.MALFORMED_MESSAGE)
            return
        status = self._rules.open(caller, called, trio.current_time())
        if status is not RelayStatus.OK:
            await self._refuse(stream, status)
            return
        try:
            other = await self._call(ID(target), caller_id)
            if other is None:
                await self._refuse(stream, RelayStatus.CONNECTION_FAILED)
                return
            log.debug("relay.carries", peer=caller, to=called)
            await self._carry(stream, other, lambda size: self._pay(caller, called, size))
        finally:
            # In `finally`: a place that is never given back would be lost until a restart.
            self._rules.close(caller, called)

    async def _carry(self, stream: YamuxStream, other: YamuxStream, pay: Callable[[int], float]) -> None:
        agreed = False
        try:
            with trio.fail_after(ASK_SECONDS):
                await wire.write(stream, wire.limited(wire.hop_status(RelayStatus.OK), self._rules.limits))
            agreed = True
        finally:
            if not agreed:
                await reset(other)
        await carry(stream, other, self._rules.limits, pay)

    def _pay(self, caller: Address, called: Address, size: int) -> float:
        return self._rules.pay(caller, called, size, trio.current_time())

    async def _call(self, target: ID, caller: ID) -> YamuxStream | None:
        """A stream to the other end, which has agreed; None if it has not."""
        message = wire.limited(StopMessage(type=StopMessage.CONNECT), self._rules.limits)
        message.peer.id = caller.to_bytes()
        stream, agreed = None, False
        try:
            with trio.move_on_after(ASK_SECONDS):
                stream = stream_below(await self._open_stop(target))
                await wire.write(stream, message)
                agreed = (await wire.read(stream, StopMessage)).status == RelayStatus.OK
        except Exception as error:  # the library's ways to say that the other end is gone are many
            log.debug("relay.call_failed", to=str(target), error=repr(error))
        finally:
            if stream is not None and not agreed:
                await reset(stream)
        return stream if agreed else None


async def reset(*streams: YamuxStream) -> None:
    """Also while being cancelled."""
    with trio.CancelScope(shield=True, deadline=trio.current_time() + ASK_SECONDS):
        for stream in streams:
            await stream.reset()


class _Spent(Exception):
    """A circuit has carried what one may."""


async def carry(one: YamuxStream, other: YamuxStream, limits: RelayLimits, pay: Callable[[int], float]) -> None:
    """Pass bytes on both ways until both sides have ended, one breaks off, or the circuit has cost enough.

    pay: seconds to wait for so many bytes.
    """
    over = False
    try:
        with trio.move_on_after(limits.duration):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_pour, one, other, limits.data, pay)
                nursery.start_soon(_pour, other, one, limits.data, pay)
            over = True
    except* (MuxedStreamError, _Spent) as group:
        log.debug("relay.circuit_ended", why=repr(group.exceptions[0]))
    finally:
        if not over:
            await reset(one, other)


async def _pour(source: YamuxStream, sink: YamuxStream, limit: int, pay: Callable[[int], float]) -> None:
    await source.widen(WINDOW)
    while limit > 0:
        try:
            data = await source.read(256 * 1024)  # bytes that are taken from one side at once
        except MuxedStreamEOF:
            await sink.close()
            return
        limit -= len(data)
        # Before it is passed on, so that the source is slowed down by its window, and nothing piles up here.
        await trio.sleep(pay(len(data)))
        # As bulk: a relay's own news goes before what it carries for others.
        await sink.write(data, bulk=True)
    raise _Spent
