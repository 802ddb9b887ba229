"""Packets between a daemon and its fork server: one msgpack struct each, over a SOCK_SEQPACKET pair.

With a `StartChild` travel the descriptors that become the child's stdin and, as far as they go, its stdout and stderr.
"""

import signal

import msgspec

MAX_PACKET = 128 * 1024
MAX_DESCRIPTORS = 3


class _Packet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class StartChild(_Packet, frozen=True):
    """Run `python -m module arguments...` in a new session, with this environment and no other. number: chosen by the
    daemon, repeated in the answer; a daemon before this one may have died over its orders. directory: where it runs,
    the server's own if empty; farewell: the signal that it gets when the server is gone."""

    number: int
    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    directory: str = ""
    farewell: int = signal.SIGKILL


class ServerReady(_Packet, frozen=True):
    """The server has its imports; comes once, before all else."""


class ChildStarted(_Packet, frozen=True):
    """The answer to a `StartChild`. pid: 0 if there was no room for another process."""

    number: int
    pid: int


class ChildEnded(_Packet, frozen=True):
    """A child is gone. status: its exit status, or minus the signal that ended it."""

    pid: int
    status: int


Packet = StartChild | ServerReady | ChildStarted | ChildEnded
_DECODER = msgspec.msgpack.Decoder(Packet)


def encode(packet: Packet) -> bytes:
    return msgspec.msgpack.encode(packet)


def decode(data: bytes) -> Packet:
    """Raises msgspec.MsgspecError for what is no packet."""
    return _DECODER.decode(data)
