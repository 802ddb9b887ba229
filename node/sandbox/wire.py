"""What a node and the process around a sandbox say to each other: length-prefixed msgpack over two pipes.

Knows frames and deadlines. Both ends are this program; what the guest made stands inside as bytes that nobody trusts.
"""

import os
import select
import time
from typing import Any, TypeVar

import msgspec

MAX_FRAME = 128 << 20
_CHUNK = 1 << 16
_T = TypeVar("_T")


class Load(msgspec.Struct, frozen=True):
    """The first frame to a host: what to load, with which limits (`base.Limits`).

    runtime: the compiled interpreter, empty where none is needed.
    """

    files: dict[str, bytes]
    entry: str
    fuel: int
    load_fuel: int
    memory_mib: int
    output_bytes: int
    seconds: float
    runtime: str = ""
    disk_bytes: int = 0


class Request(msgspec.Struct, frozen=True):
    """One call. body: JSON of [function, arguments], empty: the session ends; fuel: what it may use; session: the
    number of a machine that stays, 0: one for this call only; goes_on: that machine must be there already."""

    body: bytes
    stdin: bytes
    fuel: int
    session: int = 0
    goes_on: bool = False


class Ending(msgspec.Struct, frozen=True):
    """How the guest ended, or what it replied. status: a `base.Status`, or empty for Undecided, which `error` explains.

    reply: the JSON text of the value where the status is OK; code: of an exit; state: hash of a session's machine.
    """

    status: str
    reply: bytes = b""
    error: str = ""
    code: int = 0
    fuel: int = 0
    printed: bytes = b""
    complained: bytes = b""
    state: bytes = b""


READY = Ending("ready")
"""What a host says when the entry module was loaded."""


class Closed(Exception):
    """The other end is gone."""


def encode(value: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(4, "little") + body


def decode(body: bytes, kind: type[_T]) -> _T:
    """Raises Closed where the other end says something else, since nothing can be made of it."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise Closed(f"a malformed frame: {error}") from None


def write(descriptor: int, data: bytes, seconds: float | None = None) -> None:
    """Raises Closed; TimeoutError where the other end does not take it in time."""
    until = _until(seconds)
    view = memoryview(data)
    while view:
        if seconds is not None:
            _wait(descriptor, select.POLLOUT, until)
        try:
            view = view[os.write(descriptor, view[:_CHUNK]) :]
        except BlockingIOError:
            continue
        except OSError as error:
            raise Closed(str(error)) from None


def read(descriptor: int, seconds: float | None = None) -> bytes:
    """One frame's body. Raises Closed, TimeoutError."""
    until = _until(seconds)
    size = int.from_bytes(_exactly(descriptor, 4, until), "little")
    if size > MAX_FRAME:
        raise Closed("a frame that is too long")
    return _exactly(descriptor, size, until)


def _exactly(descriptor: int, size: int, until: float | None) -> bytes:
    parts: list[bytes] = []
    while size:
        if until is not None:
            _wait(descriptor, select.POLLIN, until)
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise Closed("end of the pipe")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _wait(descriptor: int, event: int, until: Any) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(until - time.monotonic(), 0) * 1000):
        raise TimeoutError
