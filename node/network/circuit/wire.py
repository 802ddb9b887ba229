"""The messages of circuit relay v2 on a stream: each after its length, bounded before anything is kept."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage

from node.network.circuit.rules import RelayLimits, RelayStatus
from node.network.packets import next_packet, packet
from node.network.yamux import YamuxStream

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"
MAX_MESSAGE = 4096

M = TypeVar("M", bound=Message)


class Malformed(Exception):
    """What came is no message of the protocol, or no end of one."""


async def read(stream: YamuxStream, kind: type[M]) -> M:
    """The next message. Raises Malformed, MuxedStreamError."""
    try:
        data = await next_packet(stream, MAX_MESSAGE)
        if data is None:
            raise Malformed("the stream ended")
        return kind.FromString(data)
    except (ValueError, DecodeError) as error:
        raise Malformed(str(error)) from error


async def write(stream: YamuxStream, message: Message) -> None:
    await stream.write(packet(message))


def hop_status(status: RelayStatus) -> HopMessage:
    return HopMessage(type=HopMessage.STATUS, status=int(status))  # type: ignore[arg-type]


def stop_status(status: RelayStatus) -> StopMessage:
    return StopMessage(type=StopMessage.STATUS, status=int(status))  # type: ignore[arg-type]


def limited(message: M, limits: RelayLimits) -> M:
    """The message, saying what a circuit may cost."""
    message.limit.duration = int(limits.duration)  # type: ignore[attr-defined]
    message.limit.data = limits.data  # type: ignore[attr-defined]
    return message
